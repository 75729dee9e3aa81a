//! The Congestion Manager's applications: datagrams between their two ends.
#![no_main]

#[path = "../../cm-apps/tests/support/hostile.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::message(bytes));
