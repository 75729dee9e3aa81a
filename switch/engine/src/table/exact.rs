//! Exact tables: open addressing with linear probing. A key and its entry's slot lie side by side,
//! so that most lookups read one cache line.

use super::hashing::hash;

#[derive(Clone)]
pub(super) struct Exact {
    seed: u64,
    /// Words of a cell: the slot plus 1 (0: empty), and the key.
    stride: usize,
    /// Number of cells less 1; the number is a power of two.
    mask: usize,
    count: usize,
    cells: Vec<u64>,
}

impl Exact {
    pub(super) fn new(words: usize, seed: u64) -> Exact {
        Exact { seed, stride: words + 1, mask: 0, count: 0, cells: vec![0; words + 1] }
    }

    fn cell(&self, at: usize) -> &[u64] {
        &self.cells[at * self.stride..][..self.stride]
    }

    fn home(&self, key: &[u64]) -> usize {
        hash(key, self.seed) as usize & self.mask
    }

    /// Adds a key that is not in the table.
    pub(super) fn insert(&mut self, slot: u32, key: &[u64]) {
        self.count += 1;
        // At most half of the cells are in use, so searches are short and end.
        if self.count * 2 > self.mask + 1 {
            let cells = (self.count * 2).next_power_of_two();
            let old = std::mem::replace(&mut self.cells, vec![0; cells * self.stride]);
            self.mask = cells - 1;
            old.chunks_exact(self.stride).filter(|c| c[0] != 0).for_each(|c| self.put(c));
        }
        let mut cell = vec![u64::from(slot) + 1];
        cell.extend_from_slice(key);
        self.put(&cell);
    }

    fn put(&mut self, cell: &[u64]) {
        let mut at = self.home(&cell[1..]);
        while self.cell(at)[0] != 0 {
            at = (at + 1) & self.mask;
        }
        self.cells[at * self.stride..][..self.stride].copy_from_slice(cell);
    }

    /// Removes a key, if it is there. The cells behind it move up if their searches pass its place (Knuth, The Art
    /// of Computer Programming, volume 3, 6.4, algorithm R).
    pub(super) fn remove(&mut self, key: &[u64]) {
        let mut gap = self.home(key);
        loop {
            let cell = self.cell(gap);
            if cell[0] == 0 {
                return;
            }
            if cell[1..] == *key {
                break;
            }
            gap = (gap + 1) & self.mask;
        }
        self.count -= 1;
        let mut at = gap;
        loop {
            at = (at + 1) & self.mask;
            if self.cell(at)[0] == 0 {
                break;
            }
            let home = self.home(&self.cell(at)[1..]);
            // Distances, around the end of the table.
            if at.wrapping_sub(home) & self.mask >= at.wrapping_sub(gap) & self.mask {
                self.cells.copy_within(at * self.stride..(at + 1) * self.stride, gap * self.stride);
                gap = at;
            }
        }
        self.cells[gap * self.stride..][..self.stride].fill(0);
    }

    /// The slot of a key.
    #[inline(always)]
    pub(super) fn find(&self, key: &[u64]) -> Option<u32> {
        if let [word] = *key {
            return self.search(key, |cell| cell[1] == word);
        }
        self.search(key, |cell| cell[1..].iter().zip(key).all(|(a, b)| a == b))
    }

    #[inline(always)]
    fn search(&self, key: &[u64], is_equal: impl Fn(&[u64]) -> bool) -> Option<u32> {
        let mut at = self.home(key);
        loop {
            let cell = self.cell(at);
            if cell[0] == 0 {
                return None;
            }
            if is_equal(cell) {
                return Some((cell[0] - 1) as u32);
            }
            at = (at + 1) & self.mask;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Keys of few values, so that searches collide and pass removed places.
        #[test]
        fn finds_the_same_as_a_map(
            words in 0usize..4,
            steps in prop::collection::vec((any::<bool>(), 0u64..40), 1..300),
        ) {
            let mut table = Exact::new(words, 3);
            let mut map = HashMap::new();
            for (at, (add, n)) in steps.into_iter().enumerate() {
                let key: Vec<u64> = (0..words as u64).map(|w| n * (w + 1)).collect();
                match map.remove(&key) {
                    Some(_) => table.remove(&key),
                    None if add => {
                        table.insert(at as u32, &key);
                        map.insert(key, at as u32);
                    }
                    None => table.remove(&key),
                }
                for n in 0..40 {
                    let key: Vec<u64> = (0..words as u64).map(|w| n * (w + 1)).collect();
                    prop_assert_eq!(table.find(&key), map.get(&key).copied());
                }
            }
        }
    }
}
