//! The minisocket API as a C library; its manual is `include/rivulet.h`.
//!
//! It builds a stream model on the transport's offsets. Answers follow each other without a gap.
//! The input continuation carries the next output offset and the application's own bytes. Each
//! answer also travels in an output continuation (short ones themselves, files by name), so that
//! lost packets are sent again without the application.

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
