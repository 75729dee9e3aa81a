//! The ToR block of a request: 18 bytes outside every MAC. A replica accepts it only from its own
//! ToR: by the frame's address within the rack, by a tag in tunnels.

use core::fmt;

use crate::bytes::{Reader, Writer, u16_at, u32_at, u48_at};
use crate::error::WireError;
use crate::heartbeat::TorKey;
use crate::option::RivuletOption;

/// Length in bytes.
pub const LENGTH: usize = 18;
/// Flag: the sums of the proof are correct. Nothing else was checked.
pub const FLAG_CHECKED: u8 = 0x01;
/// Flag: `time` is the ToRs' common clock.
pub const FLAG_TIME_VALID: u8 = 0x02;

/// The ToR's stamp; clients send zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TorBlock {
    /// The ToR's clock in microseconds, 48 bits.
    pub time: u64,
    /// Switch number and incarnation; 0 for none.
    pub id: u16,
    /// Newest usable seal epoch; 0 for unknown.
    pub seal_epoch: u16,
    /// Newest usable nonce epoch; 0 for unknown.
    pub nonce_epoch: u16,
    /// The sums of the proof are right.
    pub checked: bool,
    /// `time` is the common clock.
    pub time_valid: bool,
    /// Low half of the tag's key epoch; 0 within the rack.
    pub key_epoch: u8,
    /// Tag of a request in a tunnel ([`tag`]); 0 within the rack.
    pub tag: u32,
}

impl TorBlock {
    #[inline]
    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        r.section(WireError::TorTruncated);
        let start = r.pos();
        let b: [u8; LENGTH] = r.fields(&[6, 2, 2, 2, 1, 1, 4])?;
        let (time, id) = (u48_at(&b, 0), u16_at(&b, 6));
        let (seal_epoch, nonce_epoch) = (u16_at(&b, 8), u16_at(&b, 10));
        let (flags, key_epoch, tag) = (b[12], b[13], u32_at(&b, 14));
        if flags & !(FLAG_CHECKED | FLAG_TIME_VALID) != 0 {
            return Err(WireError::TorFlags(start + 12));
        }
        let (checked, time_valid) = (flags & FLAG_CHECKED != 0, flags & FLAG_TIME_VALID != 0);
        Ok(Self { time, id, seal_epoch, nonce_epoch, checked, time_valid, key_epoch, tag })
    }

    /// Parses the stamp at the start of a request's TCP payload.
    ///
    /// # Errors
    /// [`WireError::TorTruncated`], [`WireError::TorFlags`].
    pub fn parse(payload: &[u8]) -> Result<Self, WireError> {
        Self::read(&mut Reader::new(payload, WireError::TorTruncated))
    }

    pub(crate) fn write(&self, w: &mut Writer<'_>) {
        w.u48(self.time);
        w.u16(self.id);
        w.u16(self.seal_epoch);
        w.u16(self.nonce_epoch);
        let checked = if self.checked { FLAG_CHECKED } else { 0 };
        w.u8(checked | if self.time_valid { FLAG_TIME_VALID } else { 0 });
        w.u8(self.key_epoch);
        w.u32(self.tag);
    }

    /// Overwrites the stamp at the start of a request's TCP payload, like a ToR. The caller updates
    /// the TCP checksum ([`crate::checksum::replace`] over the 18 bytes).
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

/// Proof entries that the ToR reads and the tag covers.
const ENTRIES_SEEN: usize = 4;

/// The tag of the ToR block at the start of a request's payload. It covers the block and the fields
/// of the request that the block vouches for (docs/wire-format.md, "Tags"). `sequence` is the TCP
/// header's. `None` if the payload ends early.
pub fn tag(key: TorKey, option: RivuletOption, sequence: u32, payload: &[u8]) -> Option<u32> {
    let mut words = [0; 9 + 2 * ENTRIES_SEEN];
    let fixed: &[u8; 24] = payload.first_chunk()?;
    words[0] = u32_at(fixed, 0);
    words[1] = u32_at(fixed, 4);
    words[2] = u32_at(fixed, 8);
    words[3] = u32::from(u16_at(fixed, 12)) << 16 | u32::from(u16_at(fixed, 18));
    words[4] = option.low_word();
    words[5] = u32_at(fixed, 20);
    if option.is_syn() {
        words[6] = sequence;
        return Some(key.tag(&words[..7]));
    }
    let head: &[u8; 12] = payload.get(24..)?.first_chunk()?;
    words[6..9].copy_from_slice(&[u32_at(head, 0), u32_at(head, 4), u32_at(head, 8)]);
    let entries = usize::from(fixed[18]).min(ENTRIES_SEEN);
    let (entries, _) = payload.get(44..44 + 8 * entries)?.as_chunks::<4>();
    for (word, entry) in words[9..].iter_mut().zip(entries) {
        *word = u32::from_be_bytes(*entry);
    }
    Some(key.tag(&words[..9 + entries.len()]))
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
