//! The timestamps of a connection: the server writes TSval and finds it again in the client's
//! TSecr.
//!
//! ```text
//! kind 0, the SYN-ACK   0            8   | 00 2 | minute 4 | sealed 15               | scale 3
//! kind 0, an answer     start high   8   | 00 2 | start low 5 | next 12 | version 2  | scale 3
//! kind 1                slot         8   | 01 2 | large answers: steady, 22
//! kind 2                slot         8   | 10 2 | large answers: repair, 22
//! kind 3                slot         8   | 11 2 | the kernel's own: its clock, 22
//! ```
//!
//! All kinds of one connection grow from its first value on: the start of an answer stands on top, so that PAWS (RFC 7323
//! section 5) rejects none of them. The value of an answer is one and the same in all its segments, from any replica, at
//! any time.

use crate::codec::{CookieKeys, FIRST_START, Flow, MAX_START};

/// Window scales that a timestamp distinguishes; others count as the next lower one.
const SCALES: [u8; 8] = [0, 2, 4, 6, 7, 8, 9, 11];
/// Number of minutes in which a SYN-ACK's timestamp can begin an answer.
pub const MINUTES: u32 = 14;
/// Mask of the bits of a client's sequence number that [`Answering::next`] holds.
const NEXT: u32 = 0xfff;
/// Mask of the bits of a client's sequence number in the timestamp of a SYN-ACK.
const SEALED: u32 = 0x7fff;

/// The time of a SYN-ACK: the common clock, of which ToRs have the lowest 48 bits of microseconds,
/// in units of 2^26 microseconds (67 s; a switch cannot divide). It wraps every nine years.
#[must_use]
pub fn minute(clock: u64) -> u32 {
    (clock >> 26) as u32 & 0x3f_ffff
}

/// The window scale of a client, as a timestamp carries it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scale(u8);

impl Scale {
    /// The largest known scale that does not exceed `shift`, so that no window is overestimated.
    #[must_use]
    pub fn of(shift: u8) -> Scale {
        Scale(SCALES.iter().rposition(|&s| s <= shift).unwrap_or(0) as u8)
    }

    /// The scale in the lowest three bits of `number`.
    pub(crate) fn numbered(number: u32) -> Scale {
        Scale((number & 7) as u8)
    }

    /// The shift that this scale stands for.
    #[must_use]
    pub fn shift(self) -> u8 {
        SCALES[usize::from(self.0 & 7)]
    }

    /// A window in bytes.
    #[must_use]
    pub fn window(self, field: u16) -> u32 {
        u32::from(field) << self.shift()
    }

    /// The number in the timestamp.
    #[must_use]
    pub fn number(self) -> u8 {
        self.0
    }
}

/// The contents of an answer's timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answering {
    /// Offset of the answer, bytes from the first answer; a multiple of 64, at most [`MAX_START`].
    pub start: u32,
    /// The lowest 12 bits of the sequence number after the request.
    pub next: u16,
    /// The lowest two bits of the version of the table from which the answer was made.
    pub version: u8,
    /// The client's window scale.
    pub scale: Scale,
}

impl Answering {
    /// Distance of a sequence number from the request's end; negative for bytes of the request.
    #[must_use]
    pub fn beyond(&self, seq: u32) -> i32 {
        let distance = seq.wrapping_sub(u32::from(self.next)) & NEXT;
        if distance > NEXT / 2 { distance as i32 - NEXT as i32 - 1 } else { distance as i32 }
    }

    /// Bytes of the request that begins at `seq`.
    pub(crate) fn length_from(&self, seq: u32) -> u32 {
        u32::from(self.next).wrapping_sub(seq) & NEXT
    }
}

/// A timestamp that this server made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamp {
    /// The timestamp of a SYN-ACK.
    Opening {
        /// The lowest four bits of the minute in which it was sent.
        minute: u8,
        /// Bits of the client's first sequence number, under a pad that depends on the minute.
        sealed: u16,
        /// The client's window scale.
        scale: Scale,
    },
    /// The timestamp of an answer.
    Answer(Answering),
    /// The timestamp of a large answer.
    Large,
    /// The timestamp of a connection of the kernel's TCP.
    Kernel,
}

impl Stamp {
    /// A SYN-ACK's timestamp for a client with this sequence number of its first byte. `minute`
    /// counts from 1970.
    #[must_use]
    pub fn opening(flow: &Flow, keys: &CookieKeys, minute: u32, first: u32, scale: Scale) -> u32 {
        let sealed = (first ^ u32::from(flow.pad(keys.current, minute, scale.0))) & SEALED;
        (minute & 15) << 18 | sealed << 3 | u32::from(scale.0)
    }

    /// Whether a SYN-ACK's timestamp was made for this connection within the last [`MINUTES`], for
    /// a client with this sequence number of its first byte. Tolerates a clock that is a minute
    /// behind.
    #[must_use]
    pub fn opens(self, flow: &Flow, keys: &CookieKeys, now: u32, first: u32) -> Opened {
        let Stamp::Opening { minute, sealed, scale } = self else { return Opened::No };
        let age = now.wrapping_sub(minute.into()) & 15;
        let made = if age == 15 { now.wrapping_add(1) } else { now.wrapping_sub(age) };
        let is = |key| u32::from(sealed ^ flow.pad(key, made, scale.0)) & SEALED == first & SEALED;
        match is(keys.current) || keys.others.iter().flatten().any(|key| is(*key)) {
            true => Opened::Yes(scale),
            false => Opened::No,
        }
    }

    /// Decodes a timestamp.
    #[must_use]
    pub fn parse(value: u32) -> Stamp {
        let start = value >> 24 << 5 | value >> 17 & 31;
        let scale = Scale((value & 7) as u8);
        match value >> 22 & 3 {
            0 if start < FIRST_START => {
                let (minute, sealed) = ((value >> 18 & 15) as u8, (value >> 3 & SEALED) as u16);
                Stamp::Opening { minute, sealed, scale }
            }
            0 => Stamp::Answer(Answering {
                start: (start - FIRST_START) * 64,
                next: (value >> 5 & NEXT) as u16,
                version: (value >> 3 & 3) as u8,
                scale,
            }),
            1 | 2 => Stamp::Large,
            _ => Stamp::Kernel,
        }
    }
}

/// Result of [`Stamp::opens`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// An answer may begin, for a client with this window scale.
    Yes(Scale),
    /// No answer may begin.
    No,
}

impl Answering {
    /// Encodes the timestamp.
    #[must_use]
    pub fn value(self) -> u32 {
        let start = self.start.min(MAX_START) / 64 + FIRST_START;
        start >> 5 << 24
            | (start & 31) << 17
            | (u32::from(self.next) & NEXT) << 5
            | u32::from(self.version & 3) << 3
            | u32::from(self.scale.0)
    }
}

/// Milliseconds for which the clock of a kernel's socket stays within its kind: 70 minutes.
pub const KERNEL_SPAN: u32 = 1 << 22;

/// The value of a kernel's socket in the next slot, to which its clock is set before it would grow
/// into another kind.
#[must_use]
pub fn next_kernel_value(value: u32) -> u32 {
    (value & !0xff_ffff).wrapping_add(1 << 24) | 3 << 22
}

/// The smallest timestamp of a kernel's socket that follows answers up to `start`: its 22 bits
/// below the kind last for 70 minutes of milliseconds. It is even.
#[must_use]
pub fn kernel_value(start: u32) -> u32 {
    (start.min(MAX_START) / 64 + FIRST_START) >> 5 << 24 | 3 << 22
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::CookieKey;
    use proptest::prelude::*;

    fn flow() -> Flow {
        Flow::new("10.0.0.1:4000".parse().unwrap(), "10.9.0.1:80".parse().unwrap())
    }

    fn keys() -> CookieKeys {
        CookieKeys {
            current: CookieKey::new(*b"12345678"),
            others: [Some(CookieKey::new(*b"87654321")), None],
        }
    }

    proptest! {
        #[test]
        fn answer_stamp_round_trips_and_grows_with_start(
            start in 0..=MAX_START / 64, more in 1u32..100, next in 0u16..0x1000, version in 0u8..4, scale in 0u8..8,
        ) {
            let answering = Answering { start: start * 64, next, version, scale: Scale(scale) };
            prop_assert_eq!(Stamp::parse(answering.value()), Stamp::Answer(answering));
            let opening = Stamp::opening(&flow(), &keys(), u32::MAX, u32::MAX, Scale(7));
            prop_assert!(opening < answering.value());
            prop_assert!(answering.value() < kernel_value(start * 64));
            let later = Answering { start: (start + more).min(MAX_START / 64) * 64, next: 0, version: 0, scale: Scale(0) };
            prop_assert!(later.start == answering.start || answering.value() < later.value());
        }

        #[test]
        fn syn_ack_stamp_is_valid_for_connection_and_time(minute: u32, age in 0..=MINUTES, first: u32, shift in 0u8..15) {
            let made = |keys: &CookieKeys| Stamp::parse(Stamp::opening(&flow(), keys, minute, first, Scale::of(shift)));
            let (stamp, now) = (made(&keys()), minute.wrapping_add(age));
            prop_assert_eq!(stamp.opens(&flow(), &keys(), now, first), Opened::Yes(Scale::of(shift)));
            prop_assert_eq!(stamp.opens(&flow(), &keys(), minute.wrapping_sub(1), first), Opened::Yes(Scale::of(shift)));
            let old = CookieKeys { current: keys().others[0].unwrap(), others: [None; 2] };
            prop_assert_eq!(made(&old).opens(&flow(), &keys(), now, first), Opened::Yes(Scale::of(shift)));
            // The next request of a client that pipelines begins elsewhere. (A value under another
            // key matches by chance.)
            let alone = CookieKeys { others: [None; 2], ..keys() };
            for further in [1, 17, 100, 1447, 4000] {
                prop_assert_eq!(stamp.opens(&flow(), &alone, now, first.wrapping_add(further)), Opened::No);
            }
        }

        #[test]
        fn distance_from_request_end_may_be_negative(seq: u32, distance in -2048i32..2048) {
            let next = (seq.wrapping_sub(distance as u32) & NEXT) as u16;
            let answering = Answering { start: 0, next, version: 0, scale: Scale(0) };
            prop_assert_eq!(answering.beyond(seq), distance);
        }
    }

    #[test]
    fn an_old_opening_is_a_guess_of_fifteen_bits() {
        let stamp = Stamp::parse(Stamp::opening(&flow(), &keys(), 1000, 77, Scale(1)));
        let hits = |now| {
            (0..1u32 << 15).filter(|first| stamp.opens(&flow(), &keys(), now, *first) != Opened::No).count()
        };
        // Sixteen minutes later the same four bits mean another minute. There are two keys, with
        // one match each.
        assert_eq!((hits(1000), hits(1016)), (2, 2));
        assert_eq!(stamp.opens(&flow(), &keys(), 1016, 77), Opened::No);
    }

    #[test]
    fn minute_is_equal_for_a_48_bit_clock() {
        let now = 1_795_363_488_000_000u64;
        assert_eq!(minute(now), minute(now & ((1 << 48) - 1)));
        assert_eq!((minute(now + (1 << 26)), minute((1 << 48) - 1)), (minute(now) + 1, (1 << 22) - 1));
    }

    #[test]
    fn stamps_of_other_kinds_are_ignored() {
        for slot in [0u32, 1, 255] {
            assert_eq!(Stamp::parse(slot << 24 | 1 << 22 | 12345), Stamp::Large);
            assert_eq!(Stamp::parse(slot << 24 | 2 << 22 | 12345), Stamp::Large);
            assert_eq!(Stamp::parse(slot << 24 | 3 << 22 | 12345), Stamp::Kernel);
        }
    }

    #[test]
    fn kernel_stamps_keep_their_kind_and_grow() {
        let mut value = kernel_value(0);
        // Around the wrap of 32-bit values.
        for _ in 0..600 {
            assert_eq!(Stamp::parse(value), Stamp::Kernel);
            assert_eq!(Stamp::parse(value.wrapping_add(KERNEL_SPAN - 1)), Stamp::Kernel);
            assert_ne!(Stamp::parse(value.wrapping_add(KERNEL_SPAN)), Stamp::Kernel);
            let next = next_kernel_value(value.wrapping_add(KERNEL_SPAN / 2));
            assert!(next.wrapping_sub(value) < 1 << 31 && next & 1 == 0);
            value = next;
        }
    }

    #[test]
    fn scales_are_never_rounded_up() {
        for shift in 0..15 {
            assert!(Scale::of(shift).window(1) <= 1 << shift);
        }
        for shift in [0, 2, 6, 7, 8, 9] {
            assert_eq!(Scale::of(shift).window(3), 3 << shift);
        }
    }
}
