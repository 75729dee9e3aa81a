//! The server library: minisockets on real packets, in Rust and C.
