//! All integration tests of this crate in one program: it is linked once. `cargo test -p rivulet-engine --test it MODULE::`
//! runs a module of them.

mod common;
mod concurrent;
mod features;
mod robust;
mod stf_run;
mod workers;
