//! Request heads, targets, ranges and conditions of HTTP.
#![no_main]

#[path = "../../http/tests/support/hostile.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::head(bytes));
