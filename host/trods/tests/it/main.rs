//! All integration tests of this crate in one program.

mod adoption;
mod blind;
mod both;
mod cases;
mod client_address;
mod corpus;
mod digests;
mod forged;
mod generated;
mod hold;
mod holders;
mod leaving;
mod model;
mod moves;
mod pins;
mod records;
mod renewal;
mod requests;
mod stamps;
mod store;
mod support;
mod survive;
mod unknown;
mod waking;
mod watch;
mod web_servers;
