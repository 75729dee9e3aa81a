//! All integration tests of this crate in one program, which saves linking. `cargo test -p
//! rivulet-transport --test it MODULE::` runs one module.

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
