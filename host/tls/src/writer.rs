//! Makes a server's records in order, by the record rule.

use crate::{
    CLOSE_NOTIFY, ContentType, Error, KEY_UPDATE, OVERHEAD_BYTES, Position, Record, RecordKey, Response,
};

/// The sending direction of a connection.
#[derive(Debug)]
pub struct Writer {
    position: Position,
    key: RecordKey,
    /// The response in progress, and the record of its next plaintext.
    response: Option<(Response, Record)>,
    /// Plaintext of that record so far.
    pending: Vec<u8>,
    /// Bytes of the next record to omit, which the client already has.
    skip: usize,
}

impl Writer {
    /// A writer whose next record begins at `position`.
    #[must_use]
    pub fn new(position: Position) -> Writer {
        let key = position.secret.record_key();
        Writer { position, key, response: None, pending: Vec::new(), skip: 0 }
    }

    /// Where the next response, KeyUpdate or `close_notify` begins. In the middle of a response,
    /// where that response began.
    #[must_use]
    pub fn position(&self) -> &Position {
        &self.position
    }

    /// Whether the response in progress needs more plaintext.
    #[must_use]
    pub fn is_in_response(&self) -> bool {
        self.response.is_some()
    }

    /// Omits the first `bytes` of the next record, which the client has already.
    pub(crate) fn skip(&mut self, bytes: usize) {
        self.skip = bytes;
    }

    /// Appends a KeyUpdate to `out`. Call it right before a response begins.
    ///
    /// # Errors
    /// [`Error::KeySpent`]; [`Error::NoResponse`] within a response.
    pub fn key_update(&mut self, out: &mut Vec<u8>) -> Result<(), Error> {
        let (_, sequence) = self.single(ContentType::Handshake, &KEY_UPDATE, out)?;
        self.position = self.position.after(1, 0, sequence);
        self.key = self.position.secret.record_key();
        Ok(())
    }

    /// Appends a `close_notify` to `out`.
    ///
    /// # Errors
    /// [`Error::KeySpent`]; [`Error::NoResponse`] within a response.
    pub fn close_notify(&mut self, out: &mut Vec<u8>) -> Result<(), Error> {
        let (record, sequence) = self.single(ContentType::Alert, &CLOSE_NOTIFY, out)?;
        (self.position.record, self.position.sequence) = (record, sequence);
        Ok(())
    }

    /// Seals one record between responses. Returns the next record number and TCP sequence number.
    fn single(
        &mut self,
        content: ContentType,
        plaintext: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(u64, u32), Error> {
        if self.response.is_some() {
            return Err(Error::NoResponse);
        }
        let Position { record, sequence, .. } = self.position;
        self.seal(record, content, plaintext, out)?;
        Ok((record + 1, sequence.wrapping_add(plaintext.len() as u32 + OVERHEAD_BYTES as u32)))
    }

    /// Begins a response with head and body of these lengths. An empty response has ended at once.
    ///
    /// # Errors
    /// [`Error::ResponseTooLong`]: call [`key_update`](Self::key_update) before.
    /// [`Error::NoResponse`] within a response.
    pub fn begin(&mut self, head: u64, body: u64) -> Result<(), Error> {
        let response = Response::new(self.position.sequence, self.position.record, head, body)?;
        self.begin_at(response, 0)
    }

    /// Begins a response at the record with the byte at this offset of its ciphertext.
    pub(crate) fn begin_at(&mut self, response: Response, offset: u64) -> Result<(), Error> {
        if self.response.is_some() {
            return Err(Error::NoResponse);
        }
        self.move_to(response, offset);
        Ok(())
    }

    fn move_to(&mut self, response: Response, offset: u64) {
        self.response = response.record_at(offset).map(|record| (response, record));
        if self.response.is_none() {
            (self.position.record, self.position.sequence) =
                (response.next_record(), response.next_sequence());
        }
    }

    /// Takes the next plaintext of the response, and appends its complete records to `out`.
    ///
    /// # Errors
    /// [`Error::NoResponse`] for plaintext after the response's end.
    pub fn write(&mut self, mut plaintext: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        while !plaintext.is_empty() {
            let Some((response, record)) = self.response.clone() else { return Err(Error::NoResponse) };
            let length = (record.plaintext.end - record.plaintext.start) as usize;
            let (part, rest) = plaintext.split_at(plaintext.len().min(length - self.pending.len()));
            plaintext = rest;
            if part.len() == length {
                self.seal(record.number, ContentType::ApplicationData, part, out)?;
            } else {
                self.pending.extend_from_slice(part);
                if self.pending.len() < length {
                    break;
                }
                let pending = std::mem::take(&mut self.pending);
                self.seal(record.number, ContentType::ApplicationData, &pending, out)?;
                self.pending = pending;
                self.pending.clear();
            }
            self.move_to(response, record.end());
        }
        Ok(())
    }

    fn seal(
        &mut self,
        number: u64,
        content: ContentType,
        plaintext: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let start = out.len();
        self.key.seal(number, content, plaintext, out)?;
        out.drain(start..start + std::mem::take(&mut self.skip));
        Ok(())
    }
}
