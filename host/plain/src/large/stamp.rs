//! The timestamp of a segment of a large answer: where it stands, what is sent, and how wide the window was.
//!
//! ```text
//! slot 8 | kind 2 | window 6 | all 1 | object 10 | check 2 | scale 3
//! ```
//!
//! The slot is the position of the segment's first octet in cells of 64 kB, so that values grow along a connection (PAWS), also
//! in segments that are sent again: within a cell *repair* (2) stands above *steady* (1). The client echoes the value of the
//! segment that reached its last acknowledgement (RFC 7323 section 4.3): position, object and window of some round trip
//! ago, to any replica.

use crate::codec::{Class, CookieKeys, Flow};
use crate::flight::is_boundary;
use crate::stamp::Scale;

/// Octets of a cell.
pub(crate) const CELL: u32 = 1 << 16;
/// Cells of octets under way at most: PAWS compares values within half of their range, 128 slots.
pub(crate) const CELLS: u32 = 120;
/// Octets of the longest large answer.
pub const MAX_LARGE: u32 = 1 << 30;
/// Octets behind the ISN that can be acknowledged: a large answer, and the last segment's.
const REACH: u32 = MAX_LARGE + 16;
/// How many large objects timestamps tell apart.
pub const MAX_LARGE_OBJECTS: usize = 1 << 10;
/// Bits of the check.
const CHECK: u32 = 3;
/// What the check's hash has in front of it, so that it is not another one's.
const DOMAIN: u32 = 0x4c41_5247;

/// Windows, octets, that a timestamp tells: seven an octave, from 2 kB on. 64 steps of 2^(1/7), rounded.
const WINDOWS: [u32; 64] = windows();

const fn windows() -> [u32; 64] {
    // 2^(1/7) in units of 2^-32; a product of two numbers below 2^52 needs 128 bits.
    const STEP: u128 = 4_742_028_353;
    let mut table = [0; 64];
    let (mut value, mut n) = (2048u128 << 32, 0);
    while n < 64 {
        table[n] = ((value + (1 << 31)) >> 32) as u32;
        value = (value * STEP) >> 32;
        n += 1;
    }
    table
}

/// The timestamp of a segment of a large answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeStamp {
    /// The cell of its first octet, the lowest eight bits.
    pub slot: u8,
    /// It was sent to repair a loss, or while one was repaired: the window is halved already.
    pub repair: bool,
    /// The window's number ([`window_of`]), six bits.
    pub window: u8,
    /// The segment acknowledges all that the client has said, and so does what is sent from then on: of a segment whose acknowledgement is
    /// behind one that they had there are clients that take nothing, and Linux echoes it only if it came in order.
    pub all: bool,
    /// What is sent.
    pub of: Download,
}

/// What is the same in all timestamps of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Download {
    /// The number of the object among the large ones, ten bits.
    pub object: u16,
    /// The client's window scale.
    pub scale: Scale,
    check: u8,
}

impl Download {
    /// Of an object of a table of this version.
    #[must_use]
    pub fn new(flow: &Flow, keys: &CookieKeys, version: u32, object: u16, scale: Scale) -> Download {
        Download { object, scale, check: check(flow, keys, 0, version, object, scale) }
    }
}

/// Under the key of this number.
fn check(flow: &Flow, keys: &CookieKeys, key: usize, version: u32, object: u16, scale: Scale) -> u8 {
    let word = u32::from(object) << 3 | u32::from(scale.number());
    (flow.sealed(keys, key, [DOMAIN ^ word, version]) & CHECK) as u8
}

impl Flow {
    /// Whether an acknowledgement is within a large answer's reach of one of the cookies.
    #[must_use]
    pub fn reaches(&self, keys: &CookieKeys, ack: u32) -> bool {
        (0..3).any(|key| self.distance_within(keys, key, ack, REACH).is_some())
    }
}

impl LargeStamp {
    /// Reads a value; `None` if it is of another kind.
    #[must_use]
    pub fn parse(value: u32) -> Option<LargeStamp> {
        let repair = match value >> 22 & 3 {
            1 => false,
            2 => true,
            _ => return None,
        };
        let of = Download {
            object: (value >> 5 & 0x3ff) as u16,
            check: (value >> 3 & CHECK) as u8,
            scale: Scale::numbered(value),
        };
        let (slot, window, all) = ((value >> 24) as u8, (value >> 16 & 63) as u8, value >> 15 & 1 == 1);
        Some(LargeStamp { slot, repair, window, all, of })
    }

    /// The value.
    #[must_use]
    pub fn value(self) -> u32 {
        u32::from(self.slot) << 24
            | (1 + u32::from(self.repair)) << 22
            | u32::from(self.window & 63) << 16
            | u32::from(self.all) << 15
            | u32::from(self.of.object & 0x3ff) << 5
            | u32::from(self.of.check) << 3
            | u32::from(self.of.scale.number())
    }

    /// Where an acknowledgement with this echo stands: the class, the octets of the answer that the client has, and whether it has FIN
    /// too; `length` is the answer's. `None` if this is no such timestamp of this connection.
    pub(crate) fn place(
        self,
        flow: &Flow,
        keys: &CookieKeys,
        version: u32,
        ack: u32,
        length: u32,
    ) -> Option<(Class, u32, bool)> {
        (0..3).find_map(|key| {
            let distance = flow.distance_within(keys, key, ack, REACH)?;
            let (class, at, fin) = (Class::numbered(distance >> 1), distance & !7, distance & 1 != 0);
            let there =
                if fin { at == length } else { at == length || at < length && is_boundary(class, at) };
            let sealed = || check(flow, keys, key, version, self.of.object, self.of.scale) == self.of.check;
            (at > 0 && there && sealed()).then_some((class, at, fin))
        })
    }
}

/// The number of a window in a timestamp of this cell: of the two next to it one or the other, so that the mean over cells is right. All
/// replicas come to the same.
#[must_use]
pub fn window_number(octets: u32, cell: u32) -> u8 {
    let below = WINDOWS.iter().rposition(|&w| w <= octets).unwrap_or(0);
    let Some(&above) = WINDOWS.get(below + 1) else { return below as u8 };
    let step = above - WINDOWS[below];
    let part = octets.saturating_sub(WINDOWS[below]);
    let chance = (u64::from(cell.wrapping_mul(0x9e37_79b9)) * u64::from(step)) >> 32;
    (below + usize::from(chance < u64::from(part))) as u8
}

/// The window of a number, octets.
#[must_use]
pub fn window_of(number: u8) -> u32 {
    WINDOWS[usize::from(number & 63)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::CookieKey;
    use crate::stamp::Stamp;
    use proptest::prelude::*;

    fn keys() -> CookieKeys {
        CookieKeys { current: CookieKey::new([1; 8]), others: [Some(CookieKey::new([2; 8])), None] }
    }

    fn flow(port: u16) -> Flow {
        Flow::new((core::net::Ipv4Addr::new(10, 0, 0, 1), port).into(), "10.9.0.1:80".parse().unwrap())
    }

    #[test]
    fn windows_are_seven_an_octave() {
        for n in 0..57 {
            assert!(WINDOWS[n + 7].abs_diff(2 * WINDOWS[n]) <= 1, "{n}: {} {}", WINDOWS[n], WINDOWS[n + 7]);
            assert_eq!(window_number(WINDOWS[n], n as u32), n as u8);
        }
        assert_eq!((window_of(0), window_of(63), window_number(0, 7)), (2048, 1 << 20, 0));
        assert_eq!(window_number(u32::MAX, 7), 63);
    }

    #[test]
    fn a_window_is_told_right_in_the_mean() {
        for octets in [3000, 14_480, 100_000, 124_600, 700_000] {
            let sum: u64 = (0..4096).map(|cell| u64::from(window_of(window_number(octets, cell)))).sum();
            let mean = sum as f64 / 4096.0 / f64::from(octets);
            assert!((0.998..1.002).contains(&mean), "{octets}: {mean}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(slot: u8, repair: bool, window in 0u8..64, all: bool, object in 0u16..1024, shift in 0u8..15, port: u16) {
            let of = Download::new(&flow(port), &keys(), 7, object, Scale::of(shift));
            let stamp = LargeStamp { slot, repair, window, all, of };
            prop_assert_eq!(LargeStamp::parse(stamp.value()), Some(stamp));
            prop_assert_eq!(Stamp::parse(stamp.value()), Stamp::Large);
            // A segment that is sent again is above those of its cell, and below the next cell's.
            let again = LargeStamp { repair: true, window: 0, all: false, ..stamp };
            let steady = LargeStamp { repair: false, window: 63, all: true, ..stamp };
            prop_assert!(steady.value() < again.value());
            let (some, everything) = (LargeStamp { all: false, ..stamp }, LargeStamp { all: true, ..stamp });
            prop_assert!(some.value() < everything.value());
            let next = LargeStamp { slot: slot.wrapping_add(1), repair: false, window: 0, all: false, ..stamp };
            let highest = LargeStamp { window: 63, all: true, ..again };
            prop_assert!(next.value().wrapping_sub(highest.value()) < 1 << 31);
        }

        #[test]
        fn others_are_not_taken(value: u32) {
            let large = LargeStamp::parse(value);
            prop_assert_eq!(large.is_some(), Stamp::parse(value) == Stamp::Large);
            prop_assert!(large.is_none_or(|stamp| stamp.value() == value));
        }

        #[test]
        fn an_acknowledgement_says_where_it_stands(port: u16, class in 0u32..4, segments in 0u32..700_000, before: bool) {
            let class = Class::numbered(class);
            let at = class.segment().min(1200) + segments * class.segment();
            let length = (at + 5000) / 128 * 128 + 64;
            let keys = keys();
            let key = if before { keys.others[0].unwrap() } else { keys.current };
            let only = CookieKeys { current: key, others: [None; 2] };
            let of = Download::new(&flow(port), &only, 9, 5, Scale::of(7));
            let stamp = LargeStamp { slot: 0, repair: false, window: 0, all: false, of };
            let isn = flow(port).stamped(key, class);
            let found = |at: u32, keys| stamp.place(&flow(port), keys, 9, isn.wrapping_add(1 + at), length);
            prop_assert_eq!(found(at, &only), Some((class, at, false)));
            prop_assert_eq!(found(length, &only), Some((class, length, false)));
            prop_assert_eq!(found(length + 1, &only), Some((class, length, true)));
            prop_assert_eq!(found(at + 8, &only).is_some(), is_boundary(class, at + 8));
            prop_assert_eq!(found(length + 8, &only), None);
            prop_assert_eq!(found(0, &only), None);
            // Under another key it is a guess.
            if let Some((_, guess, _)) = found(at, &keys) {
                prop_assert!(!before || guess == at || is_boundary(class, guess) || guess == length);
            }
        }
    }

    #[test]
    fn a_forged_one_passes_seldom() {
        let (keys, mut hits) = (keys(), 0u32);
        for n in 0..1u32 << 20 {
            let stamp = LargeStamp::parse(1 << 22 | n & 3 << 3 | 5 << 5).unwrap();
            let ack = n.wrapping_mul(0x9e37_79b9);
            hits += u32::from(stamp.place(&flow(9), &keys, 9, ack, MAX_LARGE / 128 * 128 - 64).is_some());
        }
        // Two keys, a quarter of all numbers each, one in four by the check, and positions on one of three grids.
        assert!(hits < (1 << 20) / 100, "{hits}");
    }
}
