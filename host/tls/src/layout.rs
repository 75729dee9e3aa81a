//! The layout of the stream that a stored connection sends: responses, the KeyUpdates before them,
//! and the `close_notify` after the last one.

use rivulet_trods::{
    Record,
    head::{self, Method},
    record::{self, Body},
};

use crate::{
    CLOSE_NOTIFY, KEY_UPDATE, Response,
    response::offset_of,
    seal::{MAX_RECORDS, OVERHEAD_BYTES},
};

/// Ciphertext bytes of a KeyUpdate.
pub(crate) const KEY_UPDATE_BYTES: u64 = KEY_UPDATE.len() as u64 + OVERHEAD_BYTES;
/// Ciphertext bytes of a `close_notify`.
pub(crate) const CLOSE_NOTIFY_BYTES: u64 = CLOSE_NOTIFY.len() as u64 + OVERHEAD_BYTES;

/// Kind of a part of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    KeyUpdate,
    /// A response, by its index in the state, and its records.
    Response(usize, Response),
    CloseNotify,
}

/// A part of the stream that consists of whole records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub kind: Kind,
    /// KeyUpdates in the stream before the part.
    pub updates: u32,
    /// Number of its first record.
    pub record: u64,
    /// TCP sequence number of its first byte.
    pub sequence: u32,
    /// Its length, bytes of ciphertext.
    pub bytes: u64,
    /// How many of these bytes may have been sent.
    pub sent: u64,
}

/// The parts in stream order.
#[derive(Debug)]
pub(crate) struct Layout {
    pub parts: Vec<Part>,
}

impl Layout {
    /// The layout of responses that begin at this record number and TCP sequence number; bit `i` of
    /// `key_updates` stands for a KeyUpdate before response `i`. `None` if a response has no known
    /// length, or needs more records than its key may seal.
    pub fn of(http: &Record, key_updates: u16, mut record: u64, mut sequence: u32) -> Option<Layout> {
        let mut parts = Vec::with_capacity(2 * http.responses.len() + 1);
        let mut updates = 0;
        for (index, stored) in http.responses.iter().enumerate() {
            if key_updates >> index & 1 != 0 {
                parts.push(whole(Kind::KeyUpdate, updates, record, sequence, KEY_UPDATE_BYTES)?);
                (updates, record) = (updates + 1, 0);
                sequence = sequence.wrapping_add(KEY_UPDATE_BYTES as u32);
            }
            let (head, body) = lengths(stored)?;
            let response = Response::new(sequence, record, head, body).ok()?;
            let bytes = response.ciphertext_bytes();
            let sent = match stored.passed.checked_sub(1) {
                None => 0,
                Some(last) => response.record_with(last)?.end(),
            };
            parts.push(Part {
                kind: Kind::Response(index, response),
                updates,
                record,
                sequence,
                bytes,
                sent,
            });
            (record, sequence) = (response.next_record(), response.next_sequence());
        }
        let is_answered = http.responses.last().is_none_or(|last| last.passed == last.length);
        let closes = http.responses.last().is_some_and(|last| last.close);
        if is_answered && (closes || http.client_fin && http.requests.is_empty()) {
            parts.push(whole(Kind::CloseNotify, updates, record, sequence, CLOSE_NOTIFY_BYTES)?);
        }
        Some(Layout { parts })
    }

    /// Bytes that may have been sent.
    pub fn sent(&self) -> u64 {
        self.parts.iter().map(|part| part.sent).sum()
    }

    /// Offset in the stream of a TCP sequence number; `begin` is the sequence number of the
    /// stream's start. A stream of more than 4 GB has several such offsets. The last one that may
    /// have been sent counts, because a client acknowledges numbers less than 4 GB before the end
    /// of the sent bytes.
    pub fn offset_of(&self, begin: u32, sequence: u32) -> Option<u64> {
        offset_of(begin, sequence, self.sent())
    }

    /// Each part's length, and how many of its bytes may have been sent.
    pub fn into_tcp_parts(self) -> Vec<(u64, u64)> {
        self.parts.into_iter().map(|part| (part.bytes, part.sent)).collect()
    }
}

/// A part of one record that may have been sent completely.
fn whole(kind: Kind, updates: u32, record: u64, sequence: u32, bytes: u64) -> Option<Part> {
    (record < MAX_RECORDS).then_some(Part { kind, updates, record, sequence, bytes, sent: bytes })
}

/// Plaintext lengths of a response's head and body. A body without a known end counts as longer
/// than any key can seal.
fn lengths(response: &record::Response) -> Option<(u64, u64)> {
    let head = match &response.body {
        Body::Object { head, .. } | Body::Generated { head, .. } => head.len(),
        // The length of a head does not depend on the method.
        Body::Whole(bytes) => head::response(bytes, Method::Get).ok()??.length,
    } as u64;
    Some((head, response.length.checked_sub(head)?))
}
