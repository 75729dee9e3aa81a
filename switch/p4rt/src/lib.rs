//! The P4Runtime server over the engine.
