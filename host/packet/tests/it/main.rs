//! All integration tests of this crate in one program: it is linked once. `cargo test -p rivulet-packet --test it MODULE::`
//! runs a module of them.

mod corpus;
mod frames;
mod properties;
mod support;
mod vectors;
