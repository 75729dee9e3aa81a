//! Heartbeats, and the answers to them.
#![no_main]

use rivulet_packet::{Answer, Heartbeat};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    match Heartbeat::parse(bytes) {
        Ok(h) => {
            let mut again = [0; 20];
            assert_eq!(h.write(&mut again), Ok(20));
            assert_eq!(again, bytes[..20]);
        }
        Err(e) => assert!(e.position() <= bytes.len()),
    }
    match Answer::parse(bytes) {
        Ok(a) => {
            let mut again = [0; 36];
            assert_eq!(a.write(&mut again), Ok(36));
            assert_eq!(again, bytes[..36]);
        }
        Err(e) => assert!(e.position() <= bytes.len()),
    }
});
