//! The timestamp of a segment of a large answer: its position, the object, and the window.
//!
//! ```text
//! slot 8 | kind 2 | window 6 | all 1 | object 9, encrypted | check 3 | scale 3
//! ```
//!
//! The slot is the position of the segment's first byte in cells of 64 kB, so that values grow along a connection (PAWS), also
//! in segments that are sent again: within a cell *repair* (2) stands above *steady* (1). The client echoes the value of the
//! segment that reached its last acknowledgement (RFC 7323 section 4.3): position, object and window of some round trip
//! ago, to any replica.
//!
//! Three things stop a forger that sees nothing. The check is a hash of all the other bits, the connection and the table's version, so a
//! forged value for another cell, kind or window is another guess. The object's number is encrypted with a pad of the connection, so a
//! forger cannot choose an object, and a number that no object of the table has refuses the segment. An acknowledgement far from the
//! cell that its timestamp names draws a probe of eight bytes and no answer ([`Placed::near`]).

use crate::codec::{Class, CookieKey, CookieKeys, Flow};
use crate::flight::{TINY, is_full};
use crate::stamp::Scale;

/// Length of a cell, bytes.
pub(crate) const CELL: u32 = 1 << 16;
/// Limit on the cells in flight: PAWS compares values within half of their range, 128 slots.
pub(crate) const CELLS: u32 = 120;
/// Length of the longest large answer, bytes.
pub const MAX_LARGE: u32 = 1 << 30;
/// Bytes after the cookie's hash that an acknowledgement can reach: the longest large answer, and a
/// margin for SYN, FIN and the class in the low bits.
const REACH: u32 = MAX_LARGE + 16;
/// Number of large objects that timestamps distinguish.
pub const MAX_LARGE_OBJECTS: usize = 1 << 9;
/// Mask of the check in a timestamp.
const CHECK: u32 = 7 << 3;
/// How many cells an acknowledgement may be ahead of its timestamp's if nothing was lost: receivers
/// acknowledge up to 64 kB at once.
const NEAR: u32 = 2;
/// Prefix of the check's hash, which separates it from other hashes ("LARG").
const DOMAIN: u32 = 0x4c41_5247;
/// The same for the pad of the object's number: `DOMAIN` with kind 0, which no value that is checked has.
const PAD_DOMAIN: u32 = DOMAIN;
/// Mask of the object's number in a timestamp.
const OBJECT: u32 = 0x1ff << 6;

/// Windows that a timestamp can carry, bytes: seven for each octave, from 2 kB on; 64 steps of
/// 2^(1/7), rounded.
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
    /// The lowest eight bits of the cell of the segment's first byte.
    pub slot: u8,
    /// The segment repairs a loss, or was sent during a repair: the window is halved already.
    pub repair: bool,
    /// Number of the window ([`window_of`]), six bits.
    pub window: u8,
    /// The segment acknowledges all data of the client, and so do all later ones. Some clients
    /// ignore a segment with an older acknowledgement than one that they had, and Linux echoes its
    /// timestamp only if it arrived in order.
    pub all: bool,
    /// The object and the client's window scale.
    pub of: Download,
}

/// The parts that are equal in all timestamps of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Download {
    /// The number of the object among the large ones, nine bits.
    pub object: u16,
    /// The client's window scale.
    pub scale: Scale,
}

/// Key and table version that determine the checks in a connection's timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    key: CookieKey,
    version: u32,
    /// Pad that encrypts the object's number, at its place in the timestamp.
    pad: u32,
}

impl Seal {
    /// The key material of a connection with a cookie under this key, answered from this version of
    /// the table.
    #[must_use]
    pub fn new(flow: &Flow, key: CookieKey, version: u32) -> Seal {
        Seal { key, version, pad: flow.seal(key, [PAD_DOMAIN, version]) & OBJECT }
    }

    /// Adds the check to a value.
    fn put(self, flow: &Flow, bare: u32) -> u32 {
        let bare = (bare ^ self.pad) & !CHECK;
        bare | flow.seal(self.key, [DOMAIN ^ bare, self.version]) & CHECK
    }

    /// The seal of a connection, from the client's acknowledgement of ISN + 1. Keys that do not fit
    /// it are as good as the present one.
    pub(crate) fn of(flow: &Flow, keys: &CookieKeys, version: u32, ack: u32) -> Seal {
        let made = (0..3).find(|key| flow.distance_within(keys, *key, ack, 8).is_some());
        Seal::new(flow, made.and_then(|key| keys.get(key)).unwrap_or(keys.current), version)
    }
}

/// Position of an acknowledgement in a large answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) class: Class,
    /// Bytes of the answer that the client has without a hole.
    pub(crate) at: u32,
    /// Whether the client has the FIN too.
    pub(crate) fin: bool,
    /// The cell that the timestamp names.
    pub(crate) cell: u32,
    /// Whether `at` lies in that cell or at most [`NEAR`] cells after it, as it does if nothing was
    /// lost.
    pub(crate) near: bool,
    /// Whether a full segment ends at `at`; otherwise the path needs shorter segments.
    pub(crate) full: bool,
    pub(crate) seal: Seal,
}

impl Flow {
    /// Whether an acknowledgement is within a large answer's reach of one of the cookies.
    #[must_use]
    pub fn reaches(&self, keys: &CookieKeys, ack: u32) -> bool {
        (0..3).any(|key| self.distance_within(keys, key, ack, REACH).is_some())
    }
}

impl LargeStamp {
    /// Whether a value has the form of a large answer's timestamp, on any connection.
    #[must_use]
    pub fn is_one(value: u32) -> bool {
        matches!(value >> 22 & 3, 1 | 2)
    }

    /// Reads a value of this connection; `None` if it is of another kind, or its check does not hold.
    #[must_use]
    pub fn read(value: u32, flow: &Flow, seal: &Seal) -> Option<LargeStamp> {
        let stamp = LargeStamp::parse(value ^ seal.pad)?;
        (stamp.value(flow, seal) == value).then_some(stamp)
    }

    fn parse(value: u32) -> Option<LargeStamp> {
        let repair = match value >> 22 & 3 {
            1 => false,
            2 => true,
            _ => return None,
        };
        let of = Download { object: (value >> 6 & 0x1ff) as u16, scale: Scale::numbered(value) };
        let (slot, window, all) = ((value >> 24) as u8, (value >> 16 & 63) as u8, value >> 15 & 1 == 1);
        Some(LargeStamp { slot, repair, window, all, of })
    }

    /// The timestamp without its check.
    fn bare(self) -> u32 {
        u32::from(self.slot) << 24
            | (1 + u32::from(self.repair)) << 22
            | u32::from(self.window & 63) << 16
            | u32::from(self.all) << 15
            | u32::from(self.of.object & 0x1ff) << 6
            | u32::from(self.of.scale.number())
    }

    /// The timestamp on this connection.
    #[must_use]
    pub fn value(self, flow: &Flow, seal: &Seal) -> u32 {
        seal.put(flow, self.bare())
    }

    /// What an acknowledgement echoes as `value`, what `find` knows of the download that it names, and where it stands. `find` gives the
    /// length of the answer, too. `None` if this is no such timestamp of this connection.
    pub(crate) fn place<T>(
        (flow, keys): (&Flow, &CookieKeys),
        version: u32,
        (ack, value): (u32, u32),
        find: impl Fn(Download) -> Option<(T, u32)>,
    ) -> Option<(LargeStamp, T, Placed)> {
        (0..3).find_map(|key| {
            let distance = flow.distance_within(keys, key, ack, REACH)?;
            let seal = Seal::new(flow, keys.get(key)?, version);
            let stamp = LargeStamp::read(value, flow, &seal)?;
            let (found, length) = find(stamp.of)?;
            let (class, at, fin) = (Class::numbered(distance >> 1), distance & !7, distance & 1 != 0);
            let full = is_full(class, at) || at == length;
            let there = at == length || !fin && at < length && (full || at.is_multiple_of(TINY));
            // The segment that reached the last acknowledgement began there or before it, and at
            // most a window is acknowledged at once.
            let ahead = (at / CELL).wrapping_sub(stamp.slot.into()) & 0xff;
            let cell = (at / CELL).checked_sub(ahead)?;
            let placed = Placed { class, at, fin, cell, near: ahead <= NEAR, full, seal };
            (at > 0 && there && ahead <= CELLS).then_some((stamp, found, placed))
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

/// The window with this number, bytes.
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

    fn seal(flow: &Flow) -> Seal {
        Seal::new(flow, keys().current, 7)
    }

    #[test]
    fn windows_have_seven_steps_per_octave() {
        for n in 0..57 {
            assert!(WINDOWS[n + 7].abs_diff(2 * WINDOWS[n]) <= 1, "{n}: {} {}", WINDOWS[n], WINDOWS[n + 7]);
            assert_eq!(window_number(WINDOWS[n], n as u32), n as u8);
        }
        assert_eq!((window_of(0), window_of(63), window_number(0, 7)), (2048, 1 << 20, 0));
        assert_eq!(window_number(u32::MAX, 7), 63);
    }

    #[test]
    fn encoded_window_is_right_on_average() {
        for octets in [3000, 14_480, 100_000, 124_600, 700_000] {
            let sum: u64 = (0..4096).map(|cell| u64::from(window_of(window_number(octets, cell)))).sum();
            let mean = sum as f64 / 4096.0 / f64::from(octets);
            assert!((0.998..1.002).contains(&mean), "{octets}: {mean}");
        }
    }

    proptest! {
        #[test]
        fn encoding_round_trips(slot: u8, repair: bool, window in 0u8..64, all: bool, object in 0u16..512, shift in 0u8..15, port: u16) {
            let of = Download { object, scale: Scale::of(shift) };
            let (flow, seal) = (flow(port), seal(&flow(port)));
            let value = |stamp: LargeStamp| stamp.value(&flow, &seal);
            let stamp = LargeStamp { slot, repair, window, all, of };
            prop_assert_eq!(LargeStamp::read(value(stamp), &flow, &seal), Some(stamp));
            prop_assert_eq!(Stamp::parse(value(stamp)), Stamp::Large);
            // A retransmitted segment's value is above those of its cell, and below the next
            // cell's.
            let again = LargeStamp { repair: true, window: 0, all: false, ..stamp };
            let steady = LargeStamp { repair: false, window: 63, all: true, ..stamp };
            prop_assert!(value(steady) < value(again));
            let (some, everything) = (LargeStamp { all: false, ..stamp }, LargeStamp { all: true, ..stamp });
            prop_assert!(value(some) < value(everything));
            let next = LargeStamp { slot: slot.wrapping_add(1), repair: false, window: 0, all: false, ..stamp };
            let highest = LargeStamp { window: 63, all: true, ..again };
            prop_assert!(value(next).wrapping_sub(value(highest)) < 1 << 31);
        }

        #[test]
        fn others_are_not_taken(value: u32) {
            let large = LargeStamp::parse(value);
            prop_assert_eq!(large.is_some(), Stamp::parse(value) == Stamp::Large);
            prop_assert!(large.is_none_or(|stamp| stamp.bare() == value & !CHECK));
        }

        #[test]
        fn acknowledgement_gives_its_offset(
            port: u16, class in 0u32..4, segments in 0u32..700_000, behind in 0u32..140, before: bool,
        ) {
            let class = Class::numbered(class);
            let at = class.segment().min(1200) + segments * class.segment();
            let length = (at + 5000) / 128 * 128 + 64;
            let keys = keys();
            let key = if before { keys.others[0].unwrap() } else { keys.current };
            let only = CookieKeys { current: key, others: [None; 2] };
            let (of, seal) = (Download { object: 5, scale: Scale::of(7) }, Seal::new(&flow(port), key, 9));
            let isn = flow(port).stamped(key, class);
            let found = |at: u32, keys, behind: u32| {
                let slot = (at / CELL).saturating_sub(behind) as u8;
                let stamp = LargeStamp { slot, repair: false, window: 0, all: false, of };
                let value = stamp.value(&flow(port), &seal);
                let find = |found| (found == of).then_some(((), length));
                let what = (isn.wrapping_add(1 + at), value);
                LargeStamp::place((&flow(port), keys), 9, what, find).map(|(_, (), placed)| placed)
            };
            let is = |placed: Option<Placed>| placed.map(|placed| (placed.class, placed.at, placed.fin, placed.full));
            prop_assert_eq!(is(found(at, &only, 0)), Some((class, at, false, true)));
            prop_assert_eq!(is(found(length, &only, 0)), Some((class, length, false, true)));
            prop_assert_eq!(is(found(length + 1, &only, 0)), Some((class, length, true, true)));
            prop_assert_eq!(found(at + 8, &only, 0).is_some(), is_full(class, at + 8) || (at + 8).is_multiple_of(TINY));
            prop_assert_eq!(found(length + 8, &only, 0), None);
            prop_assert_eq!(found(0, &only, 0), None);
            // What it echoes is of a cell that a window behind it may begin in.
            let behind = behind.min(at / CELL);
            let far = found(at, &only, behind);
            prop_assert_eq!(far.is_some(), behind <= CELLS);
            prop_assert!(far.is_none_or(|far| far.near == (behind <= NEAR) && far.cell == at / CELL - behind));
            // Under another key it is a guess.
            if let Some(Placed { at: guess, .. }) = found(at, &keys, 0) {
                prop_assert!(!before || guess == at || is_full(class, guess) || guess % TINY == 0 || guess == length);
            }
        }

        /// Of a value that is known to be right, nothing is known of another cell's, kind's or window's.
        #[test]
        fn stamp_check_covers_all_other_bits(port: u16, bit in 0u32..32) {
            let stamp = LargeStamp { slot: 77, repair: false, window: 9, all: false, of: Download { object: 5, scale: Scale::of(7) } };
            prop_assume!(bit < 3 || (6..22).contains(&bit) || bit >= 24);
            let passes = (0..64u32).filter(|n| {
                let flow = flow(port.wrapping_add(*n as u16));
                let (seal, value) = (seal(&flow), stamp.value(&flow, &seal(&flow)));
                LargeStamp::read(value ^ 1 << bit, &flow, &seal).is_some()
            });
            prop_assert!(passes.count() < 26, "{bit}");
        }
    }

    /// What a ToR lets pass to a replica of forged acknowledgements: it knows the reach of the longest object there can be, and two keys.
    #[test]
    fn forged_acknowledgements_are_within_reach_for_seven_of_sixteen() {
        let guesses = 1u32 << 16;
        let reached = (0..guesses).filter(|n| flow(*n as u16).reaches(&keys(), n.wrapping_mul(0x9e37_79b9)));
        let reached = reached.count();
        println!("{reached} of 2^16 are within reach");
        assert!((28_000..29_400).contains(&reached), "{reached}");
    }

    /// Guesses of a class, those that pass, and the bytes that they draw for a byte that they cost. A table has so many large objects, all of
    /// the longest length. The forger sees nothing and makes the best of its guess: the acknowledgement is at a multiple of 128 from the last.
    fn forge(class: Class, objects: u16) -> (u32, u32, f64) {
        let (keys, length) = (keys(), MAX_LARGE / 128 * 128 - 64);
        // Bytes of what is sent for one that passes: segments and 20 probes in an hour where it is near the cell of its timestamp, 11 probes
        // where it is not.
        let worth = |placed: &Placed| -> u64 {
            let (segments, probes) = match (placed.near, placed.full) {
                (true, true) => (10, 20),
                (true, false) => (2, 20),
                (false, _) => (0, 11),
            };
            segments * (u64::from(placed.class.segment()) + 52) + probes * (8 + 52)
        };
        let (mut hits, mut near, mut drawn, guesses) = (0u32, 0, 0, 1u32 << 22);
        for n in 0..guesses {
            // Another connection now and then, since the pad of one holds for all guesses of it.
            let flow = flow((n >> 8) as u16);
            let random = n.wrapping_mul(0x9e37_79b9);
            // The lowest three bits are no guess.
            let ack = (random & !7) | (1 + u32::from(class.number()) * 2);
            let value = n << 24 & 0xff00_0000 | 1 << 22 | 63 << 16 | 5 << 6 | n >> 8 & CHECK | 4;
            let find = |of: Download| (of.object < objects).then_some(((), length));
            if let Some((_, (), placed)) = LargeStamp::place((&flow, &keys), 9, (ack, value), find) {
                (hits, near, drawn) = (hits + 1, near + u32::from(placed.near), drawn + worth(&placed));
            }
        }
        (hits, near, drawn as f64 / f64::from(guesses) / 52.0)
    }

    /// Under two keys, with the most objects that timestamps distinguish, all of the longest
    /// length: the worst table.
    #[test]
    fn forged_acknowledgement_draws_less_than_it_costs() {
        for class in Class::all() {
            let (hits, near, drawn) = forge(class, MAX_LARGE_OBJECTS as u16);
            println!(
                "class {}: {hits} of 2^22 pass, {near} draw segments, {drawn:.3} bytes for one",
                class.number()
            );
            assert!(hits < 3 << 12, "{hits}");
            assert!(near < 1 << 9, "{near}");
            assert!(drawn < 0.05, "{drawn}");
        }
    }

    /// The object's number is another guess where a table does not use all of them.
    #[test]
    fn forger_has_to_guess_an_object() {
        let class = Class::numbered(3);
        let (all, few) = (forge(class, MAX_LARGE_OBJECTS as u16), forge(class, 16));
        println!("512 objects: {all:.3?}, 16: {few:.3?}");
        assert!(few.0 < all.0 / 16, "{few:?} {all:?}");
    }
}
