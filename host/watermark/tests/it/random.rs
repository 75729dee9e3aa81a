//! Random pictures: any sampling, tables, restart intervals and scans that baseline allows.

use proptest::prelude::*;

/// What a file is made of.
#[derive(Clone, Debug)]
pub struct Recipe {
    pub width: u16,
    pub height: u16,
    /// Sampling factors of each component.
    pub factors: Vec<(u8, u8)>,
    pub interval: u16,
    /// Each component has its own scan.
    pub is_split: bool,
    /// Highest size of a DC difference that has a code.
    pub categories: u8,
    pub quantizer: u16,
    pub seed: u64,
}

pub fn recipes() -> impl Strategy<Value = Recipe> {
    let factors = prop_oneof![
        Just(vec![(1, 1)]),
        Just(vec![(2, 2)]),
        Just(vec![(1, 1); 3]),
        Just(vec![(2, 1), (1, 1), (1, 1)]),
        Just(vec![(1, 2), (1, 1), (1, 1)]),
        Just(vec![(2, 2), (1, 1), (1, 1)]),
        Just(vec![(4, 1), (1, 1), (1, 1)]),
        Just(vec![(2, 2), (2, 1), (1, 2)]),
    ];
    let interval = prop_oneof![Just(0u16), 1u16..4, 1u16..200];
    let quantizer = prop_oneof![Just(1u16), 1u16..40, 200u16..400];
    (24u16..700, 40u16..300, factors, interval, any::<bool>(), 0u8..12, quantizer, any::<u64>()).prop_map(
        |(width, height, factors, interval, is_split, categories, quantizer, seed)| Recipe {
            width,
            height,
            factors,
            interval,
            is_split,
            categories,
            quantizer,
            seed,
        },
    )
}

struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % most
    }
}

/// Bits with stuffed zeros.
#[derive(Default)]
struct Coded {
    out: Vec<u8>,
    bits: u64,
    count: u32,
}

impl Coded {
    fn put(&mut self, value: u32, count: u32) {
        for bit in (0..count).rev() {
            self.bits = self.bits << 1 | u64::from(value >> bit & 1);
            self.count += 1;
            if self.count == 8 {
                self.out.push(self.bits as u8);
                if self.bits as u8 == 0xff {
                    self.out.push(0);
                }
                (self.bits, self.count) = (0, 0);
            }
        }
    }

    fn pad(&mut self) {
        while self.count > 0 {
            self.put(1, 1);
        }
    }
}

/// Codes of equal length for so many symbols; the code of ones alone is left.
fn lengths(symbols: usize) -> ([u8; 16], u32) {
    let length = (symbols as u32 + 1).next_power_of_two().trailing_zeros().max(1);
    let mut lengths = [0; 16];
    lengths[length as usize - 1] = symbols as u8;
    (lengths, length)
}

fn segment(file: &mut Vec<u8>, marker: u8, content: &[u8]) {
    file.extend([0xff, marker]);
    file.extend((content.len() as u16 + 2).to_be_bytes());
    file.extend(content);
}

impl Recipe {
    /// The file.
    pub fn file(&self) -> Vec<u8> {
        let mut random = Random(self.seed | 1);
        let mut file = vec![0xff, 0xd8];
        segment(&mut file, 0xfe, b"a comment with \xff\xd9 in it");
        let mut table = vec![0x10];
        (0..64).for_each(|_| table.extend(self.quantizer.to_be_bytes()));
        segment(&mut file, 0xdb, &table);
        let mut frame = vec![8];
        frame.extend(self.height.to_be_bytes());
        frame.extend(self.width.to_be_bytes());
        frame.push(self.factors.len() as u8);
        for (index, (across, down)) in self.factors.iter().enumerate() {
            frame.extend([index as u8 + 1, across << 4 | down, 0]);
        }
        segment(&mut file, 0xc0, &frame);
        let dc: Vec<u8> = (0..=self.categories).rev().collect();
        // End of block, sixteen zeros, and runs with small numbers.
        let ac = [0, 1, 0xf0, 0x11, 2, 0x35, 0x0a];
        let (dc_lengths, dc_bits) = lengths(dc.len());
        let (ac_lengths, ac_bits) = lengths(ac.len());
        for (kind, lengths, symbols) in [(0, dc_lengths, &dc[..]), (0x10, ac_lengths, &ac[..])] {
            segment(&mut file, 0xc4, &[&[kind], &lengths[..], symbols].concat());
        }
        if self.interval > 0 {
            segment(&mut file, 0xdd, &self.interval.to_be_bytes());
        }
        let all: Vec<usize> = (0..self.factors.len()).collect();
        let scans: Vec<&[usize]> = if self.is_split { all.chunks(1).collect() } else { vec![&all] };
        for scan in scans {
            let mut head = vec![scan.len() as u8];
            scan.iter().for_each(|index| head.extend([*index as u8 + 1, 0]));
            head.extend([0, 63, 0]);
            segment(&mut file, 0xda, &head);
            let mut coded = Coded::default();
            let mut predictors = [0i32; 3];
            let (mcus, blocks) = self.mcus(scan);
            for mcu in 0..mcus {
                if self.interval > 0 && mcu > 0 && mcu % u32::from(self.interval) == 0 {
                    coded.pad();
                    coded.out.extend([0xff, 0xd0 + ((mcu / u32::from(self.interval) - 1) % 8) as u8]);
                    predictors = [0; 3];
                }
                for component in scan.iter().flat_map(|c| std::iter::repeat_n(*c, blocks[*c] as usize)) {
                    let predictor = &mut predictors[component];
                    let (difference, size) = loop {
                        let size = random.below(u64::from(self.categories) + 1) as u32;
                        let bits = random.below(1 << size) as i32;
                        let low = size > 0 && bits >> (size - 1) == 0;
                        let difference = if low { bits - (1 << size) + 1 } else { bits };
                        if size == 0 || (-1024..1024).contains(&(*predictor + difference)) {
                            break (difference, size);
                        }
                    };
                    *predictor += difference;
                    coded.put(u32::from(self.categories) - size, dc_bits);
                    let bits = if difference < 0 { difference - 1 } else { difference };
                    coded.put(bits as u32 & ((1 << size) - 1), size);
                    let mut coefficient = 1;
                    loop {
                        let most = if random.below(4) == 0 { ac.len() as u64 } else { 2 };
                        let choice = random.below(most) as usize;
                        let (run, size) = (u32::from(ac[choice] >> 4), u32::from(ac[choice] & 15));
                        if choice == 0 || coefficient + run + 1 > 64 {
                            coded.put(0, ac_bits);
                            break;
                        }
                        coded.put(choice as u32, ac_bits);
                        // Ones are common, so that many bytes are 0xFF.
                        coded.put(
                            if random.below(2) == 0 { u32::MAX } else { random.below(1 << 16) as u32 },
                            size,
                        );
                        coefficient += run + 1;
                        if coefficient == 64 {
                            break;
                        }
                    }
                }
            }
            coded.pad();
            file.append(&mut coded.out);
        }
        file.extend([0xff, 0xd9]);
        file.extend(b"behind the end");
        file
    }

    /// MCUs of a scan, and blocks of each component in one.
    fn mcus(&self, scan: &[usize]) -> (u32, [u32; 3]) {
        let most = |of: fn(&(u8, u8)) -> u8| u32::from(self.factors.iter().map(of).max().unwrap());
        let (across, down) = (most(|f| f.0), most(|f| f.1));
        let (width, height) = (u32::from(self.width), u32::from(self.height));
        let mut blocks = [1; 3];
        if let [only] = scan {
            let (a, d) = self.factors[*only];
            let part =
                |pixels: u32, factor: u8, most: u32| (pixels * u32::from(factor)).div_ceil(most).div_ceil(8);
            return (part(width, a, across) * part(height, d, down), blocks);
        }
        for (block, (a, d)) in blocks.iter_mut().zip(&self.factors) {
            *block = u32::from(a * d);
        }
        (width.div_ceil(8 * across) * height.div_ceil(8 * down), blocks)
    }
}
