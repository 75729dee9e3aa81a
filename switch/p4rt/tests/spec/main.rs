//! One test for each requirement of the P4Runtime specification, against the server with a real
//! packet path. `REQUIREMENTS.md` beside `Cargo.toml` lists them by section; the module
//! `requirements` checks that the list is complete.

// An entry next to its copy in a list is easier to read than a slice from a reference.
#![allow(clippy::cloned_ref_to_slice_refs)]

mod arbitration;
mod batches;
mod bounds;
mod controller;
mod fuzz;
mod harness;
mod pipeline;
mod profiles;
mod replication;
mod requirements;
mod state;
mod streams;
mod tables;
mod tls;
mod translation;
