//! All integration tests of this crate in one program: it is linked once. `cargo test -p rivulet-transport --test it MODULE::`
//! runs a module of them.

mod allocation;
mod attacks;
mod delayed;
mod greed;
mod pauses;
mod recovery;
mod retirement;
mod security;
mod signals;
mod streams;
mod support;
mod transfer;
