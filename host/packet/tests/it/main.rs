//! All integration tests of this crate in one program, which is linked once. `cargo test -p
//! rivulet-packet --test it MODULE::` runs one module.

mod corpus;
mod frames;
mod properties;
mod support;
mod vectors;
