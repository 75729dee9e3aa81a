//! All integration tests of this crate in one program.

mod cases;
mod model;
mod records;
mod store;
mod support;
