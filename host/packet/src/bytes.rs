//! Cursors over byte slices: a reader that names the first missing field, and a writer that counts
//! the bytes that do not fit.

use crate::error::{BuildError, WireError};

/// Makes the error for a field that starts at the given offset.
pub(crate) type At = fn(usize) -> WireError;

/// Reads big-endian fields in order. `short` is the error of the present section.
#[derive(Clone)]
pub(crate) struct Reader<'a> {
    buf: &'a [u8],
    pos: usize,
    short: At,
}

impl<'a> Reader<'a> {
    #[inline]
    pub(crate) fn new(buf: &'a [u8], short: At) -> Self {
        Self { buf, pos: 0, short }
    }

    /// From here on, reports a missing field as `short`.
    #[inline]
    pub(crate) fn section(&mut self, short: At) {
        self.short = short;
    }

    #[inline]
    pub(crate) fn pos(&self) -> usize {
        self.pos
    }

    #[inline]
    pub(crate) fn remaining(&self) -> usize {
        self.buf.len() - self.pos
    }

    #[inline]
    pub(crate) fn bytes(&mut self, n: usize) -> Result<&'a [u8], WireError> {
        // `pos` never exceeds the length, so the subtraction in `remaining` cannot wrap.
        if n > self.remaining() {
            return Err((self.short)(self.pos));
        }
        let out = &self.buf[self.pos..self.pos + n];
        self.pos += n;
        Ok(out)
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let Some(out) = self.buf[self.pos..].first_chunk::<N>() else { return Err((self.short)(self.pos)) };
        self.pos += N;
        Ok(*out)
    }

    /// Reads fields of these widths, `N` bytes in all, at once. On failure it reports the first
    /// incomplete field, like separate reads.
    #[inline]
    pub(crate) fn fields<const N: usize>(&mut self, widths: &[u8]) -> Result<[u8; N], WireError> {
        match self.buf[self.pos..].first_chunk::<N>() {
            Some(out) => {
                self.pos += N;
                Ok(*out)
            }
            None => Err(self.missing(widths)),
        }
    }

    #[cold]
    fn missing(&self, widths: &[u8]) -> WireError {
        let (mut at, mut room) = (self.pos, self.remaining());
        for width in widths.iter().map(|w| usize::from(*w)) {
            match room.checked_sub(width) {
                Some(rest) => (at, room) = (at + width, rest),
                None => break,
            }
        }
        (self.short)(at)
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, WireError> {
        Ok(self.array::<1>()?[0])
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> Result<u16, WireError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    #[inline]
    pub(crate) fn u48(&mut self) -> Result<u64, WireError> {
        let b: [u8; 6] = self.array()?;
        Ok(u64::from_be_bytes([0, 0, b[0], b[1], b[2], b[3], b[4], b[5]]))
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    #[inline]
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        let out = &self.buf[self.pos..];
        self.pos = self.buf.len();
        out
    }
}

/// The bytes at a constant position of an array, for fields that were read at once; the compiler
/// removes the bounds check.
#[inline]
pub(crate) fn at<const N: usize, const L: usize>(bytes: &[u8; L], from: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[from..from + N]);
    out
}

/// The two bytes there, big-endian.
#[inline]
pub(crate) fn u16_at<const L: usize>(bytes: &[u8; L], from: usize) -> u16 {
    u16::from_be_bytes(at(bytes, from))
}

/// The four bytes there, big-endian.
#[inline]
pub(crate) fn u32_at<const L: usize>(bytes: &[u8; L], from: usize) -> u32 {
    u32::from_be_bytes(at(bytes, from))
}

/// The six bytes there, big-endian.
#[inline]
pub(crate) fn u48_at<const L: usize>(bytes: &[u8; L], from: usize) -> u64 {
    u64::from(u16_at(bytes, from)) << 32 | u64::from(u32_at(bytes, from + 2))
}

/// The eight bytes there, big-endian.
#[inline]
pub(crate) fn u64_at<const L: usize>(bytes: &[u8; L], from: usize) -> u64 {
    u64::from_be_bytes(at(bytes, from))
}

/// Writes big-endian fields in order. Past the end it only counts, so that the error can contain
/// the number of bytes needed.
pub(crate) struct Writer<'a> {
    buf: &'a mut [u8],
    pos: usize,
}

impl<'a> Writer<'a> {
    #[inline]
    pub(crate) fn new(buf: &'a mut [u8]) -> Self {
        Self { buf, pos: 0 }
    }

    #[inline]
    pub(crate) fn pos(&self) -> usize {
        self.pos
    }

    #[inline]
    pub(crate) fn bytes(&mut self, b: &[u8]) {
        if let Some(room) = self.buf.get_mut(self.pos..self.pos + b.len()) {
            room.copy_from_slice(b);
        }
        self.pos += b.len();
    }

    #[inline]
    pub(crate) fn zeros(&mut self, n: usize) {
        if let Some(room) = self.buf.get_mut(self.pos..self.pos + n) {
            room.fill(0);
        }
        self.pos += n;
    }

    #[inline]
    pub(crate) fn u8(&mut self, v: u8) {
        self.bytes(&[v]);
    }

    #[inline]
    pub(crate) fn u16(&mut self, v: u16) {
        self.bytes(&v.to_be_bytes());
    }

    #[inline]
    pub(crate) fn u32(&mut self, v: u32) {
        self.bytes(&v.to_be_bytes());
    }

    #[inline]
    pub(crate) fn u48(&mut self, v: u64) {
        self.bytes(&v.to_be_bytes()[2..]);
    }

    #[inline]
    pub(crate) fn u64(&mut self, v: u64) {
        self.bytes(&v.to_be_bytes());
    }

    /// The number of bytes written, or how many there would have been.
    #[inline]
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
    fn fields_read_at_once_report_the_first_missing_one() {
        for length in 0..8 {
            let mut r = Reader::new(&[1, 2, 3, 4, 5, 6, 7][..length.min(7)], WireError::HeartbeatTruncated);
            let want = match length {
                7.. => Ok([1, 2, 3, 4, 5, 6, 7]),
                3..=6 => Err(WireError::HeartbeatTruncated(3)),
                1..=2 => Err(WireError::HeartbeatTruncated(1)),
                _ => Err(WireError::HeartbeatTruncated(0)),
            };
            assert_eq!(r.fields::<7>(&[1, 2, 4]), want, "{length} bytes");
        }
        let b = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(
            (u16_at(&b, 6), u48_at(&b, 1), u64_at(&b, 0)),
            (0x0708, 0x0203_0405_0607, 0x0102_0304_0506_0708)
        );
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
