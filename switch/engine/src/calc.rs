//! Calculations: hashes and checksums over fields.

use crate::bits::put;
use crate::hash::{self, Algorithm};
use crate::program::{Checksum, Input, Program, SumGroup};
use crate::vm::{Packet, Vm};

impl Vm {
    /// The value of a calculation. Fields of invalid headers are omitted, as in BMv2.
    pub(crate) fn calculate(&mut self, program: &Program, id: u32, packet: &Packet) -> u64 {
        let calc = &program.calculations[id as usize];
        match calc.algorithm {
            Algorithm::Random => return self.random(),
            Algorithm::RoundRobin => {
                self.round_robin += 1;
                return self.round_robin - 1;
            }
            _ => {}
        }
        if let Some(groups) = &calc.sum {
            return self.sum(program, groups, calc.payload.then_some(packet));
        }
        let mut buf = std::mem::take(&mut self.scratch);
        let mut bits = 0usize;
        buf.clear();
        let piece = |buf: &mut Vec<u8>, bits: &mut usize, width: u32, value: u64| {
            if width > 0 {
                buf.resize(*bits / 8 + 10, 0);
                put(buf, *bits, width, value);
                *bits += width as usize;
            }
        };
        for input in &calc.inputs {
            match input {
                Input::Field(f) => {
                    let h = &program.headers[f.header as usize];
                    if self.frame[h.valid() as usize] == 0 {
                        continue;
                    }
                    if f.vl {
                        let n = (self.frame[h.vl_bits() as usize] / 8) as usize;
                        let at = h.vl.map_or(0, |v| v.0) as usize;
                        for k in 0..n {
                            piece(&mut buf, &mut bits, 8, self.vl[at + k].into());
                        }
                        continue;
                    }
                    let limbs = crate::bits::limb_count(f.width) as u32;
                    for l in (0..limbs).rev() {
                        let value = self.frame[(f.slot + l) as usize];
                        piece(&mut buf, &mut bits, (f.width - 64 * l).min(64), value);
                    }
                }
                Input::Const(limbs, width) => {
                    for (l, value) in limbs.iter().enumerate().rev() {
                        piece(&mut buf, &mut bits, (width - 64 * l as u32).min(64), *value);
                    }
                }
                Input::Header(h) => {
                    let h = &program.headers[*h as usize];
                    if self.frame[h.valid() as usize] != 0 && bits.is_multiple_of(8) {
                        let bytes = self.header_bytes(h);
                        buf.resize(bits / 8 + bytes + 10, 0);
                        self.write_header(h, &mut buf[bits / 8..]);
                        bits += bytes * 8;
                    }
                }
            }
        }
        buf.truncate(bits.div_ceil(8));
        if calc.payload {
            let cut = self.frame[program.special.truncate as usize];
            let rest = &packet.data[packet.taken..];
            buf.extend_from_slice(&rest[..(rest.len() as u64).min(cut) as usize]);
        }
        let value = match calc.algorithm {
            Algorithm::Crc(c) => c.compute(&buf),
            Algorithm::Csum16 => hash::csum16(&buf),
            Algorithm::Xor16 => hash::xor::<2>(&buf),
            Algorithm::Xor32 => hash::xor::<4>(&buf),
            Algorithm::Identity => hash::identity(&buf),
            Algorithm::Xxh64 => hash::xxh64(&buf),
            Algorithm::Random | Algorithm::RoundRobin => 0,
        };
        self.scratch = buf;
        value
    }

    /// The Internet checksum, without copying the bytes together: 2^16 equals 1 in its arithmetic,
    /// so a field only has to be shifted to its position within a word.
    fn sum(&self, program: &Program, groups: &[SumGroup], payload: Option<&Packet>) -> u64 {
        let mut sum = 0u64;
        for g in groups {
            if g.valid.is_some_and(|v| self.frame[v as usize] == 0) {
                continue;
            }
            sum += g.constant;
            for (slot, shift) in &g.terms {
                let v = self.frame[*slot as usize];
                sum += ((v & 0xffff_ffff) << shift) + ((v >> 32) << shift);
            }
        }
        if let Some(packet) = payload {
            let cut = self.frame[program.special.truncate as usize];
            let rest = &packet.data[packet.taken..];
            sum += hash::words16(&rest[..(rest.len() as u64).min(cut) as usize]);
        }
        hash::fold(sum)
    }

    /// The correct value of a checksum.
    pub(crate) fn checksum(&mut self, program: &Program, sum: &Checksum, packet: &Packet) -> u64 {
        match sum.calculation {
            Some(calc) => self.calculate(program, calc, packet),
            None => {
                let h = &program.headers[sum.target.header as usize];
                let mut buf = std::mem::take(&mut self.scratch);
                let bytes = self.header_bytes(h);
                buf.clear();
                buf.resize(bytes + 9, 0);
                self.write_header(h, &mut buf);
                buf.truncate(bytes);
                if let Some(old) = buf.get_mut(10..12) {
                    old.fill(0);
                }
                let value = hash::csum16(&buf);
                self.scratch = buf;
                value
            }
        }
    }
}
