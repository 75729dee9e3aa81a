//! All integration tests of this crate in one program.

extern crate cm as libcm;

mod calls;
mod moves;
mod rig;
mod sigio;
mod udp;
