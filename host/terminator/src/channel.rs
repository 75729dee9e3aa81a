//! The TLS connection after its handshake. This crate makes the records of TLS 1.3, so that another
//! replica can make the same ones; rustls serves TLS 1.2.

use std::io::{Read, Write};

use rivulet_tls::{
    CLOSE_NOTIFY, ContentType, Error, KEY_UPDATE, MAX_PLAINTEXT_BYTES, MAX_RESPONSE_RECORD, Message, Place,
    Position, Receiver, RecordKey, Response, State, record_bytes,
};
use rivulet_trods::Record;
use rustls::ServerConnection;

use crate::buffer::Input;
use crate::state::{ConnectionState, Direction, ResponsePlace};
use crate::track::Track;

/// Records without data that a client may send in a row: KeyUpdates, alerts that do not end the
/// connection, and empty records. Each costs processor time and completes no request.
const MAX_EMPTY_RECORDS: u32 = 32;

/// Alert descriptions (RFC 8446 section 6).
const UNEXPECTED_MESSAGE: u8 = 10;
const BAD_RECORD_MAC: u8 = 20;
const RECORD_OVERFLOW: u8 = 22;
const INTERNAL_ERROR: u8 = 80;
const USER_CANCELED: u8 = 90;

/// The client violated TLS. It gets this alert, and the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    pub(crate) alert: Option<u8>,
}

/// Whether the client may send more data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// The client may send more data.
    Open,
    /// The client has sent `close_notify`.
    Closed,
}

/// A connection after its handshake.
#[derive(Debug)]
pub(crate) enum Channel {
    /// TLS 1.3, with records made by this crate.
    Records(Box<Records>),
    /// TLS 1.2, by rustls.
    Library(Box<ServerConnection>),
}

/// The records of a TLS 1.3 connection.
#[derive(Debug)]
pub(crate) struct Records {
    receiver: Receiver,
    receiver_generation: u32,
    received_bytes: u64,
    empty_records: u32,
    sent: Direction,
    key: RecordKey,
    /// The client has requested a KeyUpdate, which is sent before the next response.
    update_due: bool,
    response: ResponsePlace,
    /// Positions of plaintext in the streams, for a protected connection.
    track: Option<Box<Track>>,
    /// Offset in the client's stream at which the records that were opened last begin.
    last_begun: u64,
}

impl Records {
    pub(crate) fn new(receiver: Receiver, received_bytes: u64, sent: Direction) -> Self {
        Self {
            receiver,
            receiver_generation: 0,
            received_bytes,
            empty_records: 0,
            key: sent.secret.record_key(),
            sent,
            update_due: false,
            response: ResponsePlace::default(),
            track: None,
            last_begun: received_bytes,
        }
    }

    /// The records of an adopted connection, with the positions in `track`. `offsets`: where the
    /// state begins in the streams of the client and of the server.
    pub(crate) fn of_state(state: &State, track: Track, offsets: (u64, u64)) -> Self {
        let receiver = Receiver::new(state.read.secret.clone(), state.read.record);
        let mut records = Self::new(receiver, offsets.0, direction(&state.write, offsets.1));
        records.receiver_generation = state.read.generation;
        records.update_due = state.key_updates >> state.http.responses.len() & 1 != 0;
        records.track = Some(Box::new(track));
        records
    }

    /// Sets the position and stream offset of the next record to the client.
    pub(crate) fn continue_at(&mut self, position: &Position, offset: u64) {
        self.sent = direction(position, offset);
        self.key = position.secret.record_key();
    }

    /// Starts to keep positions as [`track`](Self::track) does, from those of a state.
    pub(crate) fn set_track(&mut self, track: Track) {
        self.track = Some(Box::new(track));
    }

    /// Starts to keep the positions of plaintext and records.
    pub(crate) fn track(&mut self) {
        self.track = Some(Box::new(Track::new(self.read_position())));
    }

    pub(crate) fn tracked(&self) -> Option<&Track> {
        self.track.as_deref()
    }

    pub(crate) fn tracked_mut(&mut self) -> Option<&mut Track> {
        self.track.as_deref_mut()
    }

    /// Bytes of the stream to the client that were sealed so far.
    pub(crate) fn sent_offset(&self) -> u64 {
        self.sent.offset
    }

    /// Offset in the client's stream at which the records that were opened last begin.
    pub(crate) fn last_begun(&self) -> u64 {
        self.last_begun
    }

    fn read_position(&self) -> Position {
        Position {
            secret: self.receiver.secret().clone(),
            generation: self.receiver_generation,
            record: self.receiver.next_record(),
            sequence: self.received_bytes as u32,
        }
    }

    /// The connection's state with the flow's record. `None` if that record ends in the middle of
    /// one of the client's TLS records, or begins where no response begins.
    pub(crate) fn state_of(&self, http: Record) -> Option<State> {
        let track = self.tracked()?;
        let count = http.responses.len();
        let first = track.places.iter().position(|place| place.plaintext as u32 == http.response_at);
        let (write, mut key_updates) = match (first, track.places.back()) {
            (Some(first), _) => {
                let placed = track.places.iter().skip(first).take(count + 1).enumerate();
                let bits = placed.map(|(n, place)| u16::from(place.place.is_updated) << n);
                (track.places[first].begin.clone(), bits.sum())
            }
            (None, Some(last)) => {
                if last.plaintext_end() as u32 != http.response_at {
                    return None;
                }
                (last.place.end(), 0)
            }
            (None, None) => (position(&self.sent), 0),
        };
        if self.update_due && first.map_or(0, |first| track.places.len() - first) == count {
            key_updates |= 1 << count;
        }
        let end = http.request_at.wrapping_add(http.requests.len() as u32);
        let read = track.marks.iter().rev().find(|mark| mark.plaintext as u32 == end)?.position.clone();
        Some(State { http, write, read, key_updates, client_fin: false })
    }

    pub(crate) fn state(&self) -> ConnectionState<'_> {
        ConnectionState {
            received: Direction {
                secret: self.receiver.secret().clone(),
                generation: self.receiver_generation,
                next_record: self.receiver.next_record(),
                offset: self.received_bytes,
            },
            sent: self.sent.clone(),
            response: &self.response,
        }
    }

    /// Opens the records at the beginning of `input`, until `plaintext` has `limit` bytes.
    fn receive(
        &mut self,
        input: &mut Input,
        plaintext: &mut Vec<u8>,
        limit: usize,
    ) -> Result<Received, Error> {
        self.last_begun = self.received_bytes;
        while plaintext.len() < limit {
            let Some(length) = record_bytes(input.data())? else { break };
            let Some(record) = input.data_mut().get_mut(..length) else { break };
            let message = self.receiver.receive(record)?;
            self.empty_records += 1;
            let before = plaintext.len();
            let mut is_closed = false;
            match message {
                Message::Data(data) => {
                    if !data.is_empty() {
                        self.empty_records = 0;
                    }
                    plaintext.extend_from_slice(data);
                }
                Message::KeyUpdate { requested } => {
                    self.receiver_generation += 1;
                    self.update_due |= requested;
                }
                Message::Alert(USER_CANCELED) => {}
                // Any other alert ends the connection at once (section 6.2).
                Message::CloseNotify | Message::Alert(_) => is_closed = true,
            }
            self.received_bytes += length as u64;
            input.consume(length);
            if self.track.is_some() {
                let position = self.read_position();
                self.track
                    .iter_mut()
                    .for_each(|track| track.receive(plaintext.len() - before, position.clone()));
            }
            if is_closed {
                return Ok(Received::Closed);
            }
            if self.empty_records > MAX_EMPTY_RECORDS {
                return Err(Error::UnexpectedMessage);
            }
        }
        Ok(Received::Open)
    }

    fn seal(&mut self, content: ContentType, plaintext: &[u8], out: &mut Vec<u8>) {
        let before = out.len();
        self.key
            .seal(self.sent.next_record, content, plaintext, out)
            .expect("records are cut to size, and the key is updated before it is spent");
        self.sent.next_record += 1;
        self.sent.offset += (out.len() - before) as u64;
    }

    fn update_key(&mut self, out: &mut Vec<u8>) {
        self.seal(ContentType::Handshake, &KEY_UPDATE, out);
        self.sent.secret = self.sent.secret.next_generation();
        self.sent.generation += 1;
        self.sent.next_record = 0;
        self.key = self.sent.secret.record_key();
        self.update_due = false;
    }

    fn begin_response(&mut self, head: &[u8], body: u64, out: &mut Vec<u8>) -> Option<Response> {
        let begin = position(&self.sent);
        let mut is_updated = self.update_due;
        if self.update_due {
            self.update_key(out);
        }
        let place =
            |sent: &Direction| Response::new(sent.offset as u32, sent.next_record, head.len() as u64, body);
        let response = place(&self.sent).or_else(|_| {
            if is_updated && let Some(track) = &mut self.track {
                // A state has no place for two KeyUpdates in a row.
                track.is_unplaced = true;
            }
            is_updated = true;
            self.update_key(out);
            place(&self.sent)
        });
        if let (Some(track), Ok(response)) = (&mut self.track, response) {
            let placed = Place { position: position(&self.sent), is_updated, response };
            track.begin_response(begin, placed, self.sent.offset);
        }
        self.response.offset = self.sent.offset;
        self.response.record = self.sent.next_record;
        self.response.head.clear();
        self.response.head.extend_from_slice(head);
        self.response.body = body;
        response.ok()
    }
}

impl Channel {
    /// Opens the records at the beginning of `input`, until `plaintext` has about `limit` bytes.
    /// Appends replies of rustls to `out`, such as the refusal to renegotiate.
    pub(crate) fn receive(
        &mut self,
        input: &mut Input,
        plaintext: &mut Vec<u8>,
        limit: usize,
        out: &mut Vec<u8>,
    ) -> Result<Received, Broken> {
        match self {
            Self::Records(records) => {
                records.receive(input, plaintext, limit).map_err(|error| Broken { alert: Some(alert(error)) })
            }
            Self::Library(tls) => {
                let received = receive_by_library(tls, input, plaintext, limit);
                write_library(tls, out);
                received
            }
        }
    }

    /// Begins a response with this head and body length, and returns its layout in the stream.
    /// `None` if the record rule does not apply; the caller then uses [`send`](Self::send).
    pub(crate) fn begin_response(&mut self, head: &[u8], body: u64, out: &mut Vec<u8>) -> Option<Response> {
        match self {
            Self::Records(records) => records.begin_response(head, body, out),
            Self::Library(_) => None,
        }
    }

    /// Seals one record of a response that [began](Self::begin_response).
    pub(crate) fn send_record(&mut self, number: u64, plaintext: &[u8], out: &mut Vec<u8>) {
        if let Self::Records(records) = self {
            debug_assert_eq!(number, records.sent.next_record);
            records.track.iter_mut().for_each(|track| track.send(plaintext));
            records.seal(ContentType::ApplicationData, plaintext, out);
        }
    }

    /// Sends bytes in records that end where the bytes end. Another replica cannot make these
    /// records.
    pub(crate) fn send(&mut self, plaintext: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::Records(records) => {
                records.track.iter_mut().for_each(|track| track.is_unplaced = true);
                for part in plaintext.chunks(MAX_PLAINTEXT_BYTES) {
                    if records.update_due || records.sent.next_record > MAX_RESPONSE_RECORD {
                        records.update_key(out);
                    }
                    records.seal(ContentType::ApplicationData, part, out);
                }
            }
            Self::Library(tls) => {
                // rustls's buffer has no limit, and writing to a Vec does not fail.
                let _ = tls.writer().write_all(plaintext);
                write_library(tls, out);
            }
        }
    }

    /// Closes the direction to the client with `close_notify`.
    pub(crate) fn close(&mut self, out: &mut Vec<u8>) {
        match self {
            Self::Records(records) => records.seal(ContentType::Alert, &CLOSE_NOTIFY, out),
            Self::Library(tls) => {
                tls.send_close_notify();
                write_library(tls, out);
            }
        }
    }

    /// Sends the alert with which the connection ends. rustls has already sent its own.
    pub(crate) fn send_alert(&mut self, broken: Broken, out: &mut Vec<u8>) {
        if let (Self::Records(records), Some(alert)) = (self, broken.alert) {
            records.seal(ContentType::Alert, &[2, alert], out);
        }
    }

    /// TLS 1.3's records.
    pub(crate) fn records(&self) -> Option<&Records> {
        match self {
            Self::Records(records) => Some(records),
            Self::Library(_) => None,
        }
    }

    /// TLS 1.3's records.
    pub(crate) fn records_mut(&mut self) -> Option<&mut Records> {
        match self {
            Self::Records(records) => Some(records),
            Self::Library(_) => None,
        }
    }

    /// The state with which another replica can continue; `None` for TLS 1.2.
    pub(crate) fn state(&self) -> Option<ConnectionState<'_>> {
        match self {
            Self::Records(records) => Some(records.state()),
            Self::Library(_) => None,
        }
    }
}

fn position(direction: &Direction) -> Position {
    Position {
        secret: direction.secret.clone(),
        generation: direction.generation,
        record: direction.next_record,
        // Sequence numbers wrap.
        sequence: direction.offset as u32,
    }
}

fn direction(position: &Position, offset: u64) -> Direction {
    Direction {
        secret: position.secret.clone(),
        generation: position.generation,
        next_record: position.record,
        offset,
    }
}

fn receive_by_library(
    tls: &mut ServerConnection,
    input: &mut Input,
    plaintext: &mut Vec<u8>,
    limit: usize,
) -> Result<Received, Broken> {
    let broken = |_| Broken { alert: None };
    loop {
        let state = tls.process_new_packets().map_err(broken)?;
        let count = state.plaintext_bytes_to_read();
        if count > 0 {
            let start = plaintext.len();
            plaintext.resize(start + count, 0);
            tls.reader().read_exact(&mut plaintext[start..]).map_err(|_| Broken { alert: None })?;
        }
        if state.peer_has_closed() {
            return Ok(Received::Closed);
        }
        if input.is_empty() || plaintext.len() >= limit || !tls.wants_read() {
            return Ok(Received::Open);
        }
        let count = tls.read_tls(&mut input.data()).map_err(|_| Broken { alert: None })?;
        if count == 0 {
            return Ok(Received::Open);
        }
        input.consume(count);
    }
}

/// Appends the bytes that rustls wants to send.
pub(crate) fn write_library(tls: &mut ServerConnection, out: &mut Vec<u8>) {
    // Writing to a Vec does not fail.
    while tls.wants_write() && tls.write_tls(out).is_ok() {}
}

fn alert(error: Error) -> u8 {
    match error {
        Error::BadRecord => BAD_RECORD_MAC,
        Error::RecordTooLong => RECORD_OVERFLOW,
        Error::UnexpectedMessage => UNEXPECTED_MESSAGE,
        _ => INTERNAL_ERROR,
    }
}
