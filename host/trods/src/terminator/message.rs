//! Messages between agent and terminator: a kind, then numbers in network order.

use std::net::{IpAddr, SocketAddr};

use crate::flow::{Asked, Reason, StoreOutcome};
use crate::record::{Handshake, MAX_STORED, Record, RecordError, Tuple};

/// Version of the messages. Agent and terminator of different versions do not work together.
pub const VERSION: u8 = 2;
/// Bytes of the longest message.
pub const MAX_MESSAGE: usize = MAX_STORED + 64;
/// Most ports of a terminator.
pub const MAX_PORTS: usize = 64;

/// A message that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// It is none of this protocol.
    #[error("malformed message")]
    Malformed,
    /// The other side has another version.
    #[error("version {0} on the other side, {VERSION} here: agent and terminator must be of one release")]
    Version(u8),
    /// The record in it.
    #[error("a record: {0}")]
    Record(#[from] RecordError),
}

/// From the terminator. Sequence numbers count from the first byte of each direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The first message: ports where the terminator listens.
    Hello(Vec<u16>),
    /// To store this record.
    Store(Asked, Box<Record>),
    /// To watch a connection that an earlier process of the agent watched, and to store its record.
    /// Handshake and version of the record are those of [`Reply::Watched`], with later versions
    /// counted by the terminator.
    Register {
        /// The terminator's names for connection and record.
        asked: Asked,
        /// The record.
        record: Box<Record>,
        /// Whether this replica had adopted the connection.
        is_adopted: bool,
    },
    /// The connection is not protected any more.
    Unprotected(Tuple, Reason),
    /// The terminator's FIN stands there, behind everything else.
    End(Tuple, u32),
    /// No replica can continue this adopted connection: the agent resets the client.
    Reset(Tuple),
}

/// From the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The answer to `Hello`.
    Welcome {
        /// What cannot be stored is held (`failure: closed`).
        closed: bool,
    },
    /// Comes before the first answer for a connection that the terminator has not adopted: what the
    /// agent knows of it, for [`Request::Register`].
    Watched {
        /// The terminator's name for the connection.
        connection: u64,
        /// Values and options of its handshake.
        handshake: Handshake,
        /// Version of its last record.
        version: u32,
    },
    /// The answer to `Store` and `Register`.
    Stored(Asked, StoreOutcome),
    /// A connection to continue; its socket comes with the message.
    Adopt {
        /// Its record.
        record: Box<Record>,
        /// The number that the client has acknowledged, at which the socket sends.
        acked: u32,
        /// End of the data that the client had sent before, if it is known.
        sent: Option<u32>,
    },
}

const HELLO: u8 = 1;
const STORE: u8 = 2;
const UNPROTECTED: u8 = 3;
const END: u8 = 4;
const RESET: u8 = 5;
const REGISTER: u8 = 6;
const WELCOME: u8 = 16;
const STORED: u8 = 17;
const ADOPT: u8 = 18;
const WATCHED: u8 = 19;

/// Flags of an encoded handshake.
const SACK: u8 = 1;
const SCALES: u8 = 2;
const TIMESTAMP: u8 = 4;
const FIRST_TIMESTAMP: u8 = 8;
const STAMPS: u8 = 16;

impl Request {
    /// The service's port of the connection; 0 of `Hello`.
    pub(super) fn port(&self) -> u16 {
        match self {
            Request::Hello(_) => 0,
            Request::Store(_, record) | Request::Register { record, .. } => record.tuple.service.port(),
            Request::Unprotected(tuple, _) | Request::End(tuple, _) | Request::Reset(tuple) => {
                tuple.service.port()
            }
        }
    }

    /// Appends the message to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Request::Hello(ports) => {
                out.extend_from_slice(&[HELLO, VERSION]);
                ports.iter().take(MAX_PORTS).for_each(|port| out.extend_from_slice(&port.to_be_bytes()));
            }
            Request::Store(asked, record) => {
                out.push(STORE);
                put_numbers(out, asked);
                record.encode_into(out);
            }
            Request::Register { asked, record, is_adopted } => {
                out.extend_from_slice(&[REGISTER, u8::from(*is_adopted)]);
                put_numbers(out, asked);
                record.encode_into(out);
            }
            Request::Unprotected(tuple, reason) => {
                let reason = Reason::ALL.iter().position(|of| of == reason).unwrap_or(0);
                out.extend_from_slice(&[UNPROTECTED, reason as u8]);
                put_tuple(out, tuple);
            }
            Request::End(tuple, at) => {
                out.push(END);
                out.extend_from_slice(&at.to_be_bytes());
                put_tuple(out, tuple);
            }
            Request::Reset(tuple) => {
                out.push(RESET);
                put_tuple(out, tuple);
            }
        }
    }

    /// Reads a message.
    ///
    /// # Errors
    /// [`MessageError`]
    pub fn decode(bytes: &[u8]) -> Result<Request, MessageError> {
        let mut from = Reader(bytes);
        let [kind] = from.array()?;
        let request = match kind {
            HELLO => {
                from.version()?;
                let mut ports = Vec::new();
                while !from.0.is_empty() && ports.len() < MAX_PORTS {
                    ports.push(from.array().map(u16::from_be_bytes)?);
                }
                Request::Hello(ports)
            }
            STORE => Request::Store(from.numbers()?, from.record()?),
            REGISTER => {
                let is_adopted = from.flag()?;
                Request::Register { asked: from.numbers()?, record: from.record()?, is_adopted }
            }
            UNPROTECTED => {
                let [reason] = from.array()?;
                let reason = *Reason::ALL.get(usize::from(reason)).ok_or(MessageError::Malformed)?;
                Request::Unprotected(from.tuple()?, reason)
            }
            END => {
                let at = from.array().map(u32::from_be_bytes)?;
                Request::End(from.tuple()?, at)
            }
            RESET => Request::Reset(from.tuple()?),
            _ => return Err(MessageError::Malformed),
        };
        if from.0.is_empty() { Ok(request) } else { Err(MessageError::Malformed) }
    }
}

impl Reply {
    /// Appends the message to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Reply::Welcome { closed } => out.extend_from_slice(&[WELCOME, VERSION, u8::from(*closed)]),
            Reply::Watched { connection, handshake, version } => {
                out.push(WATCHED);
                out.extend_from_slice(&connection.to_be_bytes());
                out.extend_from_slice(&version.to_be_bytes());
                put_handshake(out, handshake);
            }
            Reply::Stored(asked, outcome) => {
                let outcome = match outcome {
                    StoreOutcome::Kept => 0,
                    StoreOutcome::Failed => 1,
                    StoreOutcome::Unwatched => 2,
                };
                out.extend_from_slice(&[STORED, outcome]);
                put_numbers(out, asked);
            }
            Reply::Adopt { record, acked, sent } => {
                out.extend_from_slice(&[ADOPT, u8::from(sent.is_some())]);
                out.extend_from_slice(&acked.to_be_bytes());
                out.extend_from_slice(&sent.unwrap_or(0).to_be_bytes());
                record.encode_into(out);
            }
        }
    }

    /// Reads a message.
    ///
    /// # Errors
    /// [`MessageError`]
    pub fn decode(bytes: &[u8]) -> Result<Reply, MessageError> {
        let mut from = Reader(bytes);
        let [kind] = from.array()?;
        let reply = match kind {
            WELCOME => {
                from.version()?;
                Reply::Welcome { closed: from.flag()? }
            }
            WATCHED => {
                let connection = from.array().map(u64::from_be_bytes)?;
                let version = from.number()?;
                Reply::Watched { connection, handshake: from.handshake()?, version }
            }
            STORED => {
                let outcome = match from.array()? {
                    [0] => StoreOutcome::Kept,
                    [1] => StoreOutcome::Failed,
                    [2] => StoreOutcome::Unwatched,
                    _ => return Err(MessageError::Malformed),
                };
                Reply::Stored(from.numbers()?, outcome)
            }
            ADOPT => {
                let knows = from.flag()?;
                let (acked, sent) = (from.number()?, from.number()?);
                let sent = knows.then_some(sent);
                Reply::Adopt { record: from.record()?, acked, sent }
            }
            _ => return Err(MessageError::Malformed),
        };
        if from.0.is_empty() { Ok(reply) } else { Err(MessageError::Malformed) }
    }
}

fn put_numbers(out: &mut Vec<u8>, asked: &Asked) {
    out.extend_from_slice(&asked.connection.to_be_bytes());
    out.extend_from_slice(&asked.ticket.to_be_bytes());
}

fn put_handshake(out: &mut Vec<u8>, handshake: &Handshake) {
    let Handshake { client_isn, service_isn, mss, scales, sack, timestamp, first_timestamp, stamps, at_ms } =
        *handshake;
    let flag = |is: bool, flag: u8| if is { flag } else { 0 };
    out.push(
        flag(sack, SACK)
            | flag(scales.is_some(), SCALES)
            | flag(timestamp.is_some(), TIMESTAMP)
            | flag(first_timestamp.is_some(), FIRST_TIMESTAMP)
            | flag(stamps.is_some(), STAMPS),
    );
    for number in [Some(client_isn), Some(service_isn), timestamp, first_timestamp, stamps] {
        out.extend_from_slice(&number.unwrap_or(0).to_be_bytes());
    }
    out.extend_from_slice(&mss.to_be_bytes());
    let (theirs, ours) = scales.unwrap_or_default();
    out.extend_from_slice(&[theirs, ours]);
    out.extend_from_slice(&at_ms.to_be_bytes());
}

fn put_tuple(out: &mut Vec<u8>, tuple: &Tuple) {
    for end in [tuple.client, tuple.service] {
        match end.ip() {
            IpAddr::V4(ip) => {
                out.push(4);
                out.extend_from_slice(&ip.octets());
            }
            IpAddr::V6(ip) => {
                out.push(6);
                out.extend_from_slice(&ip.octets());
            }
        }
        out.extend_from_slice(&end.port().to_be_bytes());
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        let (first, rest) = self.0.split_first_chunk().ok_or(MessageError::Malformed)?;
        self.0 = rest;
        Ok(*first)
    }

    fn flag(&mut self) -> Result<bool, MessageError> {
        match self.array()? {
            [is @ (0 | 1)] => Ok(is == 1),
            _ => Err(MessageError::Malformed),
        }
    }

    fn number(&mut self) -> Result<u32, MessageError> {
        self.array().map(u32::from_be_bytes)
    }

    fn handshake(&mut self) -> Result<Handshake, MessageError> {
        let [flags] = self.array()?;
        let known = |flag: u8, number: u32| (flags & flag != 0).then_some(number);
        let (client_isn, service_isn) = (self.number()?, self.number()?);
        let timestamp = known(TIMESTAMP, self.number()?);
        let first_timestamp = known(FIRST_TIMESTAMP, self.number()?);
        let stamps = known(STAMPS, self.number()?);
        let mss = self.array().map(u16::from_be_bytes)?;
        let [theirs, ours] = self.array()?;
        let scales = (flags & SCALES != 0).then_some((theirs, ours));
        let (sack, at_ms) = (flags & SACK != 0, self.array().map(u64::from_be_bytes)?);
        Ok(Handshake {
            client_isn,
            service_isn,
            mss,
            scales,
            sack,
            timestamp,
            first_timestamp,
            stamps,
            at_ms,
        })
    }

    fn version(&mut self) -> Result<(), MessageError> {
        match self.array()? {
            [VERSION] => Ok(()),
            [version] => Err(MessageError::Version(version)),
        }
    }

    fn numbers(&mut self) -> Result<Asked, MessageError> {
        let mut number = || self.array().map(u64::from_be_bytes);
        Ok(Asked { connection: number()?, ticket: number()? })
    }

    fn tuple(&mut self) -> Result<Tuple, MessageError> {
        Ok(Tuple { client: self.end()?, service: self.end()? })
    }

    fn end(&mut self) -> Result<SocketAddr, MessageError> {
        let ip: IpAddr = match self.array()? {
            [4] => self.array::<4>()?.into(),
            [6] => self.array::<16>()?.into(),
            _ => return Err(MessageError::Malformed),
        };
        Ok(SocketAddr::new(ip, self.array().map(u16::from_be_bytes)?))
    }

    /// The record to the end of the message, which must be a terminator's.
    fn record(&mut self) -> Result<Box<Record>, MessageError> {
        let record = Record::decode(std::mem::take(&mut self.0))?;
        if record.tls.is_some() { Ok(Box::new(record)) } else { Err(MessageError::Malformed) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::TlsState;

    fn tuple() -> Tuple {
        Tuple { client: "192.0.2.7:1025".parse().unwrap(), service: "10.9.0.1:443".parse().unwrap() }
    }

    fn record() -> Record {
        Record { tls: Some(TlsState::new(vec![7; 300])), ..crate::testing::idle(tuple(), 1, 1) }
    }

    /// A handshake in which each field has a value of its own.
    fn full_handshake() -> Handshake {
        Handshake {
            client_isn: 1,
            service_isn: 2,
            mss: 1400,
            scales: Some((7, 8)),
            sack: true,
            timestamp: Some(3),
            first_timestamp: Some(4),
            stamps: Some(5),
            at_ms: 6,
        }
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        let tuple = record().tuple;
        let v6 = Tuple { client: "[2001:db8::1]:1025".parse().unwrap(), ..tuple };
        let asked = Asked { connection: u64::MAX - 1, ticket: 7 };
        for request in [
            Request::Hello(vec![443, 8443]),
            Request::Store(asked, Box::new(record())),
            Request::Register { asked, record: Box::new(record()), is_adopted: true },
            Request::Unprotected(v6, Reason::Method),
            Request::End(tuple, 77),
            Request::Reset(v6),
        ] {
            let mut bytes = Vec::new();
            request.encode(&mut bytes);
            assert_eq!(Request::decode(&bytes), Ok(request));
            for length in 0..bytes.len() {
                assert!(matches!(Request::decode(&bytes[..length]), Err(_) | Ok(Request::Hello(_))));
            }
            bytes.push(0);
            assert!(Request::decode(&bytes).is_err());
        }
        for reply in [
            Reply::Welcome { closed: true },
            Reply::Stored(asked, StoreOutcome::Unwatched),
            Reply::Watched { connection: 5, handshake: record().handshake, version: 9 },
            Reply::Watched { connection: u64::MAX, handshake: full_handshake(), version: u32::MAX },
            Reply::Adopt { record: Box::new(record()), acked: 9, sent: None },
            Reply::Adopt { record: Box::new(record()), acked: 9, sent: Some(8) },
        ] {
            let mut bytes = Vec::new();
            reply.encode(&mut bytes);
            assert_eq!(Reply::decode(&bytes), Ok(reply));
            bytes.push(0);
            assert!(Reply::decode(&bytes).is_err());
        }
    }

    #[test]
    fn another_version_is_named() {
        assert_eq!(Request::decode(&[HELLO, 9, 1, 187]), Err(MessageError::Version(9)));
        assert!(MessageError::Version(9).to_string().contains("version 9"));
    }

    #[test]
    fn plain_record_is_no_terminators() {
        let plain =
            Request::Store(Asked { connection: 1, ticket: 1 }, Box::new(crate::testing::idle(tuple(), 1, 1)));
        let mut bytes = Vec::new();
        plain.encode(&mut bytes);
        assert_eq!(Request::decode(&bytes), Err(MessageError::Malformed));
    }

    #[test]
    fn secrets_are_not_shown() {
        assert!(!format!("{:?}", record()).contains("7, 7"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = (Request::decode(&bytes), Reply::decode(&bytes));
        }
    }
}
