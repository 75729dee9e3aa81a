//! The P4Runtime server over the engine, and a small service of our own for ports, links and traces.
//!
//! # Contract
//!
//! One [`Server`] serves one device: a [`Switch`](rivulet_engine::Switch) whose packet path the caller runs on
//! threads of its own. The server never touches the packet path except through
//!
//! * the engine's control interface (`Pipeline`, `Switch::commit`), which hands writes over between packets;
//! * [`PacketInSender::send`], which the packet path calls with what the engine emits to the CPU port. It copies
//!   the bytes, never blocks, and drops (and counts) when [`PacketIns`] is full;
//! * [`Ports::packet_out`], which the server calls with a frame to run with the CPU port as ingress port, the
//!   packet-out header in front. It must not block: when the switch's queue is full it returns
//!   [`PortError::Full`], and the controller gets a `StreamError`.
//!
//! The service for ports, links and traces knows no election: it is served on a listener of its own, best a Unix
//! socket, if [`Server::serve`] is given one.
//!
//! So a controller that is slow, or gone without a word, costs the packets nothing: every queue towards it is
//! bounded and loses its own messages, never anybody else's.
//!
//! ```text
//!   DataPath --emit(cpu port)--> PacketInSender ==bounded==> dispatcher --bounded--> primary's stream
//!   DataPath --digest channel (engine, bounded)------------> digest thread --bounded--> primary's stream
//!   primary's stream --packet_out--> Ports --bounded--> DataPath::process(cpu port)
//!   Write/Read/SetForwardingPipelineConfig --> Pipeline --engine's queue--> DataPath
//! ```
//!
//! A caller does, in this order:
//!
//! ```no_run
//! # use std::sync::Arc;
//! # async fn daemon(ports: Arc<dyn rivulet_p4rt::Ports>) -> Result<(), Box<dyn std::error::Error>> {
//! use rivulet_engine::{Switch, SwitchConfig};
//! use rivulet_p4rt::{Server, ServerConfig, packet_in_channel};
//! let (switch, _data_path, events) = Switch::new(SwitchConfig::default());
//! let (_packet_in, packet_ins) = packet_in_channel(1024); // the sender goes to the packet path
//! let server = Server::new(ServerConfig { device_id: 1, ..ServerConfig::default() }, switch, ports);
//! // Optional, for a pipeline known at the start; JSON without P4Info goes to `Switch::commit` instead.
//! server.install(&std::fs::read("program.p4info.txtpb")?, std::fs::read("program.json")?)?;
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:9559").await?;
//! server.serve(listener, None, packet_ins, events.digests, std::future::pending()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Server::serve`] returns when its shutdown future does: streams are ended, running requests answered, its
//! threads joined. The runtime must be a multi-threaded one.
//!
//! Until a pipeline with P4Info is set, reads and writes fail with FAILED_PRECONDITION; a pipeline that the
//! caller committed to the engine by itself forwards meanwhile and is replaced by the first one that a
//! controller commits.

mod admission;
mod answer;
mod arbitration;
mod bytestring;
mod client;
mod config;
mod data;
mod device;
mod digest;
mod error;
mod idle;
mod index;
mod listener;
mod p4info;
mod packet_io;
mod parts;
mod ports;
mod read;
mod server;
mod service;
mod stream;
mod switch_service;
mod tls;
mod write;

pub use error::{SPACE, UpdateError};
pub use listener::Listener;
pub use p4info::parse as parse_p4info;
pub use packet_io::{PacketInSender, PacketIns, packet_in_channel};
pub use ports::{Link, Port, PortError, Ports, TraceReport};
pub use rivulet_p4rt_proto as proto;
pub use server::{ServeError, Server, ServerConfig, Totals};
pub use tls::Tls;

/// The release of P4Runtime that the messages are of, as `Capabilities` says it.
pub const P4RUNTIME_API_VERSION: &str = "1.5.0";
