//! Stateless TCP: packets of a hostile client to a service with a back end.
#![no_main]

#[path = "../../plain/tests/support/hostile.rs"]
#[allow(dead_code)]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::relay(bytes));
