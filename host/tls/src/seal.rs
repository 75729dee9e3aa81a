//! Encrypts and decrypts single records (RFC 8446 section 5.2).

use std::fmt;

use ring::aead::{Aad, LessSafeKey, NONCE_LEN, Nonce};

use crate::Error;

/// Limit on the plaintext of a record, bytes (section 5.1).
pub const MAX_PLAINTEXT_BYTES: usize = 1 << 14;

/// Limit on the records under one key. AES-GCM is safe for 2^24.5 records of full size (section
/// 5.5).
pub const MAX_RECORDS: u64 = 1 << 24;

/// Bytes that a record adds to its plaintext: header, content type and tag.
pub const OVERHEAD_BYTES: u64 = (HEADER_BYTES + 1 + TAG_BYTES) as u64;

pub(crate) const HEADER_BYTES: usize = 5;

/// All supported cipher suites have tags of this length, bytes.
const TAG_BYTES: usize = 16;

/// The plaintext of a `close_notify` alert, sent with [`ContentType::Alert`].
pub const CLOSE_NOTIFY: [u8; 2] = [1, 0];

/// The plaintext of a KeyUpdate that requests none in return, sent with [`ContentType::Handshake`].
/// The record after it is number 0 of the [next generation](crate::TrafficSecret::next_generation).
pub const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];

/// Content type of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ContentType {
    /// An alert.
    Alert = 21,
    /// A handshake message; after the handshake, a KeyUpdate.
    Handshake = 22,
    /// Data of the application.
    ApplicationData = 23,
}

/// The key and initial vector of one generation and direction. `{:?}` hides both.
pub struct RecordKey {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
}

impl RecordKey {
    pub(crate) fn new(key: LessSafeKey, iv: [u8; NONCE_LEN]) -> Self {
        debug_assert_eq!(key.algorithm().tag_len(), TAG_BYTES);
        Self { key, iv }
    }

    /// Appends a record to `out`: the plaintext's bytes and [`OVERHEAD_BYTES`]. Allocates only if `out` lacks room.
    ///
    /// The same arguments give the same bytes. Two different plaintexts under one number would
    /// reveal both and the key of the tags. So if a record was sent under this number before, the
    /// caller must be certain that the plaintext is the same.
    ///
    /// # Errors
    /// [`Error::PlaintextTooLong`], [`Error::KeySpent`]; `out` is unchanged then.
    pub fn seal(
        &self,
        number: u64,
        content: ContentType,
        plaintext: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        if plaintext.len() > MAX_PLAINTEXT_BYTES {
            return Err(Error::PlaintextTooLong);
        }
        if number >= MAX_RECORDS {
            return Err(Error::KeySpent);
        }
        let [high, low] = ((plaintext.len() + 1 + TAG_BYTES) as u16).to_be_bytes();
        // Every encrypted record has the header of TLS 1.2 application data.
        let header = [ContentType::ApplicationData as u8, 3, 3, high, low];
        out.reserve(plaintext.len() + OVERHEAD_BYTES as usize);
        out.extend_from_slice(&header);
        let start = out.len();
        out.extend_from_slice(plaintext);
        out.push(content as u8);
        let tag = self
            .key
            .seal_in_place_separate_tag(self.nonce(number), Aad::from(header), &mut out[start..])
            .expect("a record is far below the longest message of the algorithms");
        out.extend_from_slice(tag.as_ref());
        Ok(())
    }

    /// Decrypts a record with its header in place. Returns its content type, and its plaintext
    /// without padding.
    pub(crate) fn open<'a>(
        &self,
        number: u64,
        record: &'a mut [u8],
    ) -> Result<(ContentType, &'a [u8]), Error> {
        let Some((header, ciphertext)) = record.split_first_chunk_mut::<HEADER_BYTES>() else {
            return Err(Error::BadRecord);
        };
        // The version field has no meaning (section 5.1), but is authenticated with the rest of the
        // header.
        if header[0] != ContentType::ApplicationData as u8 {
            return Err(Error::UnexpectedMessage);
        }
        if usize::from(u16::from_be_bytes([header[3], header[4]])) != ciphertext.len() {
            return Err(Error::BadRecord);
        }
        let padded: &[u8] = self
            .key
            .open_in_place(self.nonce(number), Aad::from(*header), ciphertext)
            .map_err(|_| Error::BadRecord)?;
        // One byte is for the content type (section 5.4).
        if padded.len() > MAX_PLAINTEXT_BYTES + 1 {
            return Err(Error::RecordTooLong);
        }
        let end = padded.iter().rposition(|&byte| byte != 0).ok_or(Error::UnexpectedMessage)?;
        let content = match padded[end] {
            21 => ContentType::Alert,
            22 => ContentType::Handshake,
            23 => ContentType::ApplicationData,
            _ => return Err(Error::UnexpectedMessage),
        };
        Ok((content, &padded[..end]))
    }

    /// The initial vector, XOR the record's number in its last eight bytes (section 5.3).
    fn nonce(&self, number: u64) -> Nonce {
        let mut nonce = self.iv;
        for (byte, number) in nonce[NONCE_LEN - 8..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= number;
        }
        Nonce::assume_unique_for_key(nonce)
    }
}

impl fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordKey").field("algorithm", self.key.algorithm()).finish_non_exhaustive()
    }
}
