//! The server fed by a hostile client: its requests are changed, dropped, repeated and replaced.
#![no_main]

use rivulet_sim::hostile::{Enemy, session};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    session(bytes, Enemy::Client);
});
