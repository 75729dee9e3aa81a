//! The SACK proof: ranges of received nonces, and ECN marks.

use core::fmt;

use crate::bytes::{Reader, Writer};
use crate::error::{BuildError, WireError};

/// Most entries of one proof.
pub const MAX_ENTRIES: usize = 16;
/// Bytes of an entry.
pub const ENTRY: usize = 8;

/// Kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum EntryKind {
    /// A range of originals, nonces of K.
    Original = 0,
    /// A range of retransmissions, nonces of K'.
    Retransmitted = 1,
    /// The packet carried an ECN mark, or answers a request that did.
    Mark = 2,
}

impl EntryKind {
    /// Kind 3 is refused with the counts, before any entry is read.
    fn from_bits(bits: u32) -> Self {
        match bits & 3 {
            0 => Self::Original,
            1 => Self::Retransmitted,
            _ => Self::Mark,
        }
    }

    /// Whether the entry is a range with a sum.
    pub fn is_range(self) -> bool {
        matches!(self, Self::Original | Self::Retransmitted)
    }

    /// The name used in documents, vectors and P4.
    pub fn name(self) -> &'static str {
        match self {
            Self::Original => "ORIGINAL",
            Self::Retransmitted => "RETRANSMITTED",
            Self::Mark => "MARK",
        }
    }
}

/// One entry, its numbers relative to the base of the sealed head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProofEntry {
    /// Kind of the entry.
    pub kind: EntryKind,
    /// First number minus base.
    pub first: u16,
    /// Last number minus base.
    pub last: u16,
    /// XOR of the nonces of the range; 0 in marks.
    pub sum: u32,
}

impl ProofEntry {
    /// A range of originals or retransmissions.
    pub fn range(kind: EntryKind, first: u16, last: u16, sum: u32) -> Self {
        Self { kind, first, last, sum }
    }

    /// An ECN mark at one number.
    pub fn mark(at: u16) -> Self {
        Self { kind: EntryKind::Mark, first: at, last: at, sum: 0 }
    }

    pub(crate) fn decode(kinds: u32, index: usize, b: [u8; ENTRY]) -> Self {
        Self {
            kind: EntryKind::from_bits(kinds >> (30 - 2 * (index as u32 & 15))),
            first: u16::from_be_bytes([b[0], b[1]]),
            last: u16::from_be_bytes([b[2], b[3]]),
            sum: u32::from_be_bytes([b[4], b[5], b[6], b[7]]),
        }
    }
}

/// State for checking the order of entries.
#[derive(Default)]
pub(crate) struct Order {
    /// Last number of the previous range; `None` at the start.
    before: Option<u16>,
    /// A mark was read, so no range may follow.
    ranges_done: bool,
}

impl Order {
    /// Checks the entry at byte `at` against the rules.
    #[inline]
    pub(crate) fn check(&mut self, e: &ProofEntry, at: usize) -> Result<(), WireError> {
        match e.kind {
            EntryKind::Original | EntryKind::Retransmitted => {
                if self.ranges_done {
                    return Err(WireError::EntryRangeLate(at));
                }
                if e.last < e.first {
                    return Err(WireError::EntryEmpty(at));
                }
                if self.before.is_some_and(|b| e.first <= b) {
                    return Err(WireError::EntryOrder(at));
                }
                self.before = Some(e.last);
                Ok(())
            }
            EntryKind::Mark if e.first != e.last || e.sum != 0 => Err(WireError::EntryMark(at)),
            EntryKind::Mark => {
                self.ranges_done = true;
                Ok(())
            }
        }
    }
}

impl fmt::Display for ProofEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            EntryKind::Original => write!(f, "{}-{}", self.first, self.last),
            EntryKind::Retransmitted => write!(f, "{}-{}'", self.first, self.last),
            EntryKind::Mark => write!(f, "mark {}", self.first),
        }
    }
}

/// Checks that entries follow the format's rules, like every parser.
///
/// # Errors
/// The error of the first entry at fault, its position counted from the first entry.
pub fn check(entries: impl Iterator<Item = ProofEntry>) -> Result<(), WireError> {
    let mut order = Order::default();
    entries.enumerate().try_for_each(|(i, e)| order.check(&e, i * ENTRY))
}

/// The entries of a parsed request, already checked.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Proof<'a> {
    kinds: u32,
    bytes: &'a [u8],
}

impl<'a> Proof<'a> {
    /// Reads `count` entries and checks their rules.
    pub(crate) fn read(r: &mut Reader<'a>, count: u8, kinds: u32) -> Result<Self, WireError> {
        let at = r.pos();
        // Entry by entry, so that the first of two faults is reported.
        r.section(WireError::EntryTruncated);
        let mut look = r.clone();
        let mut order = Order::default();
        for i in 0..usize::from(count) {
            order.check(&ProofEntry::decode(kinds, i, look.array()?), at + i * ENTRY)?;
        }
        Ok(Self { kinds, bytes: r.bytes(usize::from(count) * ENTRY)? })
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.bytes.len() / ENTRY
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The entries in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = ProofEntry> + Clone + use<'a> {
        let kinds = self.kinds;
        self.bytes.chunks_exact(ENTRY).enumerate().map(move |(i, b)| {
            let mut entry = [0; ENTRY];
            entry.copy_from_slice(b);
            ProofEntry::decode(kinds, i, entry)
        })
    }

    /// Only the ranges, which precede the marks.
    pub fn ranges(&self) -> impl Iterator<Item = ProofEntry> + Clone + use<'a> {
        self.iter().take_while(|e| e.kind.is_range())
    }
}

impl fmt::Debug for Proof<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl fmt::Display for Proof<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, e) in self.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{e}")?;
        }
        Ok(())
    }
}

/// The `range_kinds` field of these entries: two bits each, the first in the highest.
pub(crate) fn kinds(entries: &[ProofEntry]) -> u32 {
    entries.iter().take(MAX_ENTRIES).enumerate().fold(0, |k, (i, e)| k | (e.kind as u32) << (30 - 2 * i))
}

pub(crate) fn write(w: &mut Writer<'_>, entries: &[ProofEntry]) {
    for e in entries {
        w.u16(e.first);
        w.u16(e.last);
        w.u32(e.sum);
    }
}

/// Refuses too many entries, and entries that a parser would refuse.
pub(crate) fn check_build(entries: &[ProofEntry]) -> Result<(), BuildError> {
    if entries.len() > MAX_ENTRIES {
        return Err(BuildError::TooMany { what: "proof entries", have: entries.len(), most: MAX_ENTRIES });
    }
    check(entries.iter().copied())
        .map_err(|_| BuildError::Inconsistent { what: "proof entries that break the rules of the format" })
}
