//! All integration tests of this crate in one program, which is linked once. `cargo test -p
//! rivulet-switch --test it MODULE::` runs one module.

mod daemon;
mod fuzz;
mod worker;
