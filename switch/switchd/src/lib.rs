//! The embedded switch: simple_switch_grpc's flags over the engine.
