//! All integration tests of this crate in one program.

mod kernel;
mod macroflow;
mod share;
