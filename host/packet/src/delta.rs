//! Delta-encoded continuations (section 5.3 of the paper): only the fields that the client cannot
//! predict.

use crate::bytes::{Reader, Writer};
use crate::continuation::{FLAG_MARKED, FLAG_REKEY_WANTED, Mac, TransportContinuation};
use crate::error::WireError;

/// Bit: the low 32 bits of `time`.
pub const TIME_LOW: u8 = 0x01;
/// Bit: `time` whole.
pub const TIME: u8 = 0x02;
/// Bit: `tor_id`.
pub const TOR_ID: u8 = 0x04;
/// Bit: `seal_epoch`.
pub const SEAL_EPOCH: u8 = 0x08;
/// Bit: `srtt` as a signed 16-bit difference.
pub const SRTT_STEP: u8 = 0x10;
/// Bit: `srtt` whole.
pub const SRTT: u8 = 0x20;
/// Bit: the flags byte.
pub const FLAGS: u8 = 0x40;

/// A new `srtt`, relative to the predicted one or whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SrttChange {
    /// Added to the predicted value.
    Step(i16),
    /// The new value.
    Whole(u32),
}

/// A new `time`, microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TimeChange {
    /// The low 32 bits; the high 16 are the predicted ones.
    Low(u32),
    /// All 48 bits.
    Whole(u64),
}

/// A continuation as its difference from what the client predicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Delta {
    /// New `time`.
    pub time: Option<TimeChange>,
    /// New `tor_id`.
    pub tor_id: Option<u16>,
    /// New `seal_epoch`.
    pub seal_epoch: Option<u16>,
    /// New `srtt`.
    pub srtt: Option<SrttChange>,
    /// New `marked` and `rekey_wanted`, as the bits of the tail's flags.
    pub flags: Option<u8>,
    /// Low half of CRC-32C over the bytes of the continuation.
    pub check: u16,
    /// The MAC.
    pub mac: Mac,
}

/// The flags that a client cannot predict.
fn changing(c: &TransportContinuation) -> u8 {
    let rekey = if c.rekey_wanted { FLAG_REKEY_WANTED } else { 0 };
    rekey | if c.marked { FLAG_MARKED } else { 0 }
}

impl Delta {
    /// The shortest delta from `predicted` to `actual`. `None` if they differ in a field that a
    /// delta cannot carry, so that the continuation must be sent whole.
    pub fn between(
        predicted: &TransportContinuation,
        actual: &TransportContinuation,
        mac: Mac,
    ) -> Option<Self> {
        let time = match (predicted.time, actual.time) {
            (p, a) if p == a => None,
            (p, a) if p >> 32 == a >> 32 => Some(TimeChange::Low(a as u32)),
            (_, a) => Some(TimeChange::Whole(a)),
        };
        let step = i64::from(actual.srtt) - i64::from(predicted.srtt);
        let srtt = match i16::try_from(step) {
            Ok(0) => None,
            Ok(s) => Some(SrttChange::Step(s)),
            Err(_) => Some(SrttChange::Whole(actual.srtt)),
        };
        let delta = Self {
            time,
            tor_id: (predicted.tor_id != actual.tor_id).then_some(actual.tor_id),
            seal_epoch: (predicted.seal_epoch != actual.seal_epoch).then_some(actual.seal_epoch),
            srtt,
            flags: (changing(predicted) != changing(actual)).then_some(changing(actual)),
            check: actual.check(),
            mac,
        };
        (delta.patch(predicted) == *actual).then_some(delta)
    }

    fn patch(&self, predicted: &TransportContinuation) -> TransportContinuation {
        let mut c = *predicted;
        match self.time {
            Some(TimeChange::Low(low)) => c.time = c.time >> 32 << 32 | u64::from(low),
            Some(TimeChange::Whole(time)) => c.time = time,
            None => {}
        }
        if let Some(id) = self.tor_id {
            c.tor_id = id;
        }
        if let Some(epoch) = self.seal_epoch {
            c.seal_epoch = epoch;
        }
        match self.srtt {
            Some(SrttChange::Step(step)) => c.srtt = c.srtt.wrapping_add_signed(i32::from(step)),
            Some(SrttChange::Whole(srtt)) => c.srtt = srtt,
            None => {}
        }
        if let Some(flags) = self.flags {
            c.marked = flags & FLAG_MARKED != 0;
            c.rekey_wanted = flags & FLAG_REKEY_WANTED != 0;
        }
        c
    }

    /// Applies the delta. `None` if the check value shows that the prediction was wrong; then the
    /// continuation counts as lost.
    pub fn apply(&self, predicted: &TransportContinuation) -> Option<TransportContinuation> {
        let c = self.patch(predicted);
        (c.check() == self.check).then_some(c)
    }

    /// Bytes on the wire.
    pub fn length(&self) -> usize {
        let time = match self.time {
            None => 0,
            Some(TimeChange::Low(_)) => 4,
            Some(TimeChange::Whole(_)) => 6,
        };
        let srtt = match self.srtt {
            None => 0,
            Some(SrttChange::Step(_)) => 2,
            Some(SrttChange::Whole(_)) => 4,
        };
        let tor = if self.tor_id.is_some() { 2 } else { 0 };
        let epoch = if self.seal_epoch.is_some() { 2 } else { 0 };
        1 + time + tor + epoch + srtt + usize::from(self.flags.is_some()) + 2 + self.mac.len()
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        r.section(WireError::DeltaTruncated);
        let at = r.pos();
        let bits = r.u8()?;
        let both = |pair| bits & pair == pair;
        if bits & 0x80 != 0 || both(TIME_LOW | TIME) || both(SRTT_STEP | SRTT) {
            return Err(WireError::DeltaBitmap(at));
        }
        let mut d = Self::default();
        if bits & TIME_LOW != 0 {
            d.time = Some(TimeChange::Low(r.u32()?));
        }
        if bits & TIME != 0 {
            d.time = Some(TimeChange::Whole(r.u48()?));
        }
        if bits & TOR_ID != 0 {
            d.tor_id = Some(r.u16()?);
        }
        if bits & SEAL_EPOCH != 0 {
            d.seal_epoch = Some(r.u16()?);
        }
        if bits & SRTT_STEP != 0 {
            d.srtt = Some(SrttChange::Step(r.u16()? as i16));
        }
        if bits & SRTT != 0 {
            d.srtt = Some(SrttChange::Whole(r.u32()?));
        }
        if bits & FLAGS != 0 {
            let at = r.pos();
            let flags = r.u8()?;
            if flags & !(FLAG_MARKED | FLAG_REKEY_WANTED) != 0 {
                return Err(WireError::ContinuationFlags(at));
            }
            d.flags = Some(flags);
        }
        d.check = r.u16()?;
        d.mac = r.array()?;
        Ok(d)
    }

    pub(crate) fn write(&self, w: &mut Writer<'_>) {
        let mut bits = match self.time {
            None => 0,
            Some(TimeChange::Low(_)) => TIME_LOW,
            Some(TimeChange::Whole(_)) => TIME,
        };
        bits |= if self.tor_id.is_some() { TOR_ID } else { 0 };
        bits |= if self.seal_epoch.is_some() { SEAL_EPOCH } else { 0 };
        bits |= match self.srtt {
            None => 0,
            Some(SrttChange::Step(_)) => SRTT_STEP,
            Some(SrttChange::Whole(_)) => SRTT,
        };
        bits |= if self.flags.is_some() { FLAGS } else { 0 };
        w.u8(bits);
        match self.time {
            None => {}
            Some(TimeChange::Low(low)) => w.u32(low),
            Some(TimeChange::Whole(time)) => w.u48(time),
        }
        if let Some(id) = self.tor_id {
            w.u16(id);
        }
        if let Some(epoch) = self.seal_epoch {
            w.u16(epoch);
        }
        match self.srtt {
            None => {}
            Some(SrttChange::Step(step)) => w.u16(step as u16),
            Some(SrttChange::Whole(srtt)) => w.u32(srtt),
        }
        if let Some(flags) = self.flags {
            w.u8(flags & (FLAG_MARKED | FLAG_REKEY_WANTED));
        }
        w.u16(self.check);
        w.bytes(&self.mac);
    }
}
