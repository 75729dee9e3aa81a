//! The work of the fuzz targets for arbitrary bytes.

use rivulet_tls::{MAX_STATE_BYTES, State};

/// A state, of which the HTTP part gets a valid sum. The first acknowledged number comes from the bytes, too.
pub fn state(bytes: &[u8]) {
    let Some((acked, bytes)) = bytes.split_first_chunk() else { return };
    let acked = u32::from_be_bytes(*acked);
    // AES-256 has secrets of 48 bytes, and the others have 32.
    let is_long = bytes.get(4..6) == Some(&[0x13, 2]);
    let Some(http) = bytes.get(if is_long { 137 } else { 105 }..) else { return };
    let bytes = [bytes, &crc32c::crc32c(http).to_be_bytes()].concat();
    let Ok(mut state) = State::decode(&bytes) else { return };
    let again = state.encode();
    assert!(again.len() <= MAX_STATE_BYTES);
    assert_eq!(*State::decode(&again).expect("what was encoded").encode(), *again);
    let tcp = state.tcp_record();
    for acked in [tcp.response_at, acked, tcp.passed()] {
        state.drop_acknowledged(acked);
        assert_eq!(state.tcp_record().passed(), tcp.passed());
        State::decode(&state.encode()).expect("what was dropped left a state");
    }
}
