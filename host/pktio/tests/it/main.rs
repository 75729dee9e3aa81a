//! All integration tests of this crate in one program, which is linked once. `cargo test -p
//! rivulet-pktio --test it MODULE::` runs one module.

mod af_packet;
mod af_xdp;
mod kernel;
mod repair;
mod shares;
