//! Cursors over byte slices: a reader that names what is missing, a writer that counts what it lacks.

use crate::error::{BuildError, WireError};

/// Makes the error for a field that starts at the given offset.
pub(crate) type At = fn(usize) -> WireError;

/// Reads big-endian fields in order. `short` is the error of the section now being read.
#[derive(Clone)]
pub(crate) struct Reader<'a> {
    buf: &'a [u8],
    pos: usize,
    short: At,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(buf: &'a [u8], short: At) -> Self {
        Self { buf, pos: 0, short }
    }

    /// From here on a missing field is reported as `short`.
    pub(crate) fn section(&mut self, short: At) {
        self.short = short;
    }

    pub(crate) fn pos(&self) -> usize {
        self.pos
    }

    pub(crate) fn remaining(&self) -> usize {
        self.buf.len() - self.pos
    }

    pub(crate) fn bytes(&mut self, n: usize) -> Result<&'a [u8], WireError> {
        // `pos` never exceeds the length, so the subtraction in `remaining` cannot wrap.
        if n > self.remaining() {
            return Err((self.short)(self.pos));
        }
        let out = &self.buf[self.pos..self.pos + n];
        self.pos += n;
        Ok(out)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N)?);
        Ok(out)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, WireError> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16, WireError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(crate) fn u48(&mut self) -> Result<u64, WireError> {
        let b: [u8; 6] = self.array()?;
        Ok(u64::from_be_bytes([0, 0, b[0], b[1], b[2], b[3], b[4], b[5]]))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    pub(crate) fn rest(&mut self) -> &'a [u8] {
        let out = &self.buf[self.pos..];
        self.pos = self.buf.len();
        out
    }
}

/// Writes big-endian fields in order. Past the end it only counts, so that the error can say how many
/// bytes the whole would have needed.
pub(crate) struct Writer<'a> {
    buf: &'a mut [u8],
    pos: usize,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(buf: &'a mut [u8]) -> Self {
        Self { buf, pos: 0 }
    }

    pub(crate) fn pos(&self) -> usize {
        self.pos
    }

    pub(crate) fn bytes(&mut self, b: &[u8]) {
        if let Some(room) = self.buf.get_mut(self.pos..self.pos + b.len()) {
            room.copy_from_slice(b);
        }
        self.pos += b.len();
    }

    pub(crate) fn zeros(&mut self, n: usize) {
        if let Some(room) = self.buf.get_mut(self.pos..self.pos + n) {
            room.fill(0);
        }
        self.pos += n;
    }

    pub(crate) fn u8(&mut self, v: u8) {
        self.bytes(&[v]);
    }

    pub(crate) fn u16(&mut self, v: u16) {
        self.bytes(&v.to_be_bytes());
    }

    pub(crate) fn u32(&mut self, v: u32) {
        self.bytes(&v.to_be_bytes());
    }

    pub(crate) fn u48(&mut self, v: u64) {
        self.bytes(&v.to_be_bytes()[2..]);
    }

    pub(crate) fn u64(&mut self, v: u64) {
        self.bytes(&v.to_be_bytes());
    }

    /// The number of bytes written, or how many there would have been.
    pub(crate) fn finish(self) -> Result<usize, BuildError> {
        if self.pos > self.buf.len() {
            return Err(BuildError::BufferTooSmall { need: self.pos, have: self.buf.len() });
        }
        Ok(self.pos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reader_reports_where_the_missing_field_begins() {
        let mut r = Reader::new(&[1, 2, 3], WireError::HeartbeatTruncated);
        assert_eq!(r.u16(), Ok(0x0102));
        assert_eq!(r.u16(), Err(WireError::HeartbeatTruncated(2)));
        assert_eq!(r.u8(), Ok(3));
        assert_eq!(r.rest(), &[] as &[u8]);
    }

    #[test]
    fn writer_counts_past_the_end() {
        let mut buf = [0; 3];
        let mut w = Writer::new(&mut buf);
        w.u16(0x0102);
        w.u48(7);
        assert_eq!(w.finish(), Err(BuildError::BufferTooSmall { need: 8, have: 3 }));
        assert_eq!(buf, [1, 2, 0]);
    }
}
