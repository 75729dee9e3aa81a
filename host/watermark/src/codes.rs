//! Huffman tables (ITU-T T.81, annexes C and F): codes read, codes written, and codes added for the mark.

use crate::bits::{Bad, BitReader};

/// Bits that are looked up at once.
const FAST: u32 = 9;

/// A table of codes as the file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    /// Number of codes of 1 to 16 bits.
    pub lengths: [u8; 16],
    /// The symbols, in the order of their codes.
    pub symbols: Box<[u8]>,
    /// By the next [`FAST`] bits: length of the code, and its symbol; length 0 for longer codes.
    fast: Box<[(u8, u8)]>,
    /// By length: the first code behind those of this length, as the top of 17 bits, and the offset of their
    /// symbols from their codes.
    long: [(u32, i32); 16],
}

impl Table {
    /// `None`: not the lengths of a prefix code.
    pub fn new(lengths: [u8; 16], symbols: &[u8]) -> Option<Table> {
        let mut table = Table {
            lengths,
            symbols: symbols.into(),
            fast: vec![(0, 0); 1 << FAST].into(),
            long: [(0, 0); 16],
        };
        if lengths.iter().map(|n| usize::from(*n)).sum::<usize>() != symbols.len() {
            return None;
        }
        let (mut code, mut index) = (0u32, 0u32);
        for (length, &codes) in (1u32..).zip(&lengths) {
            let first = code;
            for symbol in &symbols[index as usize..][..codes.into()] {
                if length <= FAST {
                    let spare = FAST - length;
                    let entries = table.fast.get_mut((code << spare) as usize..)?;
                    entries.get_mut(..1 << spare)?.fill((length as u8, *symbol));
                }
                code += 1;
            }
            if code > 1 << length {
                return None;
            }
            table.long[length as usize - 1] = (code << (16 - length), index as i32 - first as i32);
            index += u32::from(codes);
            code <<= 1;
        }
        Some(table)
    }

    /// Reads a symbol; it and the length of its code.
    pub fn read(&self, reader: &mut BitReader<'_>) -> Result<(u8, u32), Bad> {
        let next = reader.peek();
        let (length, symbol) = self.fast[usize::from(next >> (16 - FAST))];
        if length > 0 {
            reader.skip(length.into())?;
            return Ok((symbol, length.into()));
        }
        for (length, (end, offset)) in (1u32..).zip(&self.long).skip(FAST as usize) {
            if u32::from(next) < *end {
                reader.skip(length)?;
                let code = (next >> (16 - length)) as i32;
                let symbol = self.symbols.get((code + offset) as usize);
                return symbol.map(|symbol| (*symbol, length)).ok_or(Bad::Code);
            }
        }
        Err(Bad::Code)
    }

    /// The code of each symbol below 12: its bits and their number, 0 if it has none.
    pub fn codes(&self) -> [(u16, u8); CATEGORIES] {
        let mut all = [(0, 0); CATEGORIES];
        let (mut code, mut symbols) = (0u32, self.symbols.iter());
        for (length, &codes) in (1u8..).zip(&self.lengths) {
            for symbol in symbols.by_ref().take(codes.into()) {
                if let Some(entry) = all.get_mut(usize::from(*symbol)) {
                    *entry = (code as u16, length);
                }
                code += 1;
            }
            code <<= 1;
        }
        all
    }

    /// The same table with codes for all sizes of a DC difference. Codes that are there stay as they are: the added ones
    /// are longer, or follow them. `None` if it has no room for them; the code of ones alone stays unused.
    pub fn with_all_categories(&self) -> Option<Table> {
        let missing: Vec<u8> =
            (0..CATEGORIES as u8).filter(|category| !self.symbols.contains(category)).collect();
        if missing.is_empty() {
            return Some(self.clone());
        }
        let longest = self.lengths.iter().rposition(|n| *n > 0)?;
        let used = (0..=longest).fold(0u32, |used, at| used * 2 + u32::from(self.lengths[at]));
        let free = (2u32 << longest) - used;
        let length = (longest..16).find(|length| (free << (length - longest)) > missing.len() as u32)?;
        let mut lengths = self.lengths;
        lengths[length] = lengths[length].checked_add(missing.len() as u8)?;
        Table::new(lengths, &[&self.symbols[..], &missing].concat())
    }

    /// The marker segment that defines the table as DC table `id`.
    pub fn segment(&self, id: u8) -> Vec<u8> {
        let length = 2 + 17 + self.symbols.len() as u16;
        let mut segment = vec![0xff, 0xc4];
        segment.extend(length.to_be_bytes());
        segment.push(id);
        segment.extend(self.lengths);
        segment.extend(&self.symbols[..]);
        segment
    }
}

/// Sizes of a DC difference in baseline: 0 to 11 bits.
pub(crate) const CATEGORIES: usize = 12;

/// The number that `bits` stand for, which are `size` many (T.81, F.2.2.1).
pub(crate) fn extend(bits: u32, size: u8) -> i32 {
    if size == 0 || bits >> (size - 1) != 0 { bits as i32 } else { bits as i32 - (1 << size) + 1 }
}

/// Size and bits of a number; reverses [`extend`].
pub(crate) fn categorize(value: i32) -> (u8, u32) {
    let size = (32 - value.unsigned_abs().leading_zeros()) as u8;
    (size, if value < 0 { (value - 1) as u32 & ((1 << size) - 1) } else { value as u32 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::{Bit, BitWriter, Partial, Window};

    #[test]
    fn numbers_come_back() {
        for value in -2047..=2047 {
            let (size, bits) = categorize(value);
            assert!(usize::from(size) < CATEGORIES && extend(bits, size) == value, "{value}");
        }
    }

    #[test]
    fn added_codes_leave_the_others_as_they_are() {
        // Codes 0 and 10; 11 is free.
        let mut lengths = [0; 16];
        (lengths[0], lengths[1]) = (1, 1);
        let table = Table::new(lengths, &[3, 0]).unwrap();
        let more = table.with_all_categories().unwrap();
        assert_eq!(more.lengths[5], 10, "11 of 6 bits has 16 codes, of 5 bits 8");
        for category in [3, 0] {
            assert_eq!(table.codes()[category], more.codes()[category]);
        }
        assert!(more.codes().iter().all(|(code, length)| *length > 0 && *code < (1 << length) - 1));
        assert_eq!(more.with_all_categories().unwrap(), more);
        let mut out = [0; 64];
        let mut window = Window::new(0, &mut out);
        let mut writer = BitWriter::new(&mut window, Partial::default());
        for (code, length) in more.codes() {
            writer.put(code.into(), length.into());
        }
        writer.pad();
        let mut reader = BitReader::new(&out, Bit::default());
        for category in 0..CATEGORIES as u8 {
            assert_eq!(more.read(&mut reader).map(|(symbol, _)| symbol), Ok(category));
        }
        (lengths[1], lengths[2]) = (0, 4);
        assert!(Table::new(lengths, &[1, 2, 3, 4, 5]).unwrap().with_all_categories().is_none(), "full");
        (lengths[1], lengths[2]) = (3, 0);
        assert!(Table::new(lengths, &[1, 2, 3, 4]).is_none(), "no prefix code");
    }

    #[test]
    fn long_codes_are_read() {
        let mut lengths = [1; 16];
        lengths[15] = 2;
        let symbols: Vec<u8> = (0..17).collect();
        let table = Table::new(lengths, &symbols).unwrap();
        for (symbol, data) in [(15, [0xff, 0, 0xfe]), (16, [0xff, 0, 0xff]), (9, [0xff, 0, 0x80])] {
            let mut reader = BitReader::new(&data, Bit::default());
            // The last byte is followed by nothing, so one of ones is a marker's beginning.
            let want = if symbol == 16 { None } else { Some(symbol) };
            assert_eq!(table.read(&mut reader).ok().map(|(symbol, _)| symbol), want);
        }
    }
}
