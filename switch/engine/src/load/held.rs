//! With several workers: the register arrays that a packet locks at each node of a pipeline.
//!
//! An array is locked from the first node that names it to the last, in the order of the nodes'
//! code, which is a possible order of execution. So all accesses of a packet to it in one pass are
//! atomic. That includes an `@atomic` block: p4c spreads its statements over conditions and
//! actions, and the JSON does not mention it. Spans that share a node are merged and take all their
//! arrays at once, so that no worker waits while it holds an array that another one waits for.

use std::collections::{BTreeSet, HashMap};

use crate::json::Json;
use crate::load::Loader;

/// A node's action on locks before its own code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    Nothing,
    /// Locks the arrays of a lock set, unless they are locked.
    Lock(u32),
    /// Unlocks all arrays.
    Unlock,
}

/// Returns the span of each node (its index, `None` outside of all spans), and the arrays that are
/// locked in each span. `uses`: the arrays that each node names.
fn spans(uses: &[BTreeSet<u32>]) -> (Vec<Option<usize>>, Vec<Vec<u32>>) {
    // First and last node of each array, ordered by the first.
    let mut of_array: HashMap<u32, (usize, usize)> = HashMap::new();
    for (at, arrays) in uses.iter().enumerate() {
        for array in arrays {
            of_array.entry(*array).or_insert((at, at)).1 = at;
        }
    }
    let mut all: Vec<(usize, usize, u32)> = of_array.into_iter().map(|(a, (f, l))| (f, l, a)).collect();
    all.sort_unstable();
    let mut merged: Vec<(usize, usize, Vec<u32>)> = Vec::new();
    for (first, last, array) in all {
        match merged.last_mut() {
            Some((_, end, arrays)) if first <= *end => {
                *end = last.max(*end);
                arrays.push(array);
            }
            _ => merged.push((first, last, vec![array])),
        }
    }
    let mut of_node = vec![None; uses.len()];
    for (i, (first, last, _)) in merged.iter().enumerate() {
        of_node[*first..=*last].fill(Some(i));
    }
    (of_node, merged.into_iter().map(|(_, _, arrays)| arrays).collect())
}

/// Returns what each node does with locks before its own code. `of_node`: the span of each node;
/// `before`: its possible predecessors, none for the first node; `sets`: the lock set of each span.
fn transitions(of_node: &[Option<usize>], before: &[Vec<usize>], sets: &[u32]) -> Vec<Before> {
    let at = |(node, before): (usize, &Vec<usize>)| match of_node[node] {
        Some(span) if before.is_empty() || before.iter().any(|b| of_node[*b] != Some(span)) => {
            Before::Lock(sets[span])
        }
        None if before.iter().any(|b| of_node[*b].is_some()) => Before::Unlock,
        _ => Before::Nothing,
    };
    before.iter().enumerate().map(at).collect()
}

impl<'a> Loader<'_, 'a> {
    /// The arrays named in a JSON object.
    pub(super) fn arrays_named(&self, json: &Json<'a>) -> BTreeSet<u32> {
        let mut arrays = BTreeSet::new();
        json.strings(&mut |name: &str| arrays.extend(self.register_ids.get(name)));
        arrays
    }

    /// The index of a set of arrays.
    pub(super) fn lock_set(&mut self, arrays: BTreeSet<u32>) -> u32 {
        // In order, so that workers cannot deadlock.
        let arrays: Vec<u32> = arrays.into_iter().collect();
        let found = self.lock_sets.iter().position(|s| *s == arrays);
        found.unwrap_or_else(|| {
            self.lock_sets.push(arrays);
            self.lock_sets.len() - 1
        }) as u32
    }

    /// The action of each node of a pipeline, from the arrays that each names and its possible
    /// predecessors.
    pub(super) fn held(&mut self, uses: &[BTreeSet<u32>], before: &[Vec<usize>]) -> Vec<Before> {
        let (of_node, spans) = spans(uses);
        let sets: Vec<u32> = spans.into_iter().map(|s| self.lock_set(s.into_iter().collect())).collect();
        transitions(&of_node, before, &sets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(uses: &[&[u32]]) -> (Vec<Option<usize>>, Vec<Vec<u32>>) {
        spans(&uses.iter().map(|u| u.iter().copied().collect()).collect::<Vec<_>>())
    }

    #[test]
    fn spans_that_share_a_node_are_one() {
        let (nodes, sets) = of(&[&[], &[7], &[], &[7], &[1], &[2, 3], &[3], &[]]);
        assert_eq!(nodes, [None, Some(0), Some(0), Some(0), Some(1), Some(2), Some(2), None]);
        assert_eq!(sets, [vec![7], vec![1], vec![2, 3]]);
        // Array 1 spans array 2, and what array 2 reaches.
        let (nodes, sets) = of(&[&[1], &[2], &[1], &[2, 4]]);
        assert_eq!((nodes, sets), (vec![Some(0); 4], vec![vec![1, 2, 4]]));
        assert_eq!(of(&[]), (vec![], vec![]));
    }

    #[test]
    fn arrays_are_locked_on_entry_and_unlocked_on_leaving() {
        // 0 is followed by 1 or 3, 1 by 2, 2 and 3 by 4.
        let before = [vec![], vec![0], vec![1], vec![0], vec![2, 3]];
        let inside = Some(0);
        let held = transitions(&[None, inside, inside, None, None], &before, &[9]);
        assert_eq!(
            held,
            [Before::Nothing, Before::Lock(9), Before::Nothing, Before::Nothing, Before::Unlock]
        );
        let held = transitions(&[inside, inside, inside, inside, Some(1)], &before, &[9, 5]);
        assert_eq!(
            held,
            [Before::Lock(9), Before::Nothing, Before::Nothing, Before::Nothing, Before::Lock(5)]
        );
    }
}
