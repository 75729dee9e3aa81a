//! The ToR's replay memory, as in `p4src/core/control/replay.p4`: a counting sketch for the
//! present and the previous time slot, with six rows of words of eight cells that are never
//! cleared. The hash differs, but its bits are used in the same way.

use rivulet_packet::RequestClass;

use crate::rng::Rng;

/// Length of a time slot, as a shift of microseconds.
const SLOT_SHIFT: u32 = 22;
/// Rows of a sketch.
const ROWS: usize = 6;

/// What a use is counted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Class of the request.
    pub class: RequestClass,
    /// Number of the repetition.
    pub attempt: u8,
    /// Tag, or a hash of the flow.
    pub tag: u32,
    /// Number; 0 for requests that open the next generation, the ISN for a SYN.
    pub number: u32,
}

/// The sketch's verdict on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opinion {
    /// Not used before; counted now.
    Fresh,
    /// Used before.
    Used,
    /// Unknown, and the sketch is too full to count it.
    Unjudged,
}

/// One sketch.
#[derive(Debug)]
pub struct Sketch {
    rows: Vec<u64>,
    words: usize,
    limit: u64,
    /// Keys stored, by the slot's parity: the slot and the number.
    load: [(u64, u64); 2],
    key: u64,
}

impl Sketch {
    /// Creates a keyed sketch of six rows of `words` (a power of two).
    pub fn new(words: usize, key: u64) -> Self {
        debug_assert!(words.is_power_of_two(), "indices are cut from a hash");
        Self { rows: vec![0; ROWS * words], words, limit: words as u64, load: [(0, 0); 2], key }
    }

    /// Counts a use at `now` (microseconds) and returns the verdict.
    pub fn take(&mut self, key: Key, now: u64) -> Opinion {
        let slot = now >> SLOT_SHIFT;
        let held = |(at, count): (u64, u64), slot| if at == slot { count } else { 0 };
        let count = held(self.load[slot as usize & 1], slot);
        let full = count >= self.limit;
        let full_before = slot > 0 && held(self.load[!slot as usize & 1], slot - 1) >= self.limit;
        let salt = self.key ^ u64::from(key.attempt) << 8 ^ key.class as u64;
        let mut hash = Rng::new(salt ^ (u64::from(key.tag) << 32 | u64::from(key.number)).rotate_left(17));
        let (mut current, mut previous) = (7, 7);
        for row in 0..ROWS {
            let bits = hash.u64();
            let word = &mut self.rows[row * self.words + (bits as usize & (self.words - 1))];
            let (now, before) = cell(word, slot as u16, (bits >> 61) as u32, !full);
            (current, previous) = (now.min(current), before.min(previous));
        }
        if !full && current == 0 {
            self.load[slot as usize & 1] = (slot, count + 1);
        }
        // Add the minima of the two slots.
        if current + previous >= 1 {
            Opinion::Used
        } else if full || full_before {
            Opinion::Unjudged
        } else {
            Opinion::Fresh
        }
    }
}

/// Updates a word: its slot in the upper 16 bits, then eight 3-bit counters of this slot and of the
/// previous one. Returns the cell's counters before this use, which is added if `put`.
fn cell(word: &mut u64, slot: u16, cell: u32, put: bool) -> (u64, u64) {
    let mut value = *word;
    match slot.wrapping_sub((value >> 48) as u16) {
        0 => {}
        1 => value = u64::from(slot) << 48 | (value >> 24 & 0xff_ffff),
        _ => value = u64::from(slot) << 48,
    }
    let shift = 3 * cell;
    let (previous, current) = (value >> shift & 7, value >> (shift + 24) & 7);
    if put {
        if current != 7 {
            value += 1 << (shift + 24);
        }
        *word = value;
    }
    (current, previous)
}

/// Generations that ended, in cells by the lower 16 bits of the tag: the latest one of each cell.
#[derive(Debug)]
pub struct Left {
    /// Time slot, tag, and whether a REKEY ended it.
    cells: Vec<(u64, u32, bool)>,
}

impl Default for Left {
    fn default() -> Self {
        Self::new()
    }
}

impl Left {
    /// Creates an empty table.
    pub fn new() -> Self {
        Self { cells: vec![(0, 0, false); 1 << 16] }
    }

    /// Records that the generation of `tag` ended at `now`, by a REKEY or a TIMEOUT with right
    /// sums.
    pub fn leave(&mut self, tag: u32, by_rekey: bool, now: u64) {
        self.cells[tag as usize & 0xffff] = (now >> SLOT_SHIFT, tag, by_rekey);
    }

    /// Whether a request of this class is too late for its generation.
    pub fn is_over(&self, class: RequestClass, tag: u32, now: u64) -> bool {
        let (slot, left, by_rekey) = self.cells[tag as usize & 0xffff];
        let known = left == tag && (now >> SLOT_SHIFT).saturating_sub(slot) <= 1 && slot > 0;
        known
            && match class {
                RequestClass::Normal | RequestClass::Probe => true,
                RequestClass::Timeout => by_rekey,
                RequestClass::Rekey => !by_rekey,
                _ => false,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(class: RequestClass, number: u32) -> Key {
        Key { class, attempt: 0, tag: 7, number }
    }

    #[test]
    fn each_attempt_is_used_once_within_a_slot_and_the_next() {
        let slot = 1u64 << SLOT_SHIFT;
        for attempt in 0..=3 {
            for later in [0, slot] {
                let mut sketch = Sketch::new(1024, 5);
                let key = |number| Key { attempt, ..key(RequestClass::Probe, number) };
                assert_eq!(sketch.take(key(9), 100 * slot), Opinion::Fresh);
                assert_eq!(sketch.take(key(9), 100 * slot + later), Opinion::Used);
                assert_eq!(sketch.take(key(10), 100 * slot + later), Opinion::Fresh);
                assert_eq!(
                    sketch.take(key(9), 103 * slot),
                    Opinion::Fresh,
                    "two slots later it is forgotten"
                );
            }
        }
    }

    #[test]
    fn ended_generation_is_remembered_for_two_slots() {
        let slot = 1u64 << SLOT_SHIFT;
        let mut left = Left::new();
        left.leave(7, false, 100 * slot);
        left.leave(8, true, 100 * slot);
        for now in [100 * slot, 101 * slot] {
            let is_over = |class, tag| left.is_over(class, tag, now);
            assert!(is_over(RequestClass::Normal, 7) && is_over(RequestClass::Probe, 8));
            assert!(is_over(RequestClass::Rekey, 7) && is_over(RequestClass::Timeout, 8));
            assert!(!is_over(RequestClass::Timeout, 7) && !is_over(RequestClass::Rekey, 8));
            assert!(!is_over(RequestClass::Normal, 9) && !is_over(RequestClass::Close, 7));
        }
        assert!(!left.is_over(RequestClass::Normal, 7, 102 * slot));
    }

    #[test]
    fn full_sketch_passes_unknown_and_refuses_known_requests() {
        let mut sketch = Sketch::new(1024, 5);
        let opinions: Vec<_> =
            (0..2000).map(|n| sketch.take(key(RequestClass::Normal, n), 1 << 30)).collect();
        let of = |wanted| opinions.iter().filter(|o| **o == wanted).count();
        // One cell in eight is set: 2 in a million count as used by mistake.
        assert_eq!((of(Opinion::Fresh), of(Opinion::Used), of(Opinion::Unjudged)), (1024, 0, 976));
        assert_eq!(sketch.take(key(RequestClass::Normal, 3), 1 << 30), Opinion::Used);
        // The next slot cannot know keys that were not stored.
        assert_eq!(
            sketch.take(key(RequestClass::Normal, 1999), (1 << 30) + (1 << SLOT_SHIFT)),
            Opinion::Unjudged
        );
    }
}
