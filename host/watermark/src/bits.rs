//! Bits of coded data: read from a file with its stuffed zeros, and written with new ones.

/// The value of the last `count` (at most 63) of 64 bits.
fn low(count: u32) -> u64 {
    (1 << count) - 1
}

/// A place in coded data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bit {
    /// Offset of the byte in the file.
    pub byte: u32,
    /// Bits of it that lie before the place, 0 to 7.
    pub bit: u8,
}

/// Reads bits from `data`; stops at a marker and at the end.
#[derive(Clone)]
pub(crate) struct BitReader<'a> {
    data: &'a [u8],
    /// Offset of the next byte to load.
    next: usize,
    /// The last `count` bits are loaded and not consumed.
    bits: u64,
    count: u32,
}

/// The coded data ended, or the code is none of the table's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bad {
    End,
    Code,
}

impl<'a> BitReader<'a> {
    /// Reads from `start` on.
    pub fn new(data: &'a [u8], start: Bit) -> BitReader<'a> {
        let mut reader = BitReader { data, next: start.byte as usize, bits: 0, count: 0 };
        if start.bit > 0 {
            reader.fill();
            reader.count = reader.count.saturating_sub(start.bit.into());
        }
        reader
    }

    fn fill(&mut self) {
        while self.count <= 56 {
            let Some(&byte) = self.data.get(self.next) else { return };
            if byte == 0xff {
                if self.data.get(self.next + 1) != Some(&0) {
                    return;
                }
                self.next += 1;
            }
            self.next += 1;
            self.bits = self.bits << 8 | u64::from(byte);
            self.count += 8;
        }
    }

    /// The next 16 bits, zeros behind the end.
    pub fn peek(&mut self) -> u16 {
        if self.count < 16 {
            self.fill();
        }
        match self.count.checked_sub(16) {
            Some(more) => (self.bits >> more) as u16,
            None => ((self.bits & low(self.count)) << (16 - self.count)) as u16,
        }
    }

    /// Passes over up to 16 bits.
    pub fn skip(&mut self, count: u32) -> Result<(), Bad> {
        if self.count < count {
            self.fill();
        }
        self.count = self.count.checked_sub(count).ok_or(Bad::End)?;
        Ok(())
    }

    /// The value of the next up to 16 bits.
    pub fn take(&mut self, count: u32) -> Result<u32, Bad> {
        self.skip(count)?;
        Ok((self.bits >> self.count & low(count)) as u32)
    }

    /// Where the next bit is.
    pub fn place(&self) -> Bit {
        let mut byte = self.next;
        for _ in 0..self.count.div_ceil(8) {
            byte -= if self.data[byte - 1] == 0 && byte >= 2 && self.data[byte - 2] == 0xff { 2 } else { 1 };
        }
        Bit { byte: byte as u32, bit: (8 - self.count % 8) as u8 % 8 }
    }

    /// Drops the bits before the next marker; the marker's offset, that of its first 0xFF, and its number.
    /// `None`: the data ends without one.
    pub fn marker(&mut self) -> Option<(usize, u8)> {
        self.count = 0;
        loop {
            let at = self.next + self.data.get(self.next..)?.iter().position(|b| *b == 0xff)?;
            let after = at + self.data[at..].iter().position(|b| *b != 0xff)?;
            self.next = after + 1;
            if self.data[after] != 0 {
                return Some((at, self.data[after]));
            }
        }
    }
}

/// Bits that do not fill a byte yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Partial {
    /// Their value.
    pub bits: u8,
    /// How many, 0 to 7.
    pub count: u8,
}

impl Partial {
    /// The first `count` bits of `byte`.
    pub fn first_of(byte: u8, count: u8) -> Partial {
        let count = count & 7;
        Partial { bits: (u16::from(byte) >> (8 - count)) as u8, count }
    }

    /// As one byte: a one, and the bits behind it.
    pub fn encode(self) -> u8 {
        1 << self.count | self.bits
    }

    /// Reads [`encode`](Self::encode); `None` for a zero.
    pub fn decode(byte: u8) -> Option<Partial> {
        let count = byte.checked_ilog2()? as u8;
        Some(Partial { bits: byte ^ 1 << count, count })
    }
}

/// A window of a long output: bytes written outside of it are counted and dropped.
pub(crate) struct Window<'a> {
    /// Offset of the next byte that is written.
    pub at: u64,
    from: u64,
    out: &'a mut [u8],
}

impl<'a> Window<'a> {
    /// Keeps the bytes from offset `from` on, as many as fit into `out`.
    pub fn new(from: u64, out: &'a mut [u8]) -> Window<'a> {
        Window { at: 0, from, out }
    }

    /// Offset behind the last byte that is kept.
    pub fn end(&self) -> u64 {
        self.from + self.out.len() as u64
    }

    /// Offset of the first byte that is kept.
    pub fn from(&self) -> u64 {
        self.from
    }

    pub fn push(&mut self, byte: u8) {
        let index = self.at.wrapping_sub(self.from);
        if index < self.out.len() as u64 {
            self.out[index as usize] = byte;
        }
        self.at += 1;
    }

    /// The part of `length` bytes, written from the present offset on, that is kept: the bytes before it, and the place
    /// that they go to.
    pub fn part(&mut self, length: u64) -> (u64, &mut [u8]) {
        let start = self.at;
        self.at += length;
        let first = start.max(self.from);
        let last = self.at.min(self.end());
        if first >= last {
            return (0, &mut []);
        }
        let out = &mut self.out[(first - self.from) as usize..(last - self.from) as usize];
        (first - start, out)
    }
}

/// Writes bits into a window, with a zero behind each 0xFF.
pub(crate) struct BitWriter<'w, 'a> {
    pub window: &'w mut Window<'a>,
    bits: u64,
    count: u32,
}

impl<'w, 'a> BitWriter<'w, 'a> {
    /// Goes on behind these bits.
    pub fn new(window: &'w mut Window<'a>, before: Partial) -> BitWriter<'w, 'a> {
        BitWriter { window, bits: before.bits.into(), count: before.count.into() }
    }

    /// Writes the last `count` bits (at most 32) of `value`.
    pub fn put(&mut self, value: u32, count: u32) {
        self.bits = self.bits << count | u64::from(value) & low(count);
        self.count += count;
        while self.count >= 8 {
            self.count -= 8;
            self.byte((self.bits >> self.count) as u8);
        }
    }

    fn byte(&mut self, byte: u8) {
        self.window.push(byte);
        if byte == 0xff {
            self.window.push(0);
        }
    }

    /// Fills the last byte with ones.
    pub fn pad(&mut self) {
        if self.count > 0 {
            let missing = 8 - self.count;
            self.put(low(missing) as u32, missing);
        }
    }

    /// The bits that fill no byte.
    pub fn partial(&self) -> Partial {
        Partial { bits: (self.bits & low(self.count)) as u8, count: self.count as u8 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn written_bits_are_read_at_their_places(values in prop::collection::vec((any::<u32>(), 1u32..17), 0..200)) {
            let mut out = vec![0; 1000];
            let mut window = Window::new(0, &mut out);
            let mut writer = BitWriter::new(&mut window, Partial::default());
            for (value, count) in &values {
                // Many ones, so that there are many stuffed zeros.
                writer.put(value | value >> 3, *count);
            }
            writer.pad();
            let length = window.at as usize;
            out.truncate(length);
            let mut reader = BitReader::new(&out, Bit::default());
            for (value, count) in &values {
                let mut other = BitReader::new(&out, reader.place());
                prop_assert_eq!(other.peek(), reader.peek());
                let value = (value | value >> 3) & low(*count) as u32;
                prop_assert_eq!(reader.take(*count), Ok(value));
                prop_assert_eq!(other.take(*count), Ok(value));
                prop_assert_eq!(other.place(), reader.place());
            }
        }
    }

    #[test]
    fn reader_stops_at_a_marker() {
        let data = [0xff, 0, 0x12, 0xff, 0xff, 0xd3, 0x55];
        let mut reader = BitReader::new(&data, Bit::default());
        assert_eq!((reader.take(16), reader.take(1)), (Ok(0xff12), Err(Bad::End)));
        assert_eq!(reader.marker(), Some((3, 0xd3)));
        assert_eq!(reader.place(), Bit { byte: 6, bit: 0 });
        assert_eq!((reader.take(8), reader.marker()), (Ok(0x55), None));
    }
}
