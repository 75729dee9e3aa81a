//! The ToR's memory against replay, as `p4src/include/control/replay.p4` has it: a sketch of counts for this slot of time and the one
//! before, six rows of words of eight cells, nothing ever cleared. The hash is another one; its bits are used in the same way.

use rivulet_packet::RequestClass;

use crate::rng::Rng;

/// A slot of time, microseconds, as a shift.
const SLOT_SHIFT: u32 = 22;
/// Rows of a sketch.
const ROWS: usize = 6;

/// What one use is counted under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Class of the request.
    pub class: RequestClass,
    /// Which repetition it is.
    pub attempt: u8,
    /// Tag, or a hash of the flow.
    pub tag: u32,
    /// Number; 0 in what opens the next generation, the ISN in an opening.
    pub number: u32,
}

/// What the sketch says of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opinion {
    /// Not used, and counted.
    Fresh,
    /// Used before.
    Used,
    /// The sketch is full and does not know it.
    Unjudged,
}

/// One sketch.
#[derive(Debug)]
pub struct Sketch {
    rows: Vec<u64>,
    words: usize,
    limit: u64,
    /// Keys put in, by parity of the slot: the slot, and how many.
    load: [(u64, u64); 2],
    key: u64,
}

impl Sketch {
    /// A sketch of six rows of `words` (a power of two), keyed.
    pub fn new(words: usize, key: u64) -> Self {
        debug_assert!(words.is_power_of_two(), "indices are cut from a hash");
        Self { rows: vec![0; ROWS * words], words, limit: words as u64, load: [(0, 0); 2], key }
    }

    /// Counts a use at `now` (microseconds) and says whether it is allowed.
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
        // The slots apart: the sum of two minima.
        if current + previous >= 1 {
            Opinion::Used
        } else if full || full_before {
            Opinion::Unjudged
        } else {
            Opinion::Fresh
        }
    }
}

/// A word: its slot in the highest 16 bits, then eight counts of three bits of this slot, and of the slot before in the lowest. Gives the
/// counts of the cell before this use, which is added if `put`.
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

/// Generations that were left, a cell for those whose tags end in the same 16 bits: the latest of them.
#[derive(Debug)]
pub struct Left {
    /// Slot of time, tag, by REKEY.
    cells: Vec<(u64, u32, bool)>,
}

impl Default for Left {
    fn default() -> Self {
        Self::new()
    }
}

impl Left {
    /// None was left.
    pub fn new() -> Self {
        Self { cells: vec![(0, 0, false); 1 << 16] }
    }

    /// The generation of `tag` was left at `now`, by a REKEY or a TIMEOUT whose sums were right.
    pub fn leave(&mut self, tag: u32, by_rekey: bool, now: u64) {
        self.cells[tag as usize & 0xffff] = (now >> SLOT_SHIFT, tag, by_rekey);
    }

    /// Whether a request of this class comes too late for its generation.
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
    fn a_generation_that_was_left_is_known_for_a_slot_and_the_next() {
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
    fn a_full_one_passes_what_it_does_not_know_and_refuses_what_it_knows() {
        let mut sketch = Sketch::new(1024, 5);
        let opinions: Vec<_> =
            (0..2000).map(|n| sketch.take(key(RequestClass::Normal, n), 1 << 30)).collect();
        let of = |wanted| opinions.iter().filter(|o| **o == wanted).count();
        // A cell in eight is set: 2 in a million are taken for used.
        assert_eq!((of(Opinion::Fresh), of(Opinion::Used), of(Opinion::Unjudged)), (1024, 0, 976));
        assert_eq!(sketch.take(key(RequestClass::Normal, 3), 1 << 30), Opinion::Used);
        // The slot after cannot know what was not put in.
        assert_eq!(
            sketch.take(key(RequestClass::Normal, 1999), (1 << 30) + (1 << SLOT_SHIFT)),
            Opinion::Unjudged
        );
    }
}
