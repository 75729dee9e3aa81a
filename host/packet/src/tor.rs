//! What the ToR writes into every request: 16 bytes outside every MAC, believed only from one's own ToR.

use core::fmt;

use crate::bytes::{Reader, Writer, u16_at, u48_at};
use crate::error::WireError;

/// Length in bytes.
pub const LENGTH: usize = 16;
/// Flag: the sums of the proof are right, no more.
pub const FLAG_CHECKED: u8 = 0x01;
/// Flag: `time` is the common clock of all ToRs.
pub const FLAG_TIME_VALID: u8 = 0x02;

/// The ToR's stamp. A client sends all zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TorBlock {
    /// The ToR's clock in microseconds, 48 bits.
    pub time: u64,
    /// Switch number and incarnation; 0 for none.
    pub id: u16,
    /// Exclusions counted for this service, modulo 2^16.
    pub exclusions: u16,
    /// Newest usable seal epoch; 0 for unknown.
    pub seal_epoch: u16,
    /// Newest usable nonce epoch; 0 for unknown.
    pub nonce_epoch: u16,
    /// The sums of the proof are right.
    pub checked: bool,
    /// `time` is the common clock.
    pub time_valid: bool,
}

impl TorBlock {
    #[inline]
    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        r.section(WireError::TorTruncated);
        let start = r.pos();
        let b: [u8; LENGTH] = r.fields(&[6, 2, 2, 2, 2, 1, 1])?;
        let (time, id, exclusions) = (u48_at(&b, 0), u16_at(&b, 6), u16_at(&b, 8));
        let (seal_epoch, nonce_epoch) = (u16_at(&b, 10), u16_at(&b, 12));
        let (flags, reserved) = (b[14], b[15]);
        if flags & !(FLAG_CHECKED | FLAG_TIME_VALID) != 0 {
            return Err(WireError::TorFlags(start + 14));
        }
        if reserved != 0 {
            return Err(WireError::TorReserved(start + 15));
        }
        let (checked, time_valid) = (flags & FLAG_CHECKED != 0, flags & FLAG_TIME_VALID != 0);
        Ok(Self { time, id, exclusions, seal_epoch, nonce_epoch, checked, time_valid })
    }

    pub(crate) fn write(&self, w: &mut Writer<'_>) {
        w.u48(self.time);
        w.u16(self.id);
        w.u16(self.exclusions);
        w.u16(self.seal_epoch);
        w.u16(self.nonce_epoch);
        let checked = if self.checked { FLAG_CHECKED } else { 0 };
        w.u8(checked | if self.time_valid { FLAG_TIME_VALID } else { 0 });
        w.u8(0);
    }

    /// Overwrites the stamp at the start of a request's TCP payload, as a ToR does. The caller repairs the
    /// TCP checksum ([`crate::checksum::replace`] over the 16 bytes).
    ///
    /// # Errors
    /// [`WireError::TorTruncated`] when the payload is shorter than the stamp.
    pub fn stamp(&self, payload: &mut [u8]) -> Result<(), WireError> {
        let room = payload.get_mut(..LENGTH).ok_or(WireError::TorTruncated(0))?;
        let mut w = Writer::new(room);
        self.write(&mut w);
        Ok(())
    }
}

impl fmt::Display for TorBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tor {:04x} at {} us", self.id, self.time)?;
        if self.checked {
            f.write_str(", checked")?;
        }
        Ok(())
    }
}
