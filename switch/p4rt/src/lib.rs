//! The P4Runtime server over the engine.

pub mod proto;
