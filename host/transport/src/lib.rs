//! The Trickles transport as sans-I/O state machines: the server step and the client.
//!
//! Nothing in this crate opens a socket, reads a clock, spawns a thread or awaits. Whoever drives it hands it
//! packets (from the IP header on) and the time, and gets packets, events and the next timeout back.
//!
//! # Time
//!
//! [`Time`] is microseconds. The client's is any monotonic clock. The server's is the *common clock* of the
//! service (48 bits, `docs/wire-format.md`, `tor_time`); it is used only where no trusted ToR stamped the request.
//!
//! # The server
//!
//! ```text
//! let segment = rivulet_packet::Segment::parse_packet(packet)?;  // or parse_frame; then segment.verify()
//! match server::step(&segment, &keys, now, &policy) {           // pure; bounded; no allocation
//!     Err(refusal)             => count it by `refusal.name()`, drop the packet
//!     Ok(Verdict::Terminate)   => nothing is sent
//!     Ok(Verdict::Respond(plan)) => {
//!         plan.input(&keys)?                 // Option<InputEvent { stream, offset, data, fin, continuation }>
//!         for (i, head) in plan.heads().iter().enumerate() {
//!             // head.is_for_application(), head.want, head.room; plan.output_continuation(&want, &keys)?
//!             let sent = plan.respond(i, &reply, &keys, &mut buffer)?;   // a whole IP packet of sent.length bytes
//!         }
//!     }
//! }
//! ```
//!
//! [`server::Server`] wraps the step with the two removable soft states, the replay defence per response number
//! ([`server::ReplayMemory`]) and the minisocket cache ([`server::MinisocketCache`]): `accept` in place of `step`, `respond` in place of
//! `plan.respond`. Every response of a plan is to be built, each once, in order; one that fails to build is a lost packet, no more. A
//! reply without content (`Reply::default()`) is legal and keeps the trickle alive. User continuations are sealed by
//! `plan.seal_ucont`.
//!
//! # Input and output spaces (the contract with server applications)
//!
//! A connection carries up to 65,536 **streams**. Stream `s` has an *input* (client to server) whose offsets start at 0, and
//! an *output* region of the connection's one 64-bit output space: `[s << 48, (s + 1) << 48)`. Stream 0 is what an
//! ordinary socket sees; streams 1.. are the parallel requests of section 5.2 (`Connection::request`). So **the client allots
//! regions** (by numbering streams) and, **within a region, the server application allots**: the answers of a stream
//! follow each other without a gap from the region's start.
//!
//! - A request's input arrives as `Input { stream, offset, data, fin, continuation }`. With `continuation: None` it is the start of the
//!   stream (`offset == 0`): the next output offset is `stream << 48`. Otherwise `continuation` is an *input continuation* that the
//!   application sealed before. A packet of input may start at any offset from its `valid_start` to its `valid_end`, both
//!   included (the library refuses others): equal ones where input has to be read in order, far apart ones where it need not. Its opaque bytes say
//!   whatever the application put there, among it **the next output offset**. Its `identity` is the stable id of the operation
//!   ([`ucont::operation_id`] of connection, stream and the offset at which the operation began).
//! - For input that it understood wholly, an application answers with `consumed` (the offset up to which it consumed; less
//!   than what came is fine, the client sends the rest again), a new input continuation (`valid_start == consumed`,
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
//! - `consumed`, user continuations and tokens go into a head of kind `New` (the first one); a retransmission carries data alone. A request with input
//!   always has one.
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
//! ```text
//! Connection::open(config, local, remote, now) -> Connection    // nothing sent before the first write, or `connect`
//! handle_input(now, packet) -> Result<(), InputError>          // a whole IP packet; an error means it was ignored
//! handle_timeout(now)                                          // when poll_timeout's time has come
//! poll_transmit(now, &mut buf) -> Option<usize>                // whole IP packets until None
//! poll_timeout() -> Option<Time>
//! poll() -> Option<Event>                                      // Connected, Readable, Writable, InputConsumed, Token, FallbackToTcp, Closed, Failed
//! write(stream, data, now) -> usize, finish(stream), read(stream, buf) -> Read, request(data, now) -> Option<stream>, close(now)
//! suspend() -> Option<Vec<u8>>, Connection::resume(bytes, config, local, now)
//! ```
//!
//! After any of `handle_*`, `write`, `read`, `finish`, `request`, `close`: call `poll_transmit` until `None`, `poll` until
//! `None`, then `poll_timeout` again.

#![forbid(unsafe_code)]

pub mod client;
mod cmac;
pub mod cwnd;
mod decision;
pub mod history;
pub mod keys;
pub mod nonces;
pub mod opening;
pub mod seal;
pub mod server;
pub mod time;
pub mod ucont;
pub mod verdict;

pub use keys::{KeyRing, NonceKeys};
pub use time::Time;
