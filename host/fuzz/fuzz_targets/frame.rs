//! Ethernet frames: headers, option, and whatever request or response they carry.
#![no_main]

#[path = "../../packet/tests/support/exercise.rs"]
mod exercise;

libfuzzer_sys::fuzz_target!(|frame: &[u8]| exercise::exercise(frame));
