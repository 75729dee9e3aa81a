//! All integration tests of this crate in one program.

mod corpus;
mod stage;
mod streams;

#[path = "../../../libcm/tests/it/rig.rs"]
#[allow(dead_code, unreachable_pub, reason = "the library's tests use the rest")]
mod rig;
