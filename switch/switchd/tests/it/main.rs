//! All integration tests of this crate in one program: it is linked once. `cargo test -p rivulet-switch --test it MODULE::`
//! runs a module of them.

mod daemon;
mod fuzz;
mod worker;
