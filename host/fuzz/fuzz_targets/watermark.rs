//! Watermarks: any bytes as a picture.
#![no_main]

#[path = "../../watermark/tests/support/hostile.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::picture(bytes));
