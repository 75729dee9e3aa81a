//! All integration tests of this crate in one program.

mod adoption;
mod cases;
mod corpus;
mod hold;
mod model;
mod records;
mod store;
mod support;
mod survive;
mod waking;
mod watch;
