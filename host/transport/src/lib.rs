//! The Trickles transport as sans-I/O state machines: server step and client.
