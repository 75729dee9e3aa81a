//! The embedded switch as a process: simple_switch_grpc's command line, worker threads that forward
//! packets between interfaces and the [engine](rivulet_engine), and other threads for the
//! [P4Runtime server](rivulet_p4rt).
//!
//! ```text
//!   interfaces --PacketIo--> Worker --process--> DataPath --emit--> [Link] --PacketIo--> interfaces
//!                              ^  ^                  |
//!             PortControl -----+  +--packet-out      +--CPU port--> P4Runtime server
//! ```

pub mod flags;
pub mod log;
pub mod metrics;
pub mod options;
pub mod pcap;
pub mod port;
pub mod ports;
pub mod processor;
mod start;
pub mod trace_log;
pub mod worker;

pub use start::run;
