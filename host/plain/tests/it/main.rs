//! All integration tests of this crate, in one program.

mod allocation;
mod cases;
mod corpus;
mod cut;
mod guesses;
mod large;
mod liars;
mod losses;
mod memory;
mod others;
mod rates;
mod relay;
mod stacks;
mod support;
mod vectors;
