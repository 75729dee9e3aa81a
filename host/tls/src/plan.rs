//! Makes the rest of the stream from a [`State`] and the TCP sequence number that the client has
//! acknowledged: byte for byte, even from the middle of a record on.

use std::{iter::Peekable, vec};

use crate::{
    Error, Position, State, Writer,
    layout::{Kind, Part},
};

/// Why a connection cannot be continued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The client has acknowledged bytes that no replica with this state can have sent: the state
    /// is too old or belongs to another connection.
    #[error("the client acknowledged bytes that this state does not allow")]
    Acknowledged,
    /// The replica had ended the protection of this connection.
    #[error("the connection is not protected")]
    Unprotected,
    /// The length of a response is unknown. No decoded state is like this.
    #[error("a response has no known length")]
    Length,
}

/// The plaintext that the caller must supply next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needed {
    /// Index of the response in the state's `http.responses`.
    pub response: usize,
    /// Offset of the first byte, counted from the beginning of the response's head. A record begins
    /// here, perhaps before the bytes that the client lacks, because a record's tag covers all of
    /// its plaintext.
    pub from: u64,
    /// Bytes from there to the end of the response.
    pub length: u64,
}

/// Makes the rest of the responses of a state.
#[derive(Debug)]
pub struct Resumption {
    writer: Writer,
    parts: Peekable<vec::IntoIter<Part>>,
    /// Bytes of the first part that the client already has.
    had: u64,
    offset: u64,
}

impl Resumption {
    /// For a client that has acknowledged this TCP sequence number. The connection's socket sends
    /// from there.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn begin(state: &State, acked: u32) -> Result<Resumption, PlanError> {
        if state.http.unprotected {
            return Err(PlanError::Unprotected);
        }
        let layout = state.layout().ok_or(PlanError::Length)?;
        let offset = layout.offset_of(state.write.sequence, acked).ok_or(PlanError::Acknowledged)?;
        let mut had = offset;
        let mut position = state.write.clone();
        let mut parts = layout.parts.into_iter().peekable();
        while let Some(part) = parts.next_if(|part| had >= part.bytes) {
            had -= part.bytes;
            position = behind(state, &part);
        }
        if let Some(first) = parts.peek() {
            position = state.write.after(first.updates, first.record, first.sequence);
        }
        Ok(Resumption { writer: Writer::new(position), parts, had, offset })
    }

    /// Bytes of the stream between `State::write` and the number that the client had acknowledged.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Appends records that need no further plaintext to `out`. Returns the plaintext that is
    /// needed next, for [`write`](Self::write); `None` if everything is written.
    ///
    /// # Errors
    /// [`Error::NoResponse`] if the plaintext of the previous response is incomplete. No other
    /// error occurs with a decoded state.
    pub fn next(&mut self, out: &mut Vec<u8>) -> Result<Option<Needed>, Error> {
        if self.writer.is_in_response() {
            return Err(Error::NoResponse);
        }
        for part in self.parts.by_ref() {
            let had = std::mem::take(&mut self.had);
            match part.kind {
                Kind::KeyUpdate => {
                    self.writer.skip(had as usize);
                    self.writer.key_update(out)?;
                }
                Kind::CloseNotify => {
                    self.writer.skip(had as usize);
                    self.writer.close_notify(out)?;
                }
                Kind::Response(index, response) => {
                    self.writer.begin_at(response, had)?;
                    if let Some(record) = response.record_at(had) {
                        self.writer.skip((had - record.offset) as usize);
                        let from = record.plaintext.start;
                        let length = response.plaintext_bytes() - from;
                        return Ok(Some(Needed { response: index, from, length }));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Takes plaintext of the response that [`next`](Self::next) returned, and appends its records to `out`.
    ///
    /// # Errors
    /// [`Error::NoResponse`] for plaintext beyond the end of the response.
    pub fn write(&mut self, plaintext: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        self.writer.write(plaintext, out)
    }

    /// The writer of later responses, once [`next`](Self::next) has returned `None`.
    #[must_use]
    pub fn into_writer(self) -> Writer {
        self.writer
    }
}

/// The position after a part.
fn behind(state: &State, part: &Part) -> Position {
    let sequence = part.sequence.wrapping_add(part.bytes as u32);
    match part.kind {
        Kind::KeyUpdate => state.write.after(part.updates + 1, 0, sequence),
        Kind::CloseNotify => state.write.after(part.updates, part.record + 1, sequence),
        Kind::Response(_, response) => state.write.after(part.updates, response.next_record(), sequence),
    }
}
