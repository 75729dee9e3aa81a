//! All integration tests of this crate in one program.

mod calls;
mod rig;
