//! TLS terminator: requests of a client and responses of a server.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rivulet_terminator::testing::relay(bytes));
