//! The minisocket API as a C library; `include/rivulet.h` is its manual.
//!
//! The stream model on top of the transport's offsets: answers follow each other without a gap, the next
//! output offset travels in the input continuation beside the application's own octets, and every answer
//! travels in an output continuation (short ones themselves, files by name), so that lost packets are sent
//! again without the application.

mod answer;
mod client;
mod ends;
mod event;
mod ffi;
mod ffi_client;
mod ffi_listen;
mod ffi_move;
mod readiness;
mod state;
