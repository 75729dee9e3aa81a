//! The P4Runtime specification's requirements, a test each, against the server with a real packet path behind
//! it. `REQUIREMENTS.md` beside `Cargo.toml` lists them by section; `requirements` checks that it lists them
//! all.

// An entry beside its copy in a list reads better than a slice made from a reference to it.
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
