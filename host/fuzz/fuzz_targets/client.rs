//! The client fed by a hostile server: its responses are changed, dropped, repeated and replaced.
#![no_main]

use rivulet_sim::hostile::{Enemy, session};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    session(bytes, Enemy::Server);
});
