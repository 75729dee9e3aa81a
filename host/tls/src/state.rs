//! What another replica needs to continue a TLS connection, and how it is stored.
//!
//! A [`State`] has the [record](rivulet_trods::Record) that TRODS stores for a plain HTTP connection, in numbers of
//! plaintext, and for each direction where in TCP and in TLS that plaintext lies. The stored form is encrypted and
//! authenticated under the service's keys, as TRODS's records are, because it has the traffic secrets.

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

/// A place between two records in one direction of a connection.
#[derive(Clone, Debug)]
pub struct Position {
    /// The traffic secret of the record that begins here.
    pub secret: TrafficSecret,
    /// KeyUpdates before it.
    pub generation: u32,
    /// Its number under this secret.
    pub record: u64,
    /// Its TCP sequence number.
    pub sequence: u32,
}

impl Position {
    /// A position behind this one, after this many KeyUpdates.
    pub(crate) fn after(&self, updates: u32, record: u64, sequence: u32) -> Position {
        let mut secret = self.secret.clone();
        for _ in 0..updates {
            secret = secret.next_generation();
        }
        Position { secret, generation: self.generation.wrapping_add(updates), record, sequence }
    }
}

/// Where a response lies in the stream.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its first record.
    pub position: Position,
    /// A KeyUpdate stands right before it.
    pub is_updated: bool,
    /// Its records.
    pub response: Response,
}

impl Place {
    /// Bytes of a KeyUpdate in the stream.
    pub const KEY_UPDATE_BYTES: u64 = KEY_UPDATE_BYTES;

    /// The place behind it.
    #[must_use]
    pub fn end(&self) -> Position {
        self.position.after(0, self.response.next_record(), self.response.next_sequence())
    }
}

/// Everything that another replica needs to continue a connection.
///
/// `{:?}` shows neither secrets nor what client and server sent.
#[derive(Clone)]
pub struct State {
    /// TCP's options and the HTTP messages, as TRODS stores them. Lengths, `passed`, `response_at` and `request_at` count
    /// plaintext. `client_fin` means that the client's plaintext ends: it sent a `close_notify`, or a FIN.
    pub http: Record,
    /// Where the first of `http.responses` begins, with a KeyUpdate before it if there is one; without a response, where
    /// the next one will.
    pub write: Position,
    /// Where the first record of the client begins that is not part of this state. The client's bytes before it may be
    /// acknowledged, and no others.
    pub read: Position,
    /// Bit `i`: a KeyUpdate stands right before response `i`. Bit `http.responses.len()`: the client asked for one, and the
    /// next response follows it.
    pub key_updates: u16,
    /// The client's FIN stands at `read.sequence`, and may be acknowledged.
    pub client_fin: bool,
}

/// Why bytes are not a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// It was not sealed by this service for this place, or with a key that is gone.
    #[error("not sealed for this place with a key of this service")]
    Seal,
    /// It begins otherwise: something else, or of another version.
    #[error("no TLS state of this version")]
    Magic,
    /// It ends early or is too long.
    #[error("damaged TLS state")]
    Damaged,
    /// A field has a value that no state has.
    #[error("TLS state: {0} is impossible")]
    Field(&'static str),
    /// The HTTP part is no record of TRODS.
    #[error("TLS state, its HTTP part: {0}")]
    Http(#[from] RecordError),
}

impl State {
    /// The connection's ends.
    #[must_use]
    pub fn tuple(&self) -> Tuple {
        self.http.tuple
    }

    /// The encoded state, which has the secrets in the clear. It is wiped when it is dropped.
    #[must_use]
    pub fn encode(&self) -> Zeroizing<Vec<u8>> {
        let http = self.http.encode();
        // Growth would leave copies of the secrets behind.
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

    /// Decodes a state and checks it: its HTTP part is a record of TRODS, all responses have a known length, and their
    /// records fit under their keys.
    ///
    /// # Errors
    /// The first rule broken.
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

    /// The state as it is stored under this place, which is its key in the store: [`flow_place`], or one of TRODS's places.
    /// None without keys.
    ///
    /// The associated data is the place, and each service and epoch has its own key, so the bytes are valid at this place
    /// of this service alone. Flow and version are sealed too.
    #[must_use]
    pub fn seal(&self, keys: &RecordKeys, place: &str) -> Option<Vec<u8>> {
        keys.seal(place, &self.encode())
    }

    /// Opens what [`seal`](Self::seal) made for this place.
    ///
    /// An attacker with write access to the store can put back an older state of the same place. The caller must compare
    /// [`Record::age`] with those it knows; [`Resumption::begin`](crate::Resumption::begin) refuses a client that has
    /// acknowledged more than the state allows.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn open(keys: &RecordKeys, place: &str, sealed: &[u8]) -> Result<State, StateError> {
        let opened = Zeroizing::new(keys.open(place, sealed).ok_or(StateError::Seal)?);
        State::decode(&opened)
    }

    /// [`open`](Self::open) of the state of this flow, from its [`flow_place`].
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

    /// Removes responses that the client has acknowledged with this TCP sequence number. A number that was never sent changes
    /// nothing, and a response that ends the connection stays.
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

    /// Where each response lies in the stream. `None` if the length of one is not known; a decoded state knows all.
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
    /// The record that TRODS stores for the connection: [`tcp_record`](Self::tcp_record) with all responses as one, and the
    /// encoded state.
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

/// The place of a flow's state in a store that holds one state of each flow.
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

// A bit for each response, and one more.
const _: () = assert!(MAX_RESPONSES < 16);
