//! Time as a number; this crate reads no clock.

use core::ops::{Add, Sub};

/// Microseconds on a clock of the caller: monotonic on a client, the service's common clock on a
/// server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

/// Microseconds between two [`Time`]s.
pub type Micros = u64;

/// One millisecond.
pub const MILLISECOND: Micros = 1_000;
/// One second.
pub const SECOND: Micros = 1_000_000;

impl Time {
    /// Microseconds since `earlier`; 0 if that is later.
    pub fn since(self, earlier: Time) -> Micros {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Micros> for Time {
    type Output = Time;
    fn add(self, micros: Micros) -> Time {
        Time(self.0.saturating_add(micros))
    }
}

impl Sub<Micros> for Time {
    type Output = Time;
    fn sub(self, micros: Micros) -> Time {
        Time(self.0.saturating_sub(micros))
    }
}

/// The width of the common clock on the wire: 48 bits.
pub const CLOCK_MASK: u64 = (1 << 48) - 1;

/// Age of a stamp on the 48-bit common clock in microseconds; negative if it lies in the future.
pub fn stamp_age(now: u64, stamp: u64) -> i64 {
    let difference = now.wrapping_sub(stamp) & CLOCK_MASK;
    if difference < 1 << 47 { difference as i64 } else { difference as i64 - (1 << 48) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_serial() {
        assert_eq!(stamp_age(5, CLOCK_MASK - 4), 10);
        assert_eq!(stamp_age(CLOCK_MASK, 9), -10);
        assert_eq!(stamp_age(100, 40), 60);
    }
}
