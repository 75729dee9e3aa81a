//! The record rule: where the records of a response begin.
//!
//! Sizes are a function of the response's description alone, so two replicas that know the description cut the
//! response alike:
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

/// The last record number that a response may use. Two more of the key are left, for a KeyUpdate and a `close_notify`.
pub const MAX_RESPONSE_RECORD: u64 = MAX_RECORDS - 3;

/// A response of known length, as it lies in the stream of a TLS connection.
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
    /// Number of the record under its key, from which its nonce is made.
    pub number: u64,
    /// Bytes of ciphertext between the beginning of the response and that of the record.
    pub offset: u64,
    /// The bytes of the response, head first, that are its plaintext. Never empty.
    pub plaintext: Range<u64>,
}

impl Record {
    /// Bytes of ciphertext between the beginning of the response and the end of the record.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset + (self.plaintext.end - self.plaintext.start) + OVERHEAD_BYTES
    }
}

/// Bytes that are cut into records of one size.
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
    /// A response that begins at a TCP sequence number with a record number of its key, with the lengths of its head and
    /// body in bytes. The body is what follows the head on the wire: of an answer to HEAD or a 304, nothing.
    ///
    /// # Errors
    /// [`Error::ResponseTooLong`] if it needs records beyond [`MAX_RESPONSE_RECORD`]. Under a new key, that is a body of
    /// 275 GB.
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

    /// The TCP sequence number behind the response, where the next record of the connection begins.
    #[must_use]
    pub fn next_sequence(self) -> u32 {
        // Sequence numbers wrap.
        self.sequence.wrapping_add(self.ciphertext_bytes() as u32)
    }

    /// The number of the next record of the connection.
    #[must_use]
    pub fn next_record(self) -> u64 {
        self.record + self.runs().into_iter().map(Run::records).sum::<u64>()
    }

    /// Bytes of ciphertext between the beginning of the response and a TCP sequence number.
    ///
    /// A response of more than 4 GB has a sequence number several times. The number is taken for the last of these places
    /// at or before `sent`, the bytes of the response that were sent at most: what a client acknowledges lies there, and
    /// less than 4 GB earlier. `None` if the sequence number is not in the first `sent` bytes.
    #[must_use]
    pub fn offset_of(self, sequence: u32, sent: u64) -> Option<u64> {
        offset_of(self.sequence, sequence, sent)
    }

    /// The record in which the byte at this offset of the ciphertext lies; `None` behind the response.
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

    /// The record that has this byte of the plaintext, head first; `None` behind the response.
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

    /// The records from the one in which the byte at this offset of the ciphertext lies, to the last.
    pub fn records_from(self, offset: u64) -> impl Iterator<Item = Record> {
        std::iter::successors(self.record_at(offset), move |record| self.record_at(record.end()))
    }
}

/// Bytes between the beginning of a stream of `sent` bytes, at sequence number `begin`, and the last place at or before its end
/// that has this sequence number.
pub(crate) fn offset_of(begin: u32, sequence: u32, sent: u64) -> Option<u64> {
    let before_end = begin.wrapping_add(sent as u32).wrapping_sub(sequence);
    sent.checked_sub(before_end.into())
}
