//! Stateless TCP: queries of DNS and the back end's datagrams.
#![no_main]

#[path = "../../plain/tests/support/hostile.rs"]
#[allow(dead_code)]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::dns(bytes));
