//! A window that a connection returned when it ended, sealed into a token with which a later
//! connection from the same address starts.
//!
//! The window is moved, never copied. The token names the tag of the generation that returned it,
//! and the new connection gets tag and numbers from a PRF of that tag only. However many tokens
//! exist for a window, on whichever replica and port they are presented, they open the same
//! numbers, and each number is accepted once.

use core::net::IpAddr;

use rivulet_packet::MAX_GAIN;

use crate::keys::{KeyRing, equal_in_constant_time};
use crate::seal::ip_bytes;
use crate::time::{CLOCK_MASK, Micros, SECOND, stamp_age};
use crate::verdict::{INITIAL_SSTHRESH, INITIAL_WINDOW};

/// Length of a token with a window: seal epoch 16 bits, time 48, tag 32, window 16, ssthresh 16,
/// mss 16, MAC 96.
pub const WINDOW_TOKEN_LENGTH: usize = SEALED + 12;
const SEALED: usize = 18;
/// A returned window is halved for each such period without use, microseconds: the Congestion
/// Manager's step (`host/cm`), which is the minimum timeout of RFC 6298 (2.4). The sealed
/// round-trip time is under the client's control, so a longer one does not stretch the period.
const STEP: Micros = SECOND;
/// Smaller windows are not returned: any opening reaches two initial windows after a round trip.
pub const LEAST: u32 = 3 * INITIAL_WINDOW as u32;

/// A returned window, as its token holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retired {
    /// Time of the last use by the common clock, microseconds, 48 bits.
    pub time: u64,
    /// Connection tag of the generation that returned it.
    pub tag: u32,
    /// The window in packets.
    pub window: u16,
    /// The slow-start threshold in packets.
    pub ssthresh: u16,
    /// Slot of a packet in bytes.
    pub mss: u16,
}

/// The part of a returned window that a new connection starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed {
    /// Connection tag of the generation that returned it.
    pub tag: u32,
    /// `Piece::gain` of the first piece: 1 to `MAX_GAIN`.
    pub gain: u8,
    /// Slow-start threshold of the first piece in packets.
    pub ssthresh: u16,
}

impl Retired {
    fn fields(&self, epoch: u16) -> [u8; SEALED] {
        let mut out = [0; SEALED];
        out[..2].copy_from_slice(&epoch.to_be_bytes());
        out[2..8].copy_from_slice(&(self.time & CLOCK_MASK).to_be_bytes()[2..]);
        out[8..12].copy_from_slice(&self.tag.to_be_bytes());
        out[12..14].copy_from_slice(&self.window.to_be_bytes());
        out[14..16].copy_from_slice(&self.ssthresh.to_be_bytes());
        out[16..].copy_from_slice(&self.mss.to_be_bytes());
        out
    }

    /// Makes the token for `ip`. `None`: the epoch is not in the ring.
    pub fn seal(&self, keys: &KeyRing, epoch: u16, ip: IpAddr) -> Option<[u8; WINDOW_TOKEN_LENGTH]> {
        let fields = self.fields(epoch);
        // The MAC of an address token covers fewer bytes, so neither token is accepted as the
        // other.
        let mac = keys.seal(epoch)?.token.mac12(&[&fields, &ip_bytes(ip)]);
        let mut out = [0; WINDOW_TOKEN_LENGTH];
        out[..SEALED].copy_from_slice(&fields);
        out[SEALED..].copy_from_slice(&mac);
        Some(out)
    }

    /// Decodes a token of this length without verification. `None`: another length.
    pub fn read(token: &[u8]) -> Option<(u16, Retired)> {
        let b: &[u8; WINDOW_TOKEN_LENGTH] = token.try_into().ok()?;
        let word = |at: usize| u16::from_be_bytes([b[at], b[at + 1]]);
        let retired = Retired {
            time: b[2..8].iter().fold(0, |t, b| t << 8 | u64::from(*b)),
            tag: u32::from(word(8)) << 16 | u32::from(word(10)),
            window: word(12),
            ssthresh: word(14),
            mss: word(16),
        };
        Some((word(0), retired))
    }

    /// Verifies a token for `ip` and returns its window.
    pub fn open(keys: &KeyRing, ip: IpAddr, token: &[u8]) -> Option<Retired> {
        let (epoch, retired) = Retired::read(token)?;
        let right = retired.seal(keys, epoch, ip)?;
        equal_in_constant_time(&right, token).then_some(retired)
    }

    /// The window left now for a connection with slots of `mss` bytes. `None`: no more than any
    /// opening has. The replay memory covers one `horizon`, so an older window is void.
    pub fn seed(&self, now: u64, horizon: Micros, mss: u16) -> Option<Seed> {
        let age = u64::try_from(stamp_age(now, self.time)).unwrap_or(0);
        if age > horizon {
            return None;
        }
        let steps = (age / STEP).min(16) as u32;
        // With slots of another size, the number of packets that carry the same bytes, but never
        // more packets.
        let scaled =
            |packets: u16| u32::from(packets) * u32::from(self.mss) / u32::from(mss.max(self.mss).max(1));
        let window = scaled(self.window) >> steps;
        let gain = (window / u32::from(INITIAL_WINDOW)).min(2 + u32::from(MAX_GAIN)).checked_sub(2)? as u8;
        if gain == 0 {
            return None;
        }
        let ssthresh = match self.ssthresh {
            INITIAL_SSTHRESH => INITIAL_SSTHRESH,
            // Each period without use makes the estimate less reliable: the Congestion Manager's
            // rule for the threshold.
            found => (scaled(found) << steps).min(u32::from(INITIAL_SSTHRESH)) as u16,
        };
        Some(Seed { tag: self.tag, gain, ssthresh })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IP: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(192, 0, 2, 1));
    const HORIZON: Micros = 4 * SECOND;
    const WINDOW: Retired = Retired { time: 1000, tag: 0x0102_0304, window: 75, ssthresh: 90, mss: 1400 };

    fn ring(service: u32) -> KeyRing {
        let mut ring = KeyRing::new(service);
        ring.add_seal(3, &[9; 16]);
        ring
    }

    fn gain(retired: Retired, age: Micros, mss: u16) -> u8 {
        retired.seed(retired.time + age, HORIZON, mss).map_or(0, |seed| seed.gain)
    }

    #[test]
    fn token_has_the_bytes_of_the_wire_format() {
        let token = WINDOW.seal(&ring(1), 3, IP).unwrap();
        assert_eq!(
            token[..SEALED],
            *b"\x00\x03\x00\x00\x00\x00\x03\xe8\x01\x02\x03\x04\x00\x4b\x00\x5a\x05\x78"
        );
        assert_eq!(Retired::open(&ring(1), IP, &token), Some(WINDOW));
    }

    #[test]
    fn no_byte_of_a_token_can_be_another() {
        let token = WINDOW.seal(&ring(1), 3, IP).unwrap();
        for at in 0..token.len() {
            let mut changed = token;
            changed[at] ^= 1;
            assert_eq!(Retired::open(&ring(1), IP, &changed), None, "byte {at}");
            assert_eq!(Retired::open(&ring(1), IP, &token[..at]), None, "cut to {at}");
        }
        assert_eq!(Retired::open(&ring(1), "192.0.2.2".parse().unwrap(), &token), None, "another address");
        assert_eq!(Retired::open(&ring(2), IP, &token), None, "another service");
        assert_eq!(Retired::open(&KeyRing::new(1), IP, &token), None, "the key was withdrawn");
    }

    #[test]
    fn window_halves_each_second_and_ends_after_the_horizon() {
        let of = |window, age| gain(Retired { window, ..WINDOW }, age, 1400);
        assert_eq!([29, 30, 39, 40, 75, 100, 101, u16::MAX].map(|w| of(w, 0)), [0, 1, 1, 2, 5, 8, 8, 8]);
        assert_eq!([SECOND - 1, SECOND, 2 * SECOND, 3 * SECOND].map(|age| of(100, age)), [8, 3, 0, 0]);
        let large = |age| of(16_000, age);
        assert_eq!([HORIZON, HORIZON + 1].map(large), [8, 0], "nobody remembers longer");
        assert_eq!(WINDOW.seed(WINDOW.time - 50, HORIZON, 1400).unwrap().gain, 5, "clocks differ");
        let threshold =
            |age| Retired { window: 400, ..WINDOW }.seed(WINDOW.time + age, HORIZON, 1400).unwrap().ssthresh;
        assert_eq!([0, SECOND, 2 * SECOND].map(threshold), [90, 180, 360]);
    }

    #[test]
    fn larger_packets_are_fewer_and_smaller_ones_are_not_more() {
        let window = Retired { window: 80, ..WINDOW };
        assert_eq!([536, 1400, 2800].map(|mss| gain(window, 0, mss)), [6, 6, 2]);
        assert_eq!(gain(window, 0, 8952), 0);
        assert_eq!(window.seed(window.time, HORIZON, 2800).unwrap().ssthresh, 45);
        assert_eq!(gain(Retired { mss: 0, ..window }, 0, 0), 0);
    }
}
