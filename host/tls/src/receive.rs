//! The client's records after the handshake: finds their lengths, opens them, and parses their
//! content.

use crate::{
    ContentType, Error, RecordKey, TrafficSecret,
    seal::{HEADER_BYTES, MAX_PLAINTEXT_BYTES},
};

/// Limit on the bytes after the header (RFC 8446 section 5.2).
const MAX_CIPHERTEXT_BYTES: usize = MAX_PLAINTEXT_BYTES + 256;

/// Size of a buffer that holds any record, bytes.
pub const MAX_RECORD_BYTES: usize = HEADER_BYTES + MAX_CIPHERTEXT_BYTES;

/// Length of the record at the beginning of `stream`, with its header; `None` while the header is
/// incomplete. Also valid for records of the handshake.
///
/// # Errors
/// [`Error::RecordTooLong`] if it has more than [`MAX_RECORD_BYTES`].
pub fn record_bytes(stream: &[u8]) -> Result<Option<usize>, Error> {
    let Some(header) = stream.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
    if length > MAX_CIPHERTEXT_BYTES {
        return Err(Error::RecordTooLong);
    }
    Ok(Some(HEADER_BYTES + length))
}

/// The content of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Application data, possibly empty.
    Data(&'a [u8]),
    /// After this record, the next one is number 0 of the next generation. If the client requests
    /// it, the server must update its own key before its next data.
    KeyUpdate {
        /// The client requests an update of the server's key.
        requested: bool,
    },
    /// The client sends no more data.
    CloseNotify,
    /// Another alert, by its description. All except `user_canceled` (90) end the connection.
    Alert(u8),
}

/// Decrypts one client's records in order.
#[derive(Debug)]
pub struct Receiver {
    secret: TrafficSecret,
    key: RecordKey,
    next_record: u64,
}

impl Receiver {
    /// `next_record`: the number of the next record under the client's traffic secret. After the
    /// handshake that is number 0 under `client_application_traffic_secret_0`.
    #[must_use]
    pub fn new(secret: TrafficSecret, next_record: u64) -> Self {
        Self { key: secret.record_key(), secret, next_record }
    }

    /// The secret of the current generation.
    #[must_use]
    pub fn secret(&self) -> &TrafficSecret {
        &self.secret
    }

    /// The number of the next record.
    #[must_use]
    pub fn next_record(&self) -> u64 {
        self.next_record
    }

    /// Opens a record in place; `record` has exactly [`record_bytes`] bytes.
    ///
    /// A KeyUpdate must be alone in its record, as all clients send it. No other message of the handshake is expected:
    /// we request no authentication after the handshake.
    ///
    /// # Errors
    /// [`Error::BadRecord`], [`Error::UnexpectedMessage`], [`Error::RecordTooLong`],
    /// [`Error::KeySpent`]. The connection must then end: the contents of `record` are undefined,
    /// and the receiver is unchanged.
    pub fn receive<'a>(&mut self, record: &'a mut [u8]) -> Result<Message<'a>, Error> {
        let next_record = self.next_record.checked_add(1).ok_or(Error::KeySpent)?;
        let (content, plaintext) = self.key.open(self.next_record, record)?;
        let message = match (content, plaintext) {
            (ContentType::ApplicationData, data) => Message::Data(data),
            (ContentType::Handshake, [24, 0, 0, 1, requested @ (0 | 1)]) => {
                Message::KeyUpdate { requested: *requested == 1 }
            }
            // The level has no meaning in TLS 1.3 (section 6).
            (ContentType::Alert, [_level, 0]) => Message::CloseNotify,
            (ContentType::Alert, [_level, description]) => Message::Alert(*description),
            _ => return Err(Error::UnexpectedMessage),
        };
        self.next_record = next_record;
        if let Message::KeyUpdate { .. } = message {
            *self = Self::new(self.secret.next_generation(), 0);
        }
        Ok(message)
    }
}
