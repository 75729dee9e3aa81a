//! Table keys: builds words from a packet's fields, and words and masks from an entry's key.

use smallvec::{SmallVec, smallvec};

use crate::bits::{canonical, limb_count, limbs_of, ones};
use crate::info::TableInfo;
use crate::types::{EntryKey, KeyMatch, MatchKind, WriteError};

/// Words of a key.
pub(crate) type Words = SmallVec<[u64; 4]>;

/// One limb of a key field: the bits of `slot` under `mask` go to bit `shift` of `word`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyPart {
    pub(crate) slot: u32,
    pub(crate) word: u32,
    pub(crate) shift: u32,
    pub(crate) mask: u64,
    /// Whether the mask keeps all bits that the slot can have.
    pub(crate) whole: bool,
}

/// A field's position in the words: its limbs, least significant first.
#[derive(Clone, Debug)]
pub(crate) struct KeyFieldPlan {
    pub(crate) width: u32,
    pub(crate) kind: MatchKind,
    /// Word and shift of each limb.
    pub(crate) at: SmallVec<[(u32, u32); 2]>,
    /// Static mask of the table's key, as limbs.
    pub(crate) mask: SmallVec<[u64; 4]>,
}

/// Plan for building a table's keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyPlan {
    pub(crate) parts: Vec<KeyPart>,
    pub(crate) words: usize,
    /// Unused bits in the last word.
    free: u32,
    pub(crate) fields: Vec<KeyFieldPlan>,
}

/// An entry's key in canonical form: equal keys are equal here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CanonKey {
    pub(crate) value: Words,
    pub(crate) mask: Words,
    /// For each range field: field number, low and high as limbs.
    pub(crate) ranges: SmallVec<[(u32, Words, Words); 1]>,
    pub(crate) priority: i32,
    /// Length of the lpm field's prefix in bits.
    pub(crate) prefix: u32,
}

impl KeyPlan {
    /// Adds a field whose first slot and mask are given. Small fields share a word.
    pub(crate) fn push(&mut self, slot: u32, width: u32, kind: MatchKind, mask: Option<Vec<u64>>) {
        let limbs = limb_count(width);
        let mask: SmallVec<[u64; 4]> = match mask {
            Some(m) => m.into_iter().collect(),
            None => (0..limbs as u32).map(|i| ones((width - 64 * i).min(64))).collect(),
        };
        let mut at = SmallVec::new();
        for (i, m) in mask.iter().enumerate().take(if width == 0 { 0 } else { limbs }) {
            let bits = (width - 64 * i as u32).min(64);
            let (word, shift) = if self.words > 0 && bits <= self.free {
                (self.words as u32 - 1, 64 - self.free)
            } else {
                self.words += 1;
                (self.words as u32 - 1, 0)
            };
            self.free = 64 - shift - bits;
            let whole = *m == ones(bits);
            self.parts.push(KeyPart { slot: slot + i as u32, word, shift, mask: *m, whole });
            at.push((word, shift));
        }
        self.fields.push(KeyFieldPlan { width, kind, at, mask });
    }

    /// Builds the key of a packet.
    #[inline(always)]
    pub(crate) fn build(&self, frame: &[u64], words: &mut [u64]) {
        words[..self.words].fill(0);
        for p in &self.parts {
            words[p.word as usize] |= (frame[p.slot as usize] & p.mask) << p.shift;
        }
    }

    fn place(&self, field: &KeyFieldPlan, limbs: &[u64], words: &mut Words) {
        for ((word, shift), (limb, mask)) in field.at.iter().zip(limbs.iter().zip(&field.mask)) {
            words[*word as usize] |= (limb & mask) << shift;
        }
    }

    /// Reads a field's limbs from words.
    pub(crate) fn field(&self, field: &KeyFieldPlan, words: &[u64]) -> Words {
        let width = |i: usize| (field.width - 64 * i as u32).min(64);
        field.at.iter().enumerate().map(|(i, (w, s))| words[*w as usize] >> s & ones(width(i))).collect()
    }

    /// Checks an entry's key and makes it canonical.
    pub(crate) fn canon(&self, info: &TableInfo, key: &EntryKey) -> Result<CanonKey, WriteError> {
        let invalid = |what: String| Err(WriteError::Invalid(what));
        if key.fields.len() != self.fields.len() {
            return invalid(format!(
                "table {} has {} key fields, not {}",
                info.name,
                self.fields.len(),
                key.fields.len()
            ));
        }
        if !info.kind.has_priority() && key.priority != 0 {
            return invalid(format!("entries of table {} have no priority", info.name));
        }
        let zero: Words = smallvec![0; self.words];
        let mut out = CanonKey {
            value: zero.clone(),
            mask: zero,
            ranges: SmallVec::new(),
            priority: key.priority,
            prefix: 0,
        };
        for (i, ((plan, field), m)) in self.fields.iter().zip(&info.key).zip(&key.fields).enumerate() {
            let name = || format!("key field {} of table {}", field.name, info.name);
            let limbs = |bytes: &[u8]| {
                limbs_of(bytes, plan.width).ok_or_else(|| {
                    WriteError::OutOfRange(format!("{}: more than {} bits", name(), plan.width))
                })
            };
            let full: Words =
                (0..plan.at.len()).map(|l| ones((plan.width - 64 * l as u32).min(64))).collect();
            let (value, mask): (Words, Words) = match (m, plan.kind) {
                (KeyMatch::Exact(v), MatchKind::Exact | MatchKind::Valid | MatchKind::Ternary) => {
                    (limbs(v)?, full)
                }
                (KeyMatch::Exact(v), MatchKind::Lpm) => {
                    out.prefix = plan.width;
                    (limbs(v)?, full)
                }
                (KeyMatch::Exact(v), MatchKind::Range) => {
                    let v = limbs(v)?;
                    out.ranges.push((i as u32, v.clone(), v));
                    continue;
                }
                (KeyMatch::Lpm { value, prefix_len }, MatchKind::Lpm) => {
                    if *prefix_len > plan.width {
                        return invalid(format!("{}: a prefix of {prefix_len} bits", name()));
                    }
                    out.prefix = *prefix_len;
                    (limbs(value)?, prefix_mask(plan.width, *prefix_len))
                }
                (KeyMatch::Ternary { value, mask }, MatchKind::Ternary) => (limbs(value)?, limbs(mask)?),
                (KeyMatch::Range { low, high }, MatchKind::Range) => {
                    let (low, high) = (limbs(low)?, limbs(high)?);
                    if low.iter().rev().gt(high.iter().rev()) {
                        return invalid(format!("{}: low is above high", name()));
                    }
                    out.ranges.push((i as u32, low, high));
                    continue;
                }
                (KeyMatch::Any, MatchKind::Lpm | MatchKind::Ternary | MatchKind::Range) => continue,
                _ => return invalid(format!("{}: it is matched {:?}", name(), plan.kind)),
            };
            if value.iter().zip(&mask).any(|(v, m)| v & !m != 0) {
                return invalid(format!("{}: bits of the value outside its mask", name()));
            }
            self.place(plan, &value, &mut out.value);
            self.place(plan, &mask, &mut out.mask);
        }
        // A range over all values is a wildcard.
        let everything = |r: &(u32, Words, Words)| {
            let width = self.fields[r.0 as usize].width;
            let full = |(l, w): (usize, &u64)| *w == ones((width - 64 * l as u32).min(64));
            r.1.iter().all(|w| *w == 0) && r.2.iter().enumerate().all(full)
        };
        out.ranges.retain(|r| !everything(r));
        Ok(out)
    }

    /// The key for reading back.
    pub(crate) fn entry_key(&self, key: &CanonKey) -> EntryKey {
        let field = |(i, plan): (usize, &KeyFieldPlan)| {
            let value = canonical_of(&self.field(plan, &key.value));
            let mask = self.field(plan, &key.mask);
            match plan.kind {
                MatchKind::Exact | MatchKind::Valid => KeyMatch::Exact(value),
                MatchKind::Lpm if mask.iter().all(|m| *m == 0) => KeyMatch::Any,
                MatchKind::Lpm => {
                    let prefix_len = mask.iter().map(|m| m.count_ones()).sum();
                    KeyMatch::Lpm { value, prefix_len }
                }
                MatchKind::Ternary if mask.iter().all(|m| *m == 0) => KeyMatch::Any,
                MatchKind::Ternary => KeyMatch::Ternary { value, mask: canonical_of(&mask) },
                MatchKind::Range => match key.ranges.iter().find(|r| r.0 == i as u32) {
                    Some(r) => KeyMatch::Range { low: canonical_of(&r.1), high: canonical_of(&r.2) },
                    None => KeyMatch::Any,
                },
            }
        };
        EntryKey { fields: self.fields.iter().enumerate().map(field).collect(), priority: key.priority }
    }
}

fn canonical_of(limbs: &[u64]) -> Vec<u8> {
    if limbs.is_empty() { vec![0] } else { canonical(limbs) }
}

/// Ones in the highest `prefix` of `width` bits, as limbs.
pub(crate) fn prefix_mask(width: u32, prefix: u32) -> Words {
    (0..limb_count(width) as u32)
        .map(|i| {
            let bits = (width - 64 * i).min(64);
            // Bits of this limb below the prefix.
            let below = (width - prefix).saturating_sub(64 * i).min(bits);
            ones(bits) & !ones(below)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_masks_cover_the_upper_bits() {
        assert_eq!(prefix_mask(32, 24)[..], [0xffff_ff00]);
        assert_eq!(prefix_mask(32, 0)[..], [0]);
        assert_eq!(prefix_mask(128, 65)[..], [1 << 63, u64::MAX]);
        assert_eq!(prefix_mask(128, 3)[..], [0, 7 << 61]);
    }

    #[test]
    fn small_fields_share_a_word() {
        let mut plan = KeyPlan::default();
        plan.push(0, 9, MatchKind::Exact, None);
        plan.push(1, 16, MatchKind::Exact, None);
        plan.push(2, 48, MatchKind::Exact, None);
        plan.push(3, 128, MatchKind::Exact, None);
        assert_eq!(plan.words, 4);
        let frame = [1, 2, 3, 4, 5];
        let mut words = [9; 4];
        plan.build(&frame, &mut words);
        assert_eq!(words, [1 | 2 << 9, 3, 4, 5]);
        assert_eq!(plan.field(&plan.fields[1], &words)[..], [2]);
    }
}
