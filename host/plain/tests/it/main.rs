//! All integration tests of this crate in one program.

mod allocation;
mod cases;
mod corpus;
mod guesses;
mod losses;
mod stacks;
mod support;
mod vectors;
