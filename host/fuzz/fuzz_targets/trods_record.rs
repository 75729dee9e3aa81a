//! TRODS: records out of a store.
#![no_main]

#[path = "../../trods/tests/support/hostile.rs"]
#[allow(dead_code)]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::record(bytes));
