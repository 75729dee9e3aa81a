//! The handshake, done by rustls. It gets one record at a time: otherwise it would read the
//! client's data after Finished and keep it.

use std::sync::Arc;

use parking_lot::Mutex;
use rivulet_tls::{CipherSuite, Receiver, TrafficSecret, record_bytes};
use rustls::{HandshakeKind, KeyLog, ProtocolVersion, ServerConfig, ServerConnection};
use zeroize::Zeroizing;

use crate::buffer::Input;
use crate::channel::{Channel, Records, write_library};
use crate::gauge::Counted;
use crate::state::Direction;
use crate::subject::name_of;

/// Bytes that a client may send before its handshake ends. The longest ClientHello that TLS allows
/// has 64 kB.
const MAX_HANDSHAKE_BYTES: u64 = 128 << 10;

/// Labels of the secrets in a key log.
const CLIENT_SECRET: &str = "CLIENT_TRAFFIC_SECRET_0";
const SERVER_SECRET: &str = "SERVER_TRAFFIC_SECRET_0";

/// Why a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The client sent plain HTTP.
    PlainHttp,
    /// The client sent something else that is not TLS.
    NotTls,
    /// The handshake violated TLS, or the sides have no version or cipher suite in common.
    Refused,
}

/// The two application traffic secrets, from the key log of one connection.
#[derive(Debug, Default)]
struct Secrets(Mutex<[Zeroizing<Vec<u8>>; 2]>);

impl KeyLog for Secrets {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        self.0.lock()[usize::from(label == SERVER_SECRET)] = Zeroizing::new(secret.to_vec());
    }

    fn will_log(&self, label: &str) -> bool {
        label == CLIENT_SECRET || label == SERVER_SECRET
    }
}

/// A handshake that has not ended.
#[derive(Debug)]
pub(crate) struct Handshake {
    tls: Box<ServerConnection>,
    secrets: Arc<Secrets>,
    received_bytes: u64,
    sent_bytes: u64,
    /// Records that rustls sent in answer to the record that ended the handshake: the session tickets.
    ticket_records: u64,
    _counted: Counted,
}

impl Handshake {
    pub(crate) fn new(config: &ServerConfig, _counted: Counted) -> Result<Self, rustls::Error> {
        let secrets = Arc::new(Secrets::default());
        let mut config = config.clone();
        config.key_log = secrets.clone();
        let tls = Box::new(ServerConnection::new(Arc::new(config))?);
        Ok(Self { tls, secrets, received_bytes: 0, sent_bytes: 0, ticket_records: 0, _counted })
    }

    /// Handles the complete records of `input` up to the end of the handshake, and appends the
    /// replies for the client to `out`. Returns true if the handshake has ended.
    pub(crate) fn advance(&mut self, input: &mut Input, out: &mut Vec<u8>) -> Result<bool, Failure> {
        loop {
            check_header(input.data())?;
            let length = record_bytes(input.data()).map_err(|_| Failure::Refused)?;
            let Some(record) = length.and_then(|length| input.data().get(..length)) else { return Ok(false) };
            self.received_bytes += record.len() as u64;
            if self.received_bytes > MAX_HANDSHAKE_BYTES {
                return Err(Failure::Refused);
            }
            let mut rest = record;
            while !rest.is_empty() {
                let count = self.tls.read_tls(&mut rest).map_err(|_| Failure::Refused)?;
                let result = self.tls.process_new_packets();
                if result.is_err() || count == 0 {
                    // rustls may have an alert to send.
                    write_library(&mut self.tls, out);
                    return Err(Failure::Refused);
                }
            }
            let length = record.len();
            input.consume(length);
            let start = out.len();
            write_library(&mut self.tls, out);
            self.sent_bytes += (out.len() - start) as u64;
            if !self.tls.is_handshaking() {
                self.ticket_records = count_records(&out[start..]);
                return Ok(true);
            }
        }
    }

    /// Whether the client resumed a session by a ticket.
    pub(crate) fn is_resumed(&self) -> bool {
        self.tls.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// Name in the client's certificate, which rustls has verified; `None` without a certificate.
    /// An unreadable name is an error: otherwise the server would take the client for one without a
    /// certificate.
    pub(crate) fn client_name(&self) -> Result<Option<String>, Failure> {
        let Some(certificate) = self.tls.peer_certificates().and_then(<[_]>::first) else { return Ok(None) };
        name_of(certificate).map(Some).ok_or(Failure::Refused)
    }

    /// The connection after a successful handshake.
    pub(crate) fn into_channel(self) -> Result<Channel, Failure> {
        if self.tls.protocol_version() != Some(ProtocolVersion::TLSv1_3) {
            return Ok(Channel::Library(self.tls));
        }
        let suite = self.tls.negotiated_cipher_suite().ok_or(Failure::Refused)?.suite();
        let suite = CipherSuite::from_number(suite.into()).ok_or(Failure::Refused)?;
        let secrets = self.secrets.0.lock();
        let secret = |n: usize| TrafficSecret::new(suite, &secrets[n]).map_err(|_| Failure::Refused);
        let sent = Direction {
            secret: secret(1)?,
            generation: 0,
            next_record: self.ticket_records,
            offset: self.sent_bytes,
        };
        let receiver = Receiver::new(secret(0)?, 0);
        Ok(Channel::Records(Box::new(Records::new(receiver, self.received_bytes, sent))))
    }
}

/// Refuses bytes that cannot begin a record, before their length field makes us wait for the rest.
fn check_header(data: &[u8]) -> Result<(), Failure> {
    match data {
        [20..=23, 3, ..] | [20..=23] | [] => Ok(()),
        [b'A'..=b'Z', ..] => Err(Failure::PlainHttp),
        _ => Err(Failure::NotTls),
    }
}

fn count_records(mut stream: &[u8]) -> u64 {
    let mut count = 0;
    while let Ok(Some(length)) = record_bytes(stream) {
        stream = stream.get(length..).unwrap_or_default();
        count += 1;
    }
    count
}
