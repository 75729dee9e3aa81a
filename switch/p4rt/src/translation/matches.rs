//! Matches on translated numbers. A value of the data plane, extended by zeros, is the controller's
//! value; so prefixes, ranges and masks have a counterpart as long as they select values that the
//! data plane has. Of masks, all ones of one width stand for all ones of the other.

use std::fmt::Display;

use crate::bytestring::{all_ones, canonical, unsigned};
use crate::error::{Result, invalid, unimplemented};
use crate::proto::p4::v1::field_match::FieldMatchType as M;
use crate::translation::number;

/// Turns a controller's match on a number of `sdn` bits into one of the data plane's `width` bits.
///
/// # Errors
/// OUT_OF_RANGE or INVALID_ARGUMENT for values and masks without a counterpart.
pub fn to_data_plane(m: &mut M, sdn: u32, width: u32, place: &dyn Display) -> Result<()> {
    let fits = |v: &[u8]| number(v, sdn, width, place).map(drop);
    match m {
        M::Exact(e) => fits(&e.value),
        M::Optional(o) => fits(&o.value),
        M::Range(r) => {
            if canonical(&r.low) == [0] && canonical(&r.high) == all_ones(sdn) {
                return Err(invalid(format!("{place}: matches anything and must be left out")));
            }
            fits(&r.low).and_then(|()| fits(&r.high))
        }
        M::Lpm(lpm) => {
            fits(&lpm.value)?;
            let prefix = u32::try_from(lpm.prefix_len).ok().filter(|p| *p <= sdn);
            // 0 matches anything, which is refused later as for any other field.
            let prefix = match prefix {
                Some(0) => Some(0),
                Some(p) => (p + width).checked_sub(sdn).filter(|p| *p > 0),
                None => None,
            };
            let prefix = prefix.and_then(|p| i32::try_from(p).ok()).ok_or_else(|| {
                let least = sdn.saturating_sub(width) + 1;
                invalid(format!("{place}: a prefix of {}, possible are {least} to {sdn}", lpm.prefix_len))
            })?;
            lpm.prefix_len = prefix;
            Ok(())
        }
        M::Ternary(t) => {
            fits(&t.value)?;
            unsigned(&t.mask, sdn, place)?;
            if canonical(&t.mask) == all_ones(sdn) {
                t.mask = all_ones(width);
                return Ok(());
            }
            if canonical(&t.mask) == all_ones(width) {
                return Err(invalid(format!("{place}: a whole number is matched with {sdn} bits of mask")));
            }
            unsigned(&t.mask, width, &format_args!("{place}: the data plane's mask")).map(drop)
        }
        M::Other(_) => Err(invalid(format!("{place}: not a match type of v1model"))),
    }
}

/// Reverses [`to_data_plane`].
pub fn to_controller(m: &mut M, sdn: u32, width: u32) {
    match m {
        M::Lpm(lpm) => {
            let wider = i64::from(sdn) - i64::from(width);
            lpm.prefix_len = i32::try_from(i64::from(lpm.prefix_len) + wider).unwrap_or(lpm.prefix_len);
        }
        M::Ternary(t) if canonical(&t.mask) == all_ones(width) => t.mask = all_ones(sdn),
        _ => {}
    }
}

/// The value of a match on a string, which can only be matched as a whole.
///
/// # Errors
/// UNIMPLEMENTED for other matches.
pub fn whole<'m>(m: &'m mut M, place: &dyn Display) -> Result<&'m mut Vec<u8>> {
    only_value(m).ok_or_else(|| unimplemented(format!("{place}: a string is matched as a whole or left out")))
}

/// The value of a match of the data plane on one value, of any kind.
pub fn only_value(m: &mut M) -> Option<&mut Vec<u8>> {
    match m {
        M::Exact(e) => Some(&mut e.value),
        M::Optional(o) => Some(&mut o.value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::proto::p4::v1::field_match::{Exact, Lpm, Optional, Range, Ternary};

    fn bytes(n: u64) -> Vec<u8> {
        canonical(&n.to_be_bytes()).to_vec()
    }

    fn selects(m: &M, width: u32, v: u64) -> bool {
        let n = |b: &[u8]| crate::translation::to_u64(b).unwrap();
        match m {
            M::Exact(Exact { value }) | M::Optional(Optional { value }) => n(value) == v,
            M::Range(Range { low, high }) => (n(low)..=n(high)).contains(&v),
            M::Ternary(Ternary { value, mask }) => v & n(mask) == n(value),
            M::Lpm(Lpm { value, prefix_len }) => {
                let mask = (u64::MAX << (width - *prefix_len as u32)) & ((1 << width) - 1);
                v & mask == n(value)
            }
            M::Other(_) => false,
        }
    }

    proptest! {
        /// A translated match selects the same values, and comes back as it was.
        #[test]
        fn translated_matches_select_the_same_values(
            sdn in 1..10u32, width in 1..10u32, a in 0..1024u64, b in 0..1024u64, kind in 0..4
        ) {
            let m = match kind {
                0 => M::Exact(Exact { value: bytes(a) }),
                1 => M::Range(Range { low: bytes(a.min(b)), high: bytes(a.max(b)) }),
                2 => M::Ternary(Ternary { value: bytes(a & b), mask: bytes(b) }),
                _ => {
                    let prefix = 1 + (b as u32) % sdn;
                    let mask = (u64::MAX << (sdn - prefix)) & ((1 << sdn) - 1);
                    M::Lpm(Lpm { value: bytes(a & mask), prefix_len: prefix as i32 })
                }
            };
            let mut translated = m.clone();
            if to_data_plane(&mut translated, sdn, width, &"m").is_ok() {
                for v in 0..(1u64 << sdn.min(width)) {
                    prop_assert_eq!(selects(&m, sdn, v), selects(&translated, width, v), "{}", v);
                }
                let mut back = translated;
                to_controller(&mut back, sdn, width);
                prop_assert_eq!(back, m);
            }
        }
    }

    #[test]
    fn de_facto_exact_matches_are_translated() {
        let mut ternary = M::Ternary(Ternary { value: bytes(5), mask: vec![0xff; 4] });
        to_data_plane(&mut ternary, 32, 9, &"m").unwrap();
        assert_eq!(ternary, M::Ternary(Ternary { value: bytes(5), mask: vec![1, 0xff] }));
        let mut lpm = M::Lpm(Lpm { value: bytes(5), prefix_len: 32 });
        to_data_plane(&mut lpm, 32, 9, &"m").unwrap();
        assert_eq!(lpm, M::Lpm(Lpm { value: bytes(5), prefix_len: 9 }));
    }
}
