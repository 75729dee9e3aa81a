//! All integration tests of this crate in one program.

mod adoption;
mod blind;
mod both;
mod cases;
mod corpus;
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
mod stamps;
mod store;
mod support;
mod survive;
mod waking;
mod watch;
