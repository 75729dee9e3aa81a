//! The simulator's experiments, as functions from parameters and seeds to figures.

pub mod completion;
pub mod crowd;
pub mod fairness;
pub mod overshoot;
pub mod sharing;
pub mod sprayed;
pub mod spraying;
pub mod stall;
pub mod wide;
