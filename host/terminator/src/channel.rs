//! The TLS connection after its handshake: TLS 1.3 by records of our own, which another replica can make again, and
//! TLS 1.2 by rustls.

use std::io::{Read, Write};

use rivulet_tls::{
    CLOSE_NOTIFY, ContentType, Error, KEY_UPDATE, MAX_PLAINTEXT_BYTES, MAX_RESPONSE_RECORD, Message,
    Receiver, RecordKey, Response, record_bytes,
};
use rustls::ServerConnection;

use crate::buffer::Input;
use crate::state::{ConnectionState, Direction, ResponsePlace};

/// Records without data that a client may send in a row: KeyUpdates, alerts that end nothing, and empty ones. Each
/// costs processor time and none brings a request further.
const MAX_EMPTY_RECORDS: u32 = 32;

/// Alert descriptions (RFC 8446 section 6).
const UNEXPECTED_MESSAGE: u8 = 10;
const BAD_RECORD_MAC: u8 = 20;
const RECORD_OVERFLOW: u8 = 22;
const INTERNAL_ERROR: u8 = 80;
const USER_CANCELED: u8 = 90;

/// The client broke TLS. `alert` is sent to it and the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    pub(crate) alert: Option<u8>,
}

/// The end of the client's data.
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
    /// TLS 1.3: records of our own.
    Records(Box<Records>),
    /// TLS 1.2, by rustls.
    Library(Box<ServerConnection>),
}

/// TLS 1.3 in records of our own.
#[derive(Debug)]
pub(crate) struct Records {
    receiver: Receiver,
    receiver_generation: u32,
    received_bytes: u64,
    empty_records: u32,
    sent: Direction,
    key: RecordKey,
    /// The client asked for a KeyUpdate. It goes before the next response.
    update_due: bool,
    response: ResponsePlace,
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
        }
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
        while plaintext.len() < limit {
            let Some(length) = record_bytes(input.data())? else { break };
            let Some(record) = input.data_mut().get_mut(..length) else { break };
            let message = self.receiver.receive(record)?;
            self.empty_records += 1;
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
                Message::CloseNotify | Message::Alert(_) => {
                    self.received_bytes += length as u64;
                    input.consume(length);
                    return Ok(Received::Closed);
                }
            }
            self.received_bytes += length as u64;
            input.consume(length);
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
        if self.update_due {
            self.update_key(out);
        }
        let place =
            |sent: &Direction| Response::new(sent.offset as u32, sent.next_record, head.len() as u64, body);
        let response = place(&self.sent).or_else(|_| {
            self.update_key(out);
            place(&self.sent)
        });
        self.response.offset = self.sent.offset;
        self.response.record = self.sent.next_record;
        self.response.head.clear();
        self.response.head.extend_from_slice(head);
        self.response.body = body;
        response.ok()
    }
}

impl Channel {
    /// Opens what `input` begins with, until `plaintext` has about `limit` bytes. Appends to `out` what rustls answers: that it
    /// does not renegotiate.
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

    /// The response that begins now and has this head and length, as it lies in the stream; `None` where the rule does not
    /// apply, and it is sent by [`send`](Self::send).
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
            records.seal(ContentType::ApplicationData, plaintext, out);
        }
    }

    /// Sends bytes in records that are cut where the bytes end. No replica can make them again.
    pub(crate) fn send(&mut self, plaintext: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::Records(records) => {
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

    /// Reports why the connection ends. rustls has sent its own alert.
    pub(crate) fn send_alert(&mut self, broken: Broken, out: &mut Vec<u8>) {
        if let (Self::Records(records), Some(alert)) = (self, broken.alert) {
            records.seal(ContentType::Alert, &[2, alert], out);
        }
    }

    /// The state that another replica needs to continue; `None` for TLS 1.2.
    pub(crate) fn state(&self) -> Option<ConnectionState<'_>> {
        match self {
            Self::Records(records) => Some(records.state()),
            Self::Library(_) => None,
        }
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

/// Appends what rustls has to send.
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
