//! Coded data that is copied: the bits stay the same, but stand at another alignment for each client.
//!
//! Shifted bits make other bytes, of which 0xFF is followed by a zero. How many bytes a part takes after the shift
//! depends on the alignment alone, so [`Copied`] counts the bytes of ones at all eight: then a place in the output is
//! found without reading the file before it.

use crate::bits::{Bit, BitWriter, Partial, Window};

/// Distance of places to start from, bytes of the file. A packet from the middle reads half of it in vain, and an
/// index has 48 bytes for each.
const DISTANCE: u32 = 4096;
/// Bytes per read.
const BLOCK: usize = 1024;

/// Where a copy can start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Start {
    /// Offset in the file.
    byte: u32,
    count: Count,
}

/// What a reader knows of some bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    bits: u32,
    /// The last eight of them.
    last: u8,
    /// Runs of eight ones, by the place of their first bit modulo 8.
    ones: [u32; 8],
}

impl Count {
    /// Adds the last `count` of `value`'s bits.
    fn add(&mut self, window: &mut u32, value: u8, count: u8) {
        *window = *window << count | u32::from(value);
        self.bits += u32::from(count);
        self.last = *window as u8;
        // Bit i is set if the bits from i to i + 7 are ones.
        let mut runs = *window & *window >> 1;
        runs &= runs >> 2;
        runs &= runs >> 4;
        runs &= (1 << count) - 1;
        while runs != 0 {
            let first = self.bits - runs.trailing_zeros() - 8;
            self.ones[first as usize % 8] += 1;
            runs &= runs - 1;
        }
    }
}

/// A part of the coded data that no mark changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Copied {
    start: Bit,
    end: Bit,
    /// The first eight bits, zeros behind the end.
    first: u8,
    all: Count,
    starts: Box<[Start]>,
}

impl Copied {
    /// The bits from `start` to `end` of a file.
    pub fn new(file: &[u8], start: Bit, end: Bit) -> Copied {
        let (mut all, mut window, mut starts) = (Count::default(), 0, Vec::new());
        let mut next = start.byte + DISTANCE;
        let (mut first, mut missing) = (0, 8);
        for (byte, value, count) in pieces(file, start, end) {
            if byte >= next && all.bits >= 8 {
                starts.push(Start { byte, count: all });
                next = byte + DISTANCE;
            }
            let part = count.min(missing);
            first = (u16::from(first) << part | u16::from(value) >> (count - part)) as u8;
            missing -= part;
            all.add(&mut window, value, count);
        }
        first = (u16::from(first) << missing) as u8;
        Copied { start, end, first, all, starts: starts.into() }
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        size_of::<Copied>() + self.starts.len() * size_of::<Start>()
    }

    /// Whole bytes that the first bits make behind `before`, the stuffed zeros included.
    fn length(&self, before: Partial, count: &Count) -> u64 {
        let n = u32::from(before.count);
        let mut length = u64::from((n + count.bits) / 8);
        length += u64::from(count.ones[(8 - n as usize) % 8]);
        let joint = u16::from(before.bits) << (8 - n) | u16::from(self.first) >> n;
        if n > 0 && n + count.bits >= 8 && joint == 0xff {
            length += 1;
        }
        length
    }

    /// The bits that are left behind the last whole byte.
    fn rest(before: Partial, count: &Count) -> Partial {
        let left = ((u32::from(before.count) + count.bits) % 8) as u8;
        let shifted = if count.bits < 8 { u16::from(before.bits) << count.bits } else { 0 };
        Partial { bits: ((shifted | u16::from(count.last)) & ((1 << left) - 1)) as u8, count: left }
    }

    /// The whole bytes that `before` and these bits make, and the bits left over.
    pub fn output(&self, before: Partial) -> (u64, Partial) {
        (self.length(before, &self.all), Copied::rest(before, &self.all))
    }

    /// Writes it behind `before`, and returns the bits left over. `read` gives bytes of the file.
    pub fn write<E>(
        &self,
        before: Partial,
        window: &mut Window<'_>,
        read: &mut impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<Partial, E> {
        let (length, rest) = self.output(before);
        let begin = window.at;
        if begin + length <= window.from() {
            window.at += length;
            return Ok(rest);
        }
        let wanted = window.from().saturating_sub(begin);
        let passed = self.starts.partition_point(|start| self.length(before, &start.count) <= wanted);
        let (start, before) = match passed.checked_sub(1).map(|index| self.starts[index]) {
            Some(start) => {
                window.at = begin + self.length(before, &start.count);
                (Bit { byte: start.byte, bit: 0 }, Copied::rest(before, &start.count))
            }
            None => (self.start, before),
        };
        let mut block = [0; BLOCK];
        let mut at = start.byte;
        let mut writer = BitWriter::new(window, before);
        let last = self.end.byte + u32::from(self.end.bit > 0);
        let mut is_stuffed = false;
        while at < last && writer.window.at < writer.window.end() {
            let block = &mut block[..BLOCK.min((last - at) as usize)];
            read(at.into(), block)?;
            for byte in block.iter() {
                if !(is_stuffed && *byte == 0) {
                    let (value, count) = piece(at, *byte, start, self.end);
                    writer.put(value.into(), count.into());
                }
                is_stuffed = *byte == 0xff;
                at += 1;
            }
        }
        window.at = begin + length;
        Ok(rest)
    }
}

/// The bits of one byte that lie between two places, and their number.
fn piece(at: u32, byte: u8, start: Bit, end: Bit) -> (u8, u8) {
    let from = if at == start.byte { start.bit } else { 0 };
    let to = if at == end.byte { end.bit } else { 8 };
    let count = to.saturating_sub(from);
    ((u16::from(byte) >> (8 - to) & ((1 << count) - 1)) as u8, count)
}

/// The bits between two places, by bytes: offset, value, number of bits.
fn pieces(file: &[u8], start: Bit, end: Bit) -> impl Iterator<Item = (u32, u8, u8)> {
    let last = end.byte as usize + usize::from(end.bit > 0);
    let bytes = file.get(start.byte as usize..last).unwrap_or_default();
    let mut is_stuffed = false;
    (start.byte..).zip(bytes).filter_map(move |(at, byte)| {
        let skipped = is_stuffed && *byte == 0;
        is_stuffed = *byte == 0xff;
        let (value, count) = piece(at, *byte, start, end);
        (!skipped).then_some((at, value, count))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Bits that are mostly ones, copied from any place to any place behind any bits, are the bits in a row.
        #[test]
        fn copies_are_the_bits_in_a_row(
            bytes in prop::collection::vec(prop_oneof![3 => Just(0xffu8), 1 => any::<u8>()], 1..20_000),
            ends in (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0u8..8, 0u8..8),
            (bits, count, from) in (any::<u8>(), 0u8..8, any::<prop::sample::Index>()),
        ) {
            let stuffed: Vec<u8> =
                bytes.iter().flat_map(|b| [*b, 0].into_iter().take(if *b == 0xff { 2 } else { 1 })).collect();
            // Places by bytes without zeros, then by bytes of the file.
            let mut places = [(ends.0.index(bytes.len()), ends.2), (ends.1.index(bytes.len()), ends.3)];
            places.sort_unstable();
            let [start, end] = places.map(|(at, bit)| {
                let zeros = bytes[..at].iter().filter(|b| **b == 0xff).count();
                Bit { byte: (at + zeros) as u32, bit }
            });
            let before = Partial::first_of(bits | 0xe0, count);
            let copied = Copied::new(&stuffed, start, end);
            let mut want = vec![0; 60_000];
            let mut window = Window::new(0, &mut want);
            let mut writer = BitWriter::new(&mut window, before);
            for place in places[0].0 * 8 + usize::from(places[0].1)..places[1].0 * 8 + usize::from(places[1].1) {
                writer.put(u32::from(bytes[place / 8]) >> (7 - place % 8), 1);
            }
            let (rest, length) = (writer.partial(), window.at);
            prop_assert_eq!(copied.output(before), (length, rest));
            let from = from.index(length as usize + 1);
            let mut out = vec![0; (length as usize - from).min(3000)];
            let mut window = Window::new(from as u64, &mut out);
            let mut read = |at: u64, out: &mut [u8]| {
                out.copy_from_slice(&stuffed[at as usize..at as usize + out.len()]);
                Ok::<_, ()>(())
            };
            prop_assert_eq!(copied.write(before, &mut window, &mut read), Ok(rest));
            prop_assert_eq!(window.at, length);
            prop_assert_eq!(&out[..], &want[from..from + out.len()]);
        }
    }
}
