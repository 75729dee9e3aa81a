//! Heartbeats.
#![no_main]

use rivulet_packet::Heartbeat;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    match Heartbeat::parse(bytes) {
        Ok(h) => {
            let mut again = [0; 16];
            assert_eq!(h.write(&mut again), Ok(16));
            assert_eq!(again, bytes[..16]);
        }
        Err(e) => assert!(e.position() <= bytes.len()),
    }
});
