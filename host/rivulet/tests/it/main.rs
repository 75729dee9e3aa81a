//! All integration tests of this crate in one program: it is linked once. `cargo test -p rivulet --test it MODULE::`
//! runs a module of them.

mod adopt;
mod af_xdp;
mod agent;
mod attacks;
mod back_end;
mod clients;
mod cm;
mod cm_accounts;
mod cm_kills;
mod cm_library;
mod cm_serve;
mod cm_udp;
mod content;
mod crowd;
mod downloads;
mod http;
mod interrupted;
mod large;
mod links;
mod pieces;
mod programs;
mod rig;
mod rotation;
mod secrets;
mod segments;
mod shared;
mod slow;
mod sockets;
mod stateless;
mod streams;
mod survival;
mod tokens;
mod trods;
mod upgrade;
mod workers;
