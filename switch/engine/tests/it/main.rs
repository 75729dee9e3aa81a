//! All integration tests of this crate in one program, which is linked once. `cargo test -p
//! rivulet-engine --test it MODULE::` runs one module.

mod common;
mod concurrent;
mod features;
mod robust;
mod stf_run;
mod workers;
