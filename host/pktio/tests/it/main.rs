//! All integration tests of this crate in one program: it is linked once. `cargo test -p rivulet-pktio --test it MODULE::`
//! runs a module of them.

mod af_packet;
mod af_xdp;
mod kernel;
mod repair;
mod shares;
