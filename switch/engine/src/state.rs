//! State shared by the packet path and control calls: counters, registers, meters.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::bits::limb_count;
use crate::info::ProgramInfo;
use crate::types::{CounterData, MeterConfig};

/// A counter, and the time of its table entry's last hit.
#[derive(Default)]
pub(crate) struct Cell {
    bytes: AtomicU64,
    packets: AtomicU64,
    pub(crate) last_us: AtomicU64,
}

impl Cell {
    /// Counts a packet.
    #[inline(always)]
    pub(crate) fn count(&self, bytes: u64, many: bool) {
        add(&self.bytes, bytes, many);
        add(&self.packets, 1, many);
    }

    pub(crate) fn set(&self, value: CounterData) {
        self.bytes.store(value.bytes, Relaxed);
        self.packets.store(value.packets, Relaxed);
    }

    pub(crate) fn get(&self) -> CounterData {
        CounterData { bytes: self.bytes.load(Relaxed), packets: self.packets.load(Relaxed) }
    }
}

/// Adds to a counter. With a single writer a plain addition suffices.
#[inline(always)]
pub(crate) fn add(cell: &AtomicU64, amount: u64, many: bool) {
    if many {
        cell.fetch_add(amount, Relaxed);
    } else {
        cell.store(cell.load(Relaxed).wrapping_add(amount), Relaxed);
    }
}

/// Locked while a packet uses a register array, with several workers. It is held for at most a part
/// of a pipeline, so waiting spins before it yields.
#[derive(Default)]
pub(crate) struct ArrayLock(AtomicBool);

impl ArrayLock {
    #[inline]
    pub(crate) fn lock(&self) {
        let mut tries = 0u32;
        while self.0.swap(true, Acquire) {
            while self.0.load(Relaxed) {
                tries += 1;
                // The lock's holder may be preempted.
                if tries.is_multiple_of(64) { std::thread::yield_now() } else { std::hint::spin_loop() }
            }
        }
    }

    #[inline]
    pub(crate) fn unlock(&self) {
        self.0.store(false, Release);
    }
}

const CHUNK: usize = 1024;

/// Cells of a table's entries by slot. The control side allocates a chunk when its first slot is
/// used.
pub(crate) struct Cells {
    chunks: Box<[OnceLock<Box<[Cell]>>]>,
}

impl Cells {
    pub(crate) fn new(max: usize) -> Cells {
        Cells { chunks: (0..max.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect() }
    }

    /// Ensures that a slot has a cell.
    pub(crate) fn provide(&self, slot: u32) {
        if let Some(c) = self.chunks.get(slot as usize / CHUNK) {
            c.get_or_init(|| (0..CHUNK).map(|_| Cell::default()).collect());
        }
    }

    #[inline(always)]
    pub(crate) fn get(&self, slot: u32) -> Option<&Cell> {
        self.chunks.get(slot as usize / CHUNK)?.get()?.get(slot as usize % CHUNK)
    }
}

/// Zeroed memory, not touched before it is used.
pub(crate) fn zeroed(len: usize) -> Box<[AtomicU64]> {
    let plain: Box<[u64]> = vec![0u64; len].into_boxed_slice();
    // SAFETY: AtomicU64 has the size, alignment and bit validity of u64, and the box is not used elsewhere.
    unsafe { Box::from_raw(Box::into_raw(plain) as *mut [AtomicU64]) }
}

/// Arrays up to this many words are touched at creation, so that no packet waits for a page.
const RESIDENT_WORDS: usize = 1 << 21;

/// Zeroed memory that, unless it is huge, is resident from the start.
fn resident(len: usize) -> Box<[AtomicU64]> {
    if len > RESIDENT_WORDS {
        return zeroed(len);
    }
    let mut words = Vec::with_capacity(len);
    words.resize_with(len, || AtomicU64::new(std::hint::black_box(0)));
    words.into_boxed_slice()
}

/// State shared by the packet path and control calls.
pub(crate) struct Shared {
    pub(crate) tables: Vec<Cells>,
    /// Bytes and packets of each cell, alternating.
    pub(crate) counters: Vec<Box<[AtomicU64]>>,
    /// Limbs of each cell.
    pub(crate) registers: Vec<Box<[AtomicU64]>>,
    pub(crate) register_locks: Box<[ArrayLock]>,
    /// The packet path's clock.
    pub(crate) now_us: AtomicU64,
}

impl Shared {
    pub(crate) fn new(info: &ProgramInfo) -> Shared {
        let registers = info.registers.iter().map(|r| resident(r.size * limb_count(r.width))).collect();
        Shared { registers, ..Shared::sized(info) }
    }

    /// Everything except the registers' content.
    fn sized(info: &ProgramInfo) -> Shared {
        Shared {
            tables: info.tables.iter().map(|t| Cells::new(t.max_size)).collect(),
            counters: info.counters.iter().map(|c| zeroed(c.size * 2)).collect(),
            registers: Vec::new(),
            register_locks: info.registers.iter().map(|_| ArrayLock::default()).collect(),
            now_us: AtomicU64::new(0),
        }
    }
}

impl Shared {
    /// New cells with a copy of the registers' content.
    pub(crate) fn copy(&self, info: &ProgramInfo) -> Shared {
        let copy = Shared {
            registers: self.registers.iter().map(|r| zeroed(r.len())).collect(),
            ..Shared::sized(info)
        };
        for (to, from) in copy.registers.iter().zip(&self.registers) {
            for (to, from) in to.iter().zip(from) {
                let value = from.load(Relaxed);
                // Do not touch pages that stay zero.
                if value != 0 {
                    to.store(value, Relaxed);
                }
            }
        }
        copy.now_us.store(self.now_us.load(Relaxed), Relaxed);
        copy
    }
}

/// A two-rate three-colour meter (RFC 2698, colour-blind) with BMv2's arithmetic: tokens are
/// calculated from the start of the clock, so that rounding errors do not accumulate.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    /// Peak first: a packet that exceeds it is red and takes no committed tokens.
    rates: [Bucket; 2],
}

#[derive(Clone, Debug)]
struct Bucket {
    rate: u64,
    burst: u64,
    tokens: u64,
    /// Tokens granted since the start.
    given: u64,
}

impl Bucket {
    fn take(&mut self, now_us: u64, amount: u64) -> bool {
        let given = (u128::from(now_us) * u128::from(self.rate) / 1_000_000) as u64;
        self.tokens = self.tokens.saturating_add(given.saturating_sub(self.given)).min(self.burst);
        self.given = given;
        if self.tokens < amount {
            return false;
        }
        self.tokens -= amount;
        true
    }
}

/// BMv2's numbers of the colours.
const GREEN: u64 = 0;
const YELLOW: u64 = 1;
const RED: u64 = 2;

impl Meter {
    pub(crate) fn new(c: &MeterConfig) -> Meter {
        let bucket = |rate, burst| Bucket { rate, burst, tokens: burst, given: 0 };
        Meter { rates: [bucket(c.pir, c.pburst), bucket(c.cir, c.cburst)] }
    }

    pub(crate) fn execute(&mut self, now_us: u64, amount: u64) -> u64 {
        if !self.rates[0].take(now_us, amount) {
            RED
        } else if !self.rates[1].take(now_us, amount) {
            YELLOW
        } else {
            GREEN
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_of_rfc_2698() {
        let mut m = Meter::new(&MeterConfig { cir: 1000, cburst: 2, pir: 2000, pburst: 4 });
        // Both buckets are full: two green packets, two with peak tokens, then none.
        let colours: Vec<u64> = (0..5).map(|_| m.execute(0, 1)).collect();
        assert_eq!(colours, [GREEN, GREEN, YELLOW, YELLOW, RED]);
        // A millisecond adds one committed and two peak tokens.
        let colours: Vec<u64> = (0..3).map(|_| m.execute(1000, 1)).collect();
        assert_eq!(colours, [GREEN, YELLOW, RED]);
    }

    #[test]
    fn cells_are_allocated_in_chunks() {
        let cells = Cells::new(3000);
        assert!(cells.get(2047).is_none());
        cells.provide(2047);
        cells.get(2047).unwrap().count(64, false);
        assert_eq!(cells.get(2047).unwrap().get(), CounterData { bytes: 64, packets: 1 });
        assert!(cells.get(5000).is_none());
    }
}
