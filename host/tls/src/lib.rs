//! TLS 1.3 records (RFC 8446 section 5) that any replica can make again, byte for byte.
//!
//! The ciphertext of a record depends only on the traffic key, the number of the record and its
//! plaintext. So a replica that adopts a connection has to know where records begin, since the
//! client may hold half of one. [`Response`] is the rule that gives this for any TCP sequence
//! number of a response. [`TrafficSecret`] derives the keys, [`RecordKey`] seals records, and
//! [`Receiver`] opens the client's records.
//!
//! This crate reads and writes no sockets and does no handshakes. `docs/tls.md` describes the rule.

#![forbid(unsafe_code)]

mod layout;
mod plan;
mod receive;
mod response;
mod seal;
mod secret;
mod source;
mod state;
mod writer;

pub use plan::{Needed, PlanError, Resumption};
pub use receive::{MAX_RECORD_BYTES, Message, Receiver, record_bytes};
pub use response::{MAX_RESPONSE_RECORD, Record, Response};
pub use seal::{
    CLOSE_NOTIFY, ContentType, KEY_UPDATE, MAX_PLAINTEXT_BYTES, MAX_RECORDS, OVERHEAD_BYTES, RecordKey,
};
pub use secret::{CipherSuite, TrafficSecret};
pub use source::{Answers, Source};
pub use state::{MAX_STATE_BYTES, Place, Position, State, StateError, flow_place};
pub use writer::Writer;

/// Why a record cannot be made or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The response would need more records than the rest of its key may seal.
    #[error(
        "the response needs records beyond number {MAX_RESPONSE_RECORD} of its key: update the key before it"
    )]
    ResponseTooLong,
    /// The key has sealed as many records as it may.
    #[error("a key seals {MAX_RECORDS} records at most: update it")]
    KeySpent,
    /// The plaintext does not fit into one record.
    #[error("a record holds {MAX_PLAINTEXT_BYTES} bytes of plaintext at most")]
    PlaintextTooLong,
    /// The record is not authentic: another key or number, or changed on its way (alert 20).
    #[error("the record was not sealed with this key under this number")]
    BadRecord,
    /// The record is longer than the largest that is allowed (alert 22).
    #[error("the record is longer than TLS 1.3 allows")]
    RecordTooLong,
    /// The record is authentic, but clients must not send its content after the handshake (alert
    /// 10).
    #[error("the record holds no data, alert or KeyUpdate")]
    UnexpectedMessage,
    /// Plaintext was given outside of a response, or beyond its length.
    #[error("plaintext outside of a response")]
    NoResponse,
    /// The secret's length is not that of the cipher suite's hash.
    #[error("a traffic secret of this cipher suite has {expected} bytes, not {actual}")]
    SecretLength {
        /// Bytes that the cipher suite's hash has.
        expected: usize,
        /// Bytes that were given.
        actual: usize,
    },
}
