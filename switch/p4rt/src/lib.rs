//! The P4Runtime server for the engine, and a small service for ports, links and traces.
//!
//! # Contract
//!
//! One [`Server`] serves one device: a [`Switch`](rivulet_engine::Switch) whose packet path runs on
//! threads of the caller. The server accesses the packet path only through
//!
//! * the engine's control interface (`Pipeline`, `Switch::commit`), which applies writes between
//!   packets;
//! * [`PacketInSender::send`], which the packet path calls with packets that the engine sends to
//!   the CPU port. It copies the bytes, never blocks, and drops (and counts) when [`PacketIns`] is
//!   full;
//! * [`Ports::packet_out`], which the server calls with a frame to process with the CPU port as
//!   ingress port, starting with the packet-out header. It must not block: if the switch's queue is
//!   full it returns [`PortError::Full`], and the controller gets a `StreamError`.
//!
//! The service for ports, links and traces has no arbitration: [`Server::serve`] serves it on a
//! separate listener, best a Unix socket, if one is given.
//!
//! So a slow or vanished controller does not affect packets: every queue towards it is bounded and
//! drops only its own messages.
//!
//! ```text
//!   DataPath --emit(cpu port)--> PacketInSender ==bounded==> dispatcher --bounded--> primary's stream
//!   DataPath --digest channel (engine, bounded)------------> digest thread --bounded--> primary's stream
//!   primary's stream --packet_out--> Ports --bounded--> DataPath::process(cpu port)
//!   Write/Read/SetForwardingPipelineConfig --> Pipeline --engine's queue--> DataPath
//! ```
//!
//! A caller starts it as follows:
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
//! [`Server::serve`] returns when its shutdown future completes: it ends streams, answers running
//! requests and joins its threads. The runtime must be multi-threaded.
//!
//! Until a pipeline with P4Info is set, reads and writes fail with FAILED_PRECONDITION. A pipeline
//! that the caller committed directly to the engine forwards meanwhile, until a controller commits
//! the first one.

mod admission;
mod answer;
mod arbitration;
mod bytestring;
mod client;
mod config;
mod counts;
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
mod translation;
mod write;

pub use error::{SPACE, UpdateError};
pub use listener::Listener;
pub use p4info::parse as parse_p4info;
pub use packet_io::{PacketInSender, PacketIns, packet_in_channel};
pub use ports::{Link, Port, PortError, Ports, TraceReport};
pub use rivulet_p4rt_proto as proto;
pub use server::{ServeError, Server, ServerConfig, Totals};
pub use tls::Tls;

/// Release of P4Runtime, as reported by `Capabilities`.
pub const P4RUNTIME_API_VERSION: &str = "1.5.0";
