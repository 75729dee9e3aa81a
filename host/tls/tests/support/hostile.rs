//! The fuzz targets' work on arbitrary bytes.

use rivulet_tls::{MAX_STATE_BYTES, Resumption, Source, State};

/// Decodes and uses a state; its HTTP part gets a valid checksum. The first acknowledged number
/// also comes from the bytes.
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
        let mut out = Vec::new();
        let Ok(mut resumption) = Resumption::begin(&state, acked) else { continue };
        while let Ok(Some(needed)) = resumption.next(&mut out) {
            let response = &state.http.responses[needed.response];
            assert!(needed.length > 0 && needed.from + needed.length == response.length);
            let Ok(source) = Source::of(response, needed.from) else { break };
            let mut answers = source.answers();
            assert_eq!(source.stored.len() as u64 + answers.missing(), needed.length);
            let mut plaintext = source.stored.to_vec();
            let _ = answers.read(bytes.get(200..).unwrap_or_default(), &mut plaintext);
            resumption.write(&plaintext, &mut out).expect("no more than the response has");
        }
    }
    for acked in [tcp.response_at, acked, tcp.passed()] {
        state.drop_acknowledged(acked);
        assert_eq!(state.tcp_record().passed(), tcp.passed());
        State::decode(&state.encode()).expect("what was dropped left a state");
    }
}
