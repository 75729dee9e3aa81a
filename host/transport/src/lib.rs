//! The Trickles transport as sans-I/O state machines: the server step and the client.
//!
//! Nothing in this crate opens a socket, reads a clock, starts a thread or awaits. The caller hands
//! it packets (from the IP header on) and the time, and gets packets, events and the next timeout.
//!
//! Section numbers are those of the Trickles paper (Shieh, Myers and Sirer, NSDI 2005), unless an RFC
//! is named. `docs/glossary.md` defines the terms.
//!
//! # Time
//!
//! [`Time`] is in microseconds. A client may use any monotonic clock. A server uses the *common
//! clock* of the service (48 bits, `docs/wire-format.md`, `tor_time`), and only where no trusted
//! ToR stamped the request.
//!
//! # The server
//!
//! ```
//! use rivulet_packet::Segment;
//! use rivulet_transport::server::{Answer, Policy, Reply, Verdict, step};
//! use rivulet_transport::{KeyRing, Time};
//!
//! fn serve(packet: &[u8], keys: &KeyRing, now: Time, policy: &Policy, mut send: impl FnMut(&[u8]))
//!     -> Result<(), Box<dyn std::error::Error>> {
//!     let segment = Segment::parse_packet(packet)?;              // or parse_frame
//!     segment.verify()?;
//!     // Pure, bounded, no allocation. A refusal is counted by its `name()`, and its packet dropped.
//!     let Verdict::Respond(plan) = step(&segment, keys, now, policy)? else { return Ok(()) };
//!     let input = plan.input(keys)?;                             // InputEvent { stream, offset, data, fin, continuation }
//!     let mut buffer = [0; 2048];
//!     for (i, head) in plan.heads().iter().enumerate() {
//!         let mut reply = Reply::default();
//!         if let (true, Some(want)) = (head.is_for_application(), head.want) {
//!             let wanted = plan.output_continuation(&want, keys)?; // what the application once sealed for this range
//!             reply.answer = Answer::Data { offset: want.offset, data: &[0; 100], end: false }; // at most head.room
//!         }
//!         let sent = plan.respond(i, &reply, keys, &mut buffer)?;  // a whole IP packet of sent.length bytes
//!         send(&buffer[..sent.length]);
//!     }
//!     Ok(())
//! }
//! ```
//!
//! [`server::Server`] adds two optional soft states to the step: the replay defence per response
//! number ([`server::ReplayMemory`]) and the minisocket cache ([`server::MinisocketCache`]). Call
//! `accept` in place of `step`, and `respond` in place of `plan.respond`. Build every response of a
//! plan once, in order; a response that cannot be built counts as a lost packet. A reply without
//! content (`Reply::default()`) is legal and keeps the trickle alive. `plan.seal_ucont` seals user
//! continuations.
//!
//! # Input and output spaces (the contract with server applications)
//!
//! A connection carries up to 65,536 **streams**. Stream `s` has an *input* (client to server)
//! whose offsets start at 0, and an *output* region of the connection's single 64-bit output space:
//! `[s << 48, (s + 1) << 48)`. Stream 0 is the one that an ordinary socket uses; streams 1 and up
//! are the parallel requests of section 5.2 (`Connection::request`). So **the client allots
//! regions** by numbering streams, and **the server application allots offsets within a region**:
//! the responses of a stream follow each other without a gap from the region's start.
//!
//! - A request's input arrives as `Input { stream, offset, data, fin, continuation }`. With `continuation: None` it is the start of the
//!   stream (`offset == 0`): the next output offset is `stream << 48`. Otherwise `continuation` is an *input continuation* that the
//!   application sealed before. A packet of input may start at any offset from its `valid_start` to its `valid_end`, both
//!   included (the library refuses others): equal ones where input has to be read in order, far apart ones where it need not. Its opaque bytes are
//!   the application's, and include **the next output offset**. Its `identity` is the stable id of the operation
//!   ([`operation_id`] of connection, stream and the offset at which the operation began).
//! - For input that it understood wholly, an application answers with `consumed` (the offset up to which it consumed; it may be
//!   less than was sent, and the client sends the rest again), a new input continuation (`valid_start == consumed`,
//!   opaque: next output offset) and, per answer it promises, an *output continuation* with
//!   `[valid_start, valid_end)` the output range of the answer (HTTP head and body together; head bytes must be
//!   reproducible from the continuation), and already in the same response packet as much data as fits (`head.room(..)`), since
//!   the client asked for it in vain otherwise: a request with input and no wants may be answered with data that follows the output
//!   continuation just made. Where a size is not known beforehand, take a region large enough and answer a want beyond the end with
//!   `Answer::Skip`, which elides the rest of the range, or with data and `end` set (below).
//! - For input that is not complete (half an HTTP head, a body chunk), answer `consumed` and an input continuation; the
//!   opaque part holds a digest, the parsed state, or the bytes so far (up to `MAX_OPAQUE`). If no progress is possible in one
//!   packet and the bytes fit in no continuation, answer `Answer::Error`. A continuation whose
//!   `valid_end` lies far ahead (an upload body) lets the client send many packets with it in parallel; each is acknowledged by its own
//!   `consumed`; they arrive at least once and in any order.
//! - `consumed`, user continuations and tokens go into a head of kind `New` (the first one); a
//!   retransmission carries only data. A request with input always has such a head.
//! - Pipelining: the client sends input as soon as it has an input continuation for it. An application may consume several requests in one
//!   event, and answer with several output continuations (at most 16 fit; stop consuming at that).
//! - A want names an output range and carries the output continuation that covers it: `Head::want`. The application answers with data that
//!   starts at `want.offset` (fewer bytes are fine, the client asks again), `Skip`, `Wait`, `NotMine` or `Error`.
//! - **End of stream** (the server closes, as after `Connection: close`): `end: true` with the last data. The reader of the stream gets
//!   end-of-file behind it. A persistent connection never sets it.
//!
//! So a stateless HTTP/1.1 server for an unmodified curl: SYN carries `GET`; the application answers with the output continuation
//! `[0, head + body)`, the input continuation (`valid_start` = length of the request, opaque = `head + body`), and the first bytes; the
//! client pulls the rest by wants; the next `GET` on the connection carries that input continuation.
//!
//! # The client
//!
//! [`client::Connection`] has the contract of `handle_*` and `poll_*` that the Rust protocol crates share:
//!
//! ```
//! use rivulet_transport::Time;
//! use rivulet_transport::client::{Config, Connection};
//!
//! /// Passes in a received packet, sends packets, and returns the time of the next call.
//! fn drive(c: &mut Connection, now: Time, packet: Option<&[u8]>, mut send: impl FnMut(&[u8])) -> Option<Time> {
//!     if let Some(packet) = packet {
//!         let _ = c.handle_input(now, packet);                   // a whole IP packet; an error means it was ignored
//!     }
//!     c.handle_timeout(now);
//!     let mut buffer = [0; 1500];
//!     while let Some(length) = c.poll_transmit(now, &mut buffer) {
//!         send(&buffer[..length]);
//!     }
//!     while let Some(event) = c.poll() {
//!         // Connected, Readable, Writable, InputConsumed, Token, FallbackToTcp, Closed, Failed
//!     }
//!     c.poll_timeout()
//! }
//!
//! let (local, remote) = ("192.0.2.1:40000".parse().unwrap(), "198.51.100.80:80".parse().unwrap());
//! let mut c = Connection::open(Config::default(), local, remote, Time(0));
//! let mut sent = Vec::new();
//! assert_eq!(drive(&mut c, Time(0), None, |p| sent.push(p.to_vec())), None, "nothing before the first write");
//! c.write(0, b"GET / HTTP/1.1\r\n\r\n", Time(0));              // `connect` sends a SYN without
//! assert!(drive(&mut c, Time(0), None, |p| sent.push(p.to_vec())).is_some());
//! assert_eq!(sent.len(), 1, "the SYN carries the request");
//! ```
//!
//! Beside them `finish(stream)`, `read(stream, buf) -> Read`, `request(data, now)`, `close(now)`, `suspend()` and `Connection::resume`.
//!
//! After any of `handle_*`, `write`, `read`, `finish`, `request`, `close`: call `poll_transmit` until `None`, `poll` until
//! `None`, then `poll_timeout` again.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod client;
mod cmac;
mod cubic;
mod cwnd;
mod decision;
mod history;
mod keys;
mod nonces;
mod opening;
mod retired;
mod seal;
pub mod server;
mod time;
mod ucont;
mod verdict;

pub use history::ProofError;
pub use keys::{KeyRing, MAX_EPOCHS, MacKey, NonceKeys, SealKeys, equal_in_constant_time};
pub use nonces::sums_are_right;
pub use opening::{OpenedBy, Opening, TOKEN_LENGTH, TOKEN_LIFETIME, address_token, open_connection};
pub use retired::{Retired, Seed, WINDOW_TOKEN_LENGTH};
pub use seal::seal_continuation;
pub use time::{Micros, Time};
pub use ucont::{MAX_OPAQUE, MAX_UCONT, UcontError, UserContinuation, operation_id, seal_user};
pub use verdict::{MAX_RESPONSES, VerdictError};
