//! Deterministic discrete-event network simulator for the transport.
