//! Stateless TCP: request heads, targets and TCP options.
#![no_main]

#[path = "../../plain/tests/support/hostile.rs"]
#[allow(dead_code)]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::head(bytes));
