//! Responses: one byte of class, two of the option's number, then the TCP payload.
#![no_main]

#[path = "../../packet/tests/support/exercise.rs"]
mod exercise;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| exercise::response_input(bytes));
