//! The client library: connections of the Rivulet transport behind ordinary streams.
//!
//! A [`Stack`] is one thread that moves packets for any number of connections. [`Stack::connect`] gives a
//! [`Stream`] that reads and writes like a `TcpStream`:
//!
//! ```no_run
//! use std::io::{Read, Write};
//!
//! let stack = rivulet_client::Stack::start()?;
//! let mut stream = stack.connect("192.0.2.80:80".parse()?)?;
//! stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
//! let mut answer = Vec::new();
//! stream.read_to_end(&mut answer)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Streams to one service share one connection and its window ([`Stream`]).
//!
//! Section numbers in this crate are those of the Trickles paper (NSDI 2005).
//!
//! It needs `CAP_NET_RAW` (packet sockets) and `CAP_NET_ADMIN` (the drop that keeps the kernel's TCP from
//! answering for us), and an Ethernet interface on the way to the server. [`Stack::with_io`] has AF_XDP move the packets
//! instead of packet sockets; that needs `CAP_BPF` too, and only one process of an interface can have it.

mod address;
mod address_watch;
mod claims;
mod connection;
mod core;
mod destinations;
mod driver;
mod end;
mod error;
mod fallback;
mod interfaces;
mod mailbox;
mod next_hop;
mod port;
mod roam;
mod services;
mod stack;
mod stream;
mod sub;
mod suspend;
mod tokens;
#[cfg(feature = "tokio")]
mod tokio_stream;

pub use destinations::Destination;
pub use error::{ConnectError, MAX_CONNECTIONS};
pub use next_hop::{NextHop, ResolveError, resolve};
pub use port::LocalPort;
pub use rivulet_pktio::IoChoice;
pub use rivulet_transport::client::{Config, ConnectionError, MAX_REQUESTS, ResumeError, Statistics};
pub use stack::Stack;
pub use stream::Stream;
pub use sub::SubStream;
pub use suspend::ResumptionError;
pub use tokens::{RememberError, state_folder};
#[cfg(feature = "tokio")]
pub use tokio_stream::AsyncStream;
