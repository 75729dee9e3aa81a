//! TRODS: heads of responses.
#![no_main]

#[path = "../../trods/tests/support/hostile.rs"]
#[allow(dead_code)]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::response(bytes));
