//! A slow decoder that shares no code with the crate: bit by bit, from the file's own headers.

use std::collections::HashMap;

/// Coefficients of one block: component, column, row, and 64 numbers in the order of the file.
pub type Blocks = HashMap<(usize, u32, u32), Vec<i32>>;

struct Frame {
    width: u32,
    height: u32,
    /// Identifier and sampling factors.
    components: Vec<(u8, u32, u32)>,
}

struct Bits<'a> {
    file: &'a [u8],
    at: usize,
    bit: u32,
}

impl Bits<'_> {
    fn bit(&mut self) -> u32 {
        let byte = self.file[self.at];
        let value = u32::from(byte >> (7 - self.bit)) & 1;
        if byte == 0xff {
            assert_eq!(self.file[self.at + 1], 0, "a marker in the middle of a code");
        }
        self.bit += 1;
        if self.bit == 8 {
            self.bit = 0;
            self.at += if byte == 0xff { 2 } else { 1 };
        }
        value
    }

    fn number(&mut self, size: u32) -> i32 {
        let value = (0..size).fold(0, |value, _| value << 1 | self.bit() as i32);
        if size > 0 && value < 1 << (size - 1) { value - (1 << size) + 1 } else { value }
    }

    fn symbol(&mut self, table: &HashMap<(u32, u32), u8>) -> u8 {
        let mut code = 0;
        for length in 1..=16 {
            code = code << 1 | self.bit();
            if let Some(symbol) = table.get(&(length, code)) {
                return *symbol;
            }
        }
        panic!("no code at byte {}", self.at);
    }

    /// Fills to the byte, and passes over a marker.
    fn align(&mut self) -> u8 {
        while self.bit > 0 {
            assert_eq!(self.bit(), 1, "padding");
        }
        assert_eq!(self.file[self.at], 0xff, "nothing between the data and its marker");
        self.at += 2;
        self.file[self.at - 1]
    }
}

/// All coefficients of a file, and the bytes behind its end.
pub fn decode(file: &[u8]) -> (Blocks, &[u8]) {
    let mut tables: HashMap<u8, HashMap<(u32, u32), u8>> = HashMap::new();
    let (mut frame, mut interval, mut at) = (None, 0, 2);
    let mut blocks = Blocks::new();
    loop {
        assert_eq!(file[at], 0xff, "a marker at {at}");
        let marker = file[at + 1];
        if marker == 0xd9 {
            return (blocks, &file[at + 2..]);
        }
        let length = usize::from(file[at + 2]) << 8 | usize::from(file[at + 3]);
        let content = &file[at + 4..at + 2 + length];
        at += 2 + length;
        match marker {
            0xc0 => {
                let word = |at: usize| u32::from(content[at]) << 8 | u32::from(content[at + 1]);
                let components =
                    content[6..].chunks(3).map(|c| (c[0], u32::from(c[1] >> 4), u32::from(c[1] & 15)));
                frame = Some(Frame { height: word(1), width: word(3), components: components.collect() });
            }
            0xc4 => {
                let (mut code, mut symbols) = (0, content[17..].iter());
                let table = tables.entry(content[0]).or_default();
                table.clear();
                for length in 1..=16u32 {
                    for symbol in symbols.by_ref().take(content[length as usize].into()) {
                        table.insert((length, code), *symbol);
                        code += 1;
                    }
                    code <<= 1;
                }
            }
            0xdd => interval = u32::from(content[0]) << 8 | u32::from(content[1]),
            0xda => at = scan(file, at, content, frame.as_ref().unwrap(), &tables, interval, &mut blocks),
            _ => {}
        }
    }
}

fn scan(
    file: &[u8],
    at: usize,
    head: &[u8],
    frame: &Frame,
    tables: &HashMap<u8, HashMap<(u32, u32), u8>>,
    interval: u32,
    blocks: &mut Blocks,
) -> usize {
    let (across, down) = frame.components.iter().fold((1, 1), |most, c| (most.0.max(c.1), most.1.max(c.2)));
    let components: Vec<usize> = head[1..]
        .chunks(2)
        .take(head[0].into())
        .map(|c| frame.components.iter().position(|f| f.0 == c[0]).unwrap())
        .collect();
    let columns = |factor: u32| (frame.width * factor).div_ceil(across).div_ceil(8);
    let rows = |factor: u32| (frame.height * factor).div_ceil(down).div_ceil(8);
    let is_single = components.len() == 1;
    let (mcu_columns, mcu_rows) = match &components[..] {
        [only] => (columns(frame.components[*only].1), rows(frame.components[*only].2)),
        _ => (frame.width.div_ceil(8 * across), frame.height.div_ceil(8 * down)),
    };
    let mut bits = Bits { file, at, bit: 0 };
    let mut predictors = [0; 4];
    for mcu in 0..mcu_columns * mcu_rows {
        if interval > 0 && mcu > 0 && mcu % interval == 0 {
            assert_eq!(bits.align(), 0xd0 + ((mcu / interval - 1) % 8) as u8);
            predictors = [0; 4];
        }
        for component in &components {
            let (_, a, d) = frame.components[*component];
            let (a, d) = if is_single { (1, 1) } else { (a, d) };
            for block in 0..a * d {
                let mut coefficients = vec![0; 64];
                let size = bits.symbol(&tables[&0]);
                predictors[*component] += bits.number(size.into());
                coefficients[0] = predictors[*component];
                let mut index = 1;
                while index < 64 {
                    let symbol = bits.symbol(&tables[&0x10]);
                    if symbol == 0 {
                        break;
                    }
                    index += usize::from(symbol >> 4);
                    coefficients[index] = bits.number((symbol & 15).into());
                    index += 1;
                }
                let place = (mcu % mcu_columns * a + block % a, mcu / mcu_columns * d + block / a);
                blocks.insert((*component, place.0, place.1), coefficients);
            }
        }
    }
    bits.align();
    bits.at - 2
}
