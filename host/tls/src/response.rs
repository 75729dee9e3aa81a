//! The record rule: where the records of a response begin.
//!
//! Sizes depend only on the response's description, so two replicas that know the description
//! divide the response in the same way:
//!
//! - The response begins a record. Its head fills records of [`MAX_PLAINTEXT_BYTES`], nearly always one.
//! - The body begins a record. Its first 64 kB fill records of 4,096 bytes, and the rest records of
//!   [`MAX_PLAINTEXT_BYTES`]. A client can use nothing of a record before it has all of it, so the small ones bring
//!   the first bytes of a page sooner on a slow path. They cost 264 bytes more for each response.
//! - The last record of the head, and the last of the body, hold the remaining bytes.

use std::ops::Range;

use crate::{
    Error,
    seal::{MAX_PLAINTEXT_BYTES, MAX_RECORDS, OVERHEAD_BYTES},
};

/// Bytes of a body that go into small records.
const SMALL_RECORDS_BYTES: u64 = 65_536;

/// Plaintext bytes of a small record: three segments of an Ethernet path.
const SMALL_RECORD_BYTES: u64 = 4_096;

/// The last record number that a response may use. It leaves two numbers of the key, for a
/// KeyUpdate and a `close_notify`.
pub const MAX_RESPONSE_RECORD: u64 = MAX_RECORDS - 3;

/// A response of known length in the stream of a TLS connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    sequence: u32,
    record: u64,
    head: u64,
    body: u64,
}

/// One record of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Number of the record under its key; its nonce is made from it.
    pub number: u64,
    /// Bytes of ciphertext from the beginning of the response to the record.
    pub offset: u64,
    /// The record's plaintext, as a range of the response's bytes, head first. Never empty.
    pub plaintext: Range<u64>,
}

impl Record {
    /// Bytes of ciphertext from the beginning of the response to the end of the record.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset + (self.plaintext.end - self.plaintext.start) + OVERHEAD_BYTES
    }
}

/// Bytes that are divided into records of one size.
#[derive(Clone, Copy)]
struct Run {
    bytes: u64,
    record_bytes: u64,
}

impl Run {
    fn records(self) -> u64 {
        self.bytes.div_ceil(self.record_bytes)
    }

    fn ciphertext_bytes(self) -> u64 {
        self.bytes + self.records() * OVERHEAD_BYTES
    }
}

impl Response {
    /// A response that begins at this TCP sequence number with this record number of its key.
    /// `head` and `body`: lengths on the wire in bytes; the body of an answer to HEAD or of a 304
    /// has length 0.
    ///
    /// # Errors
    /// [`Error::ResponseTooLong`] if it needs records beyond [`MAX_RESPONSE_RECORD`]. Under a new
    /// key, that takes a body of 275 GB.
    pub fn new(sequence: u32, record: u64, head: u64, body: u64) -> Result<Self, Error> {
        let response = Self { sequence, record, head, body };
        let count: u64 = response.runs().into_iter().map(Run::records).sum();
        match record.checked_add(count) {
            Some(next) if next <= MAX_RESPONSE_RECORD + 1 => Ok(response),
            _ => Err(Error::ResponseTooLong),
        }
    }

    fn runs(self) -> [Run; 3] {
        let small = self.body.min(SMALL_RECORDS_BYTES);
        let large_record = MAX_PLAINTEXT_BYTES as u64;
        [
            Run { bytes: self.head, record_bytes: large_record },
            Run { bytes: small, record_bytes: SMALL_RECORD_BYTES },
            Run { bytes: self.body - small, record_bytes: large_record },
        ]
    }

    /// Length of the response's ciphertext, bytes.
    #[must_use]
    pub fn ciphertext_bytes(self) -> u64 {
        self.runs().into_iter().map(Run::ciphertext_bytes).sum()
    }

    /// Length of the response's plaintext, bytes.
    #[must_use]
    pub fn plaintext_bytes(self) -> u64 {
        self.head + self.body
    }

    /// The TCP sequence number after the response, where the connection's next record begins.
    #[must_use]
    pub fn next_sequence(self) -> u32 {
        // Sequence numbers wrap.
        self.sequence.wrapping_add(self.ciphertext_bytes() as u32)
    }

    /// Number of the connection's next record.
    #[must_use]
    pub fn next_record(self) -> u64 {
        self.record + self.runs().into_iter().map(Run::records).sum::<u64>()
    }

    /// Bytes of ciphertext from the beginning of the response to a TCP sequence number.
    ///
    /// A response of more than 4 GB has each sequence number several times. The last one within the
    /// first `sent` bytes of the response counts, because a client acknowledges numbers less than 4
    /// GB before the end of the sent bytes. `None` if the sequence number is not in the first
    /// `sent` bytes.
    #[must_use]
    pub fn offset_of(self, sequence: u32, sent: u64) -> Option<u64> {
        offset_of(self.sequence, sequence, sent)
    }

    /// The record with the byte at this offset of the ciphertext; `None` after the end of the
    /// response.
    #[must_use]
    pub fn record_at(self, offset: u64) -> Option<Record> {
        let (mut number, mut run_offset, mut plaintext) = (self.record, 0, 0);
        for run in self.runs() {
            let run_end = run_offset + run.ciphertext_bytes();
            if offset < run_end {
                let index = (offset - run_offset) / (run.record_bytes + OVERHEAD_BYTES);
                let start = index * run.record_bytes;
                let end = run.bytes.min(start + run.record_bytes);
                return Some(Record {
                    number: number + index,
                    offset: run_offset + start + index * OVERHEAD_BYTES,
                    plaintext: plaintext + start..plaintext + end,
                });
            }
            (number, run_offset, plaintext) = (number + run.records(), run_end, plaintext + run.bytes);
        }
        None
    }

    /// The record with this byte of the plaintext, counted from the head; `None` after the end of
    /// the response.
    #[must_use]
    pub fn record_with(self, plaintext: u64) -> Option<Record> {
        let (mut run_offset, mut run_start) = (0, 0);
        for run in self.runs() {
            if plaintext < run_start + run.bytes {
                let index = (plaintext - run_start) / run.record_bytes;
                return self.record_at(run_offset + index * (run.record_bytes + OVERHEAD_BYTES));
            }
            (run_offset, run_start) = (run_offset + run.ciphertext_bytes(), run_start + run.bytes);
        }
        None
    }

    /// The records from the one with the byte at this offset of the ciphertext to the last.
    pub fn records_from(self, offset: u64) -> impl Iterator<Item = Record> {
        std::iter::successors(self.record_at(offset), move |record| self.record_at(record.end()))
    }
}

/// Offset of a sequence number in a stream that has sent `sent` bytes and begins at sequence number
/// `begin`: the last such offset that was sent.
pub(crate) fn offset_of(begin: u32, sequence: u32, sent: u64) -> Option<u64> {
    let before_end = begin.wrapping_add(sent as u32).wrapping_sub(sequence);
    sent.checked_sub(before_end.into())
}
