//! The state with which another replica can continue a TLS connection, and its stored form.
//!
//! A [`State`] has the [record](rivulet_trods::Record) that TRODS stores for a plain HTTP
//! connection, with positions in the plaintext. For each direction it adds the corresponding
//! position in TCP and TLS. Like TRODS's records, the stored form is encrypted and authenticated
//! under the service's keys, because it has the traffic secrets.

use std::fmt;

use rivulet_trods::{
    Record, Tuple,
    record::{Body, MAX_RECORD, MAX_RESPONSES, RecordError, TlsState},
    store::RecordKeys,
};
use zeroize::Zeroizing;

use crate::{
    CipherSuite, Response, TrafficSecret,
    layout::{KEY_UPDATE_BYTES, Kind, Layout},
    seal::MAX_RECORDS,
    secret::MAX_SECRET_BYTES,
};

/// The first bytes of an encoded state; the last of them is the version of the format.
const MAGIC: [u8; 4] = *b"TLS\x01";
const FIXED_BYTES: usize = MAGIC.len() + 2 + 1 + 2;
const POSITION_BYTES: usize = 4 + 8 + 4;
/// Bytes of the longest encoded state.
pub const MAX_STATE_BYTES: usize = FIXED_BYTES + 2 * (POSITION_BYTES + MAX_SECRET_BYTES) + MAX_RECORD;

/// Flag: the client's FIN was received.
const CLIENT_FIN: u8 = 1;

/// A position between two records in one direction of a connection.
#[derive(Clone, Debug)]
pub struct Position {
    /// Traffic secret of the record that begins here.
    pub secret: TrafficSecret,
    /// KeyUpdates before that record.
    pub generation: u32,
    /// Number of that record under the secret.
    pub record: u64,
    /// TCP sequence number of that record.
    pub sequence: u32,
}

impl Position {
    /// The position after this one and after `updates` KeyUpdates, with this record and sequence
    /// number.
    pub(crate) fn after(&self, updates: u32, record: u64, sequence: u32) -> Position {
        let mut secret = self.secret.clone();
        for _ in 0..updates {
            secret = secret.next_generation();
        }
        Position { secret, generation: self.generation.wrapping_add(updates), record, sequence }
    }
}

/// Position of a response in the stream.
#[derive(Clone, Debug)]
pub struct Place {
    /// Position of its first record.
    pub position: Position,
    /// Whether a KeyUpdate comes right before it.
    pub is_updated: bool,
    /// Its records.
    pub response: Response,
}

impl Place {
    /// Bytes of a KeyUpdate in the stream.
    pub const KEY_UPDATE_BYTES: u64 = KEY_UPDATE_BYTES;

    /// The position after it.
    #[must_use]
    pub fn end(&self) -> Position {
        self.position.after(0, self.response.next_record(), self.response.next_sequence())
    }
}

/// The state with which another replica can continue a connection.
///
/// `{:?}` shows neither secrets nor data of client and server.
#[derive(Clone)]
pub struct State {
    /// TCP's options and the HTTP messages, as TRODS stores them. Lengths, `passed`, `response_at`
    /// and `request_at` count plaintext. `client_fin`: the client has ended its data by a
    /// `close_notify` or a FIN.
    pub http: Record,
    /// Where the first of `http.responses` begins, including a KeyUpdate before it. Without
    /// responses, where the next one will begin.
    pub write: Position,
    /// Where the first record of the client begins that is not part of this state. Only the
    /// client's bytes before it may be acknowledged.
    pub read: Position,
    /// Bit `i`: a KeyUpdate comes right before response `i`. Bit `http.responses.len()`: the client
    /// has requested one, so the next response follows a KeyUpdate.
    pub key_updates: u16,
    /// The client's FIN is at `read.sequence`, and may be acknowledged.
    pub client_fin: bool,
}

/// Why bytes are not a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// Not sealed by this service for this place, or sealed with a key that no longer exists.
    #[error("not sealed for this place with a key of this service")]
    Seal,
    /// The first bytes are not those of a TLS state of this version.
    #[error("no TLS state of this version")]
    Magic,
    /// It is too short or too long.
    #[error("damaged TLS state")]
    Damaged,
    /// A field has a value that no state has.
    #[error("TLS state: {0} is impossible")]
    Field(&'static str),
    /// The HTTP part is not a record of TRODS.
    #[error("TLS state, its HTTP part: {0}")]
    Http(#[from] RecordError),
}

impl State {
    /// The client's and the service's address of the connection.
    #[must_use]
    pub fn tuple(&self) -> Tuple {
        self.http.tuple
    }

    /// The encoded state, which has the secrets in the clear. It is wiped when it is dropped.
    #[must_use]
    pub fn encode(&self) -> Zeroizing<Vec<u8>> {
        let http = self.http.encode();
        // Sized in advance, because growth would leave copies of the secrets in memory.
        let mut out = Zeroizing::new(Vec::with_capacity(MAX_STATE_BYTES - MAX_RECORD + http.len()));
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.write.secret.suite().number().to_be_bytes());
        out.push(if self.client_fin { CLIENT_FIN } else { 0 });
        out.extend_from_slice(&self.key_updates.to_be_bytes());
        for position in [&self.write, &self.read] {
            out.extend_from_slice(position.secret.bytes());
            out.extend_from_slice(&position.generation.to_be_bytes());
            out.extend_from_slice(&position.record.to_be_bytes());
            out.extend_from_slice(&position.sequence.to_be_bytes());
        }
        out.extend_from_slice(&http);
        out
    }

    /// Decodes a state and checks it: its HTTP part must be a record of TRODS, all responses must
    /// have a known length, and their records must fit under their keys.
    ///
    /// # Errors
    /// The first rule that is violated.
    pub fn decode(bytes: &[u8]) -> Result<State, StateError> {
        let rest = bytes.strip_prefix(&MAGIC).ok_or(StateError::Magic)?;
        if bytes.len() > MAX_STATE_BYTES {
            return Err(StateError::Damaged);
        }
        let mut from = Reader(rest);
        let suite = CipherSuite::from_number(from.array().map(u16::from_be_bytes)?)
            .ok_or(StateError::Field("the cipher suite"))?;
        let [flags] = from.array()?;
        let key_updates = from.array().map(u16::from_be_bytes)?;
        let (write, read) = (from.position(suite)?, from.position(suite)?);
        let http = Record::decode(from.0)?;
        let state = State { http, write, read, key_updates, client_fin: flags & CLIENT_FIN != 0 };
        if flags & !CLIENT_FIN != 0 {
            return Err(StateError::Field("a flag"));
        }
        if state.client_fin && !state.http.client_fin {
            return Err(StateError::Field("a FIN in the middle of the client's data"));
        }
        if state.write.record >= MAX_RECORDS {
            return Err(StateError::Field("the number of the next record"));
        }
        if u32::from(key_updates) >> (state.http.responses.len() + 1) != 0 {
            return Err(StateError::Field("a KeyUpdate behind the last response"));
        }
        state.layout().ok_or(StateError::Field("the length of a response"))?;
        Ok(state)
    }

    /// The state in its stored form for this place, its key in the store: [`flow_place`], or one of
    /// TRODS's places. `None` without keys.
    ///
    /// The associated data is the place, and each service and epoch has a different key, so the
    /// bytes are valid only at this place of this service. The flow and the version are sealed,
    /// too.
    #[must_use]
    pub fn seal(&self, keys: &RecordKeys, place: &str) -> Option<Vec<u8>> {
        keys.seal(place, &self.encode())
    }

    /// Opens the result of [`seal`](Self::seal) for this place.
    ///
    /// An attacker with write access to the store can restore an older state of the same place. The
    /// caller must compare [`Record::age`] with the ages that it knows.
    /// [`Resumption::begin`](crate::Resumption::begin) refuses a client that has acknowledged more
    /// than the state allows.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn open(keys: &RecordKeys, place: &str, sealed: &[u8]) -> Result<State, StateError> {
        let opened = Zeroizing::new(keys.open(place, sealed).ok_or(StateError::Seal)?);
        State::decode(&opened)
    }

    /// Opens the state of this flow from its [`flow_place`], as [`open`](Self::open) does.
    ///
    /// # Errors
    /// [`StateError`]; [`StateError::Field`] if it is the state of another flow.
    pub fn open_flow(keys: &RecordKeys, tuple: &Tuple, sealed: &[u8]) -> Result<State, StateError> {
        let state = State::open(keys, &flow_place(tuple), sealed)?;
        if state.tuple() != *tuple {
            return Err(StateError::Field("another flow"));
        }
        Ok(state)
    }

    /// Removes responses that the client has acknowledged with this TCP sequence number. A number
    /// that was never sent changes nothing. A response that ends the connection stays.
    pub fn drop_acknowledged(&mut self, acked: u32) {
        let Some(layout) = self.layout() else { return };
        let Some(offset) = layout.offset_of(self.write.sequence, acked) else { return };
        let (mut end, write) = (0, self.write.clone());
        for part in &layout.parts {
            end += part.bytes;
            let Kind::Response(_, response) = part.kind else { continue };
            if end > offset || part.sent < part.bytes || self.http.responses[0].close {
                break;
            }
            let dropped = self.http.responses.remove(0);
            // Sequence numbers wrap.
            self.http.response_at = self.http.response_at.wrapping_add(dropped.length as u32);
            self.key_updates >>= 1;
            self.write = write.after(part.updates, response.next_record(), response.next_sequence());
        }
    }

    /// Positions of the responses in the stream. `None` if the length of one is unknown, which does
    /// not occur in a decoded state.
    #[must_use]
    pub fn places(&self) -> Option<Vec<Place>> {
        let mut places = Vec::with_capacity(self.http.responses.len());
        let mut is_updated = false;
        for part in self.layout()?.parts {
            match part.kind {
                Kind::KeyUpdate => is_updated = true,
                Kind::Response(_, response) => {
                    let position = self.write.after(part.updates, part.record, part.sequence);
                    places.push(Place { position, is_updated: std::mem::take(&mut is_updated), response });
                }
                Kind::CloseNotify => {}
            }
        }
        Some(places)
    }

    pub(crate) fn layout(&self) -> Option<Layout> {
        Layout::of(&self.http, self.key_updates, self.write.record, self.write.sequence)
    }

    /// The connection's TCP state as a record, in sequence numbers of the ciphertext, from which
    /// [`wake`](rivulet_trods::wake) makes probes, reads the client's answer and describes the
    /// socket to restore.
    #[must_use]
    pub fn tcp_record(&self) -> Record {
        let parts = self.layout().map(Layout::into_tcp_parts).unwrap_or_default();
        let response = |(length, passed)| rivulet_trods::record::Response {
            length,
            passed,
            close: false,
            body: Body::Whole(Vec::new()),
        };
        Record {
            response_at: self.write.sequence,
            responses: parts.into_iter().map(response).collect(),
            request_at: self.read.sequence,
            requests: Vec::new(),
            client_fin: self.client_fin,
            ..self.http.clone()
        }
    }
}

impl State {
    /// The record that TRODS stores for the connection: [`tcp_record`](Self::tcp_record) with all
    /// responses as one, and the encoded state.
    #[must_use]
    pub fn stored_record(&self) -> Record {
        let mut record = self.tcp_record();
        let sum = |of: fn(&rivulet_trods::record::Response) -> u64| record.responses.iter().map(of).sum();
        let (length, passed) = (sum(|response| response.length), sum(|response| response.passed));
        let close = self.http.responses.last().is_some_and(|last| last.close);
        let whole = rivulet_trods::record::Response { length, passed, close, body: Body::Whole(Vec::new()) };
        record.responses = if length > 0 { vec![whole] } else { Vec::new() };
        record.tls = Some(TlsState::new(self.encode().to_vec()));
        record
    }
}

/// Key of a flow's state in a store that has one state for each flow.
#[must_use]
pub fn flow_place(tuple: &Tuple) -> String {
    format!("tls.{}.{}", tuple.service, tuple.client)
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("tuple", &self.http.tuple)
            .field("version", &self.http.version)
            .field("write", &self.write)
            .field("read", &self.read)
            .field("responses", &self.http.responses.len())
            .finish_non_exhaustive()
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], StateError> {
        let (first, rest) = self.0.split_at_checked(count).ok_or(StateError::Damaged)?;
        self.0 = rest;
        Ok(first)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], StateError> {
        let (first, rest) = self.0.split_first_chunk().ok_or(StateError::Damaged)?;
        self.0 = rest;
        Ok(*first)
    }

    fn position(&mut self, suite: CipherSuite) -> Result<Position, StateError> {
        let secret = self.bytes(suite.secret_bytes())?;
        let secret = TrafficSecret::new(suite, secret).map_err(|_| StateError::Damaged)?;
        Ok(Position {
            secret,
            generation: self.array().map(u32::from_be_bytes)?,
            record: self.array().map(u64::from_be_bytes)?,
            sequence: self.array().map(u32::from_be_bytes)?,
        })
    }
}

// One bit for each response, and one more.
const _: () = assert!(MAX_RESPONSES < 16);
