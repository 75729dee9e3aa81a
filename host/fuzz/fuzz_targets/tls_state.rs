//! TLS: states of connections out of a store.
#![no_main]

#[path = "../../tls/tests/support/hostile.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::state(bytes));
