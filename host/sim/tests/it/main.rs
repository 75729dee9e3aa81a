//! All integration tests of this crate in one program, which is linked once. `cargo test -p
//! rivulet-sim --test it MODULE::` runs one module.

mod corpus;
mod experiments;
mod fetches;
mod managed;
mod middlebox;
mod reference;
mod replay;
mod scenarios;
mod transfers;
