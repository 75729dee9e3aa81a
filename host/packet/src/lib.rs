//! The Rivulet wire format, `docs/wire-format.md` as code.
//!
//! Parsing returns views of the received bytes, and building writes into the given buffer: nothing
//! here allocates, reads a clock or opens a socket. Every kind of malformed input has its own error
//! with a position ([`WireError`]), and no input makes a parser panic.
//!
//! The layers, outermost first:
//!
//! * [`option`]: the TCP option and the classes;
//! * [`option`]: the TCP option and the classes;
//! * [`request`], with [`tor`], [`continuation`] and [`proof`]: what clients send;
//! * [`response`], with [`delta`]: what servers send;
//! * [`heartbeat`]: replicas' heartbeats and the ToR's answers;
//! * [`nonce`]: HalfSipHash-2-4 and the nonces derived from it;
//! * [`slot`]: the ToR's choice of a replica for a packet;
//! * [`checksum`]: the Internet checksum, whole and incremental.

#![cfg_attr(not(any(feature = "std", test)), no_std)]
#![forbid(unsafe_code)]

mod bytes;
pub mod checksum;
pub mod continuation;
#[cfg(any(test, not(feature = "std")))]
mod crc;
pub mod delta;
pub mod error;
pub mod eth;
mod group;
pub mod heartbeat;
pub mod ip;
mod lists;
pub mod nonce;
pub mod option;
pub mod proof;
pub mod request;
pub mod response;
pub mod segment;
pub mod slot;
pub mod tor;

pub use continuation::{LEAST_CLOCK, MAX_GAIN, Mac, SealedContinuation, TransportContinuation};
pub use delta::Delta;
pub use error::{BuildError, WireError};
pub use eth::EthHeader;
pub use heartbeat::{Answer, Heartbeat, TorKey};
pub use ip::{Ecn, IpHeader};
pub use lists::{MAX_UCONTS, Ucont, Uconts};
pub use nonce::{NonceKey, TaggedNonces};
pub use option::{Class, RequestClass, ResponseClass, RivuletOption};
pub use proof::{EntryKind, MAX_ENTRIES, Proof, ProofEntry};
pub use request::{Input, MAX_ATTEMPT, MAX_WANTS, Request, RequestBuilder, Want};
pub use response::{Body, Consumed, GroupMember, MAX_GROUP, NewContinuation, Response};
pub use segment::{Segment, SegmentHeader, SynOptions, TcpFlags};
pub use tor::TorBlock;
