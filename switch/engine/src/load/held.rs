//! Which register arrays a packet holds at which node of a pipeline, with several workers.
//!
//! An array is held from the first node that names it to the last, in the order in which the nodes' code lies, and that
//! is an order in which packets go. So all that a packet does with it in one pass is whole: a block of `@atomic` too,
//! whose statements p4c spreads over conditions and actions, and of which the JSON says nothing. Spans that share a node
//! are one and take all their arrays at once, so nobody waits while holding what another waits for.

use std::collections::{BTreeSet, HashMap};

use crate::json::Json;
use crate::load::Loader;

/// What one node does before its own code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    Nothing,
    /// Takes the arrays of a lock set, unless they are held.
    Lock(u32),
    /// Gives up what is held.
    Unlock,
}

/// For each node the span that it is in. `uses` are the arrays that each names.
fn spans(uses: &[BTreeSet<u32>]) -> (Vec<Option<usize>>, Vec<Vec<u32>>) {
    // First and last node of each array, by the first.
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

/// What each node does first. `before` are the nodes that each may come after; the first node comes after none.
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
    /// The arrays that an object of the JSON names.
    pub(super) fn arrays_named(&self, json: &Json<'a>) -> BTreeSet<u32> {
        let mut arrays = BTreeSet::new();
        json.strings(&mut |name: &str| arrays.extend(self.register_ids.get(name)));
        arrays
    }

    /// The number of a set of arrays.
    pub(super) fn lock_set(&mut self, arrays: BTreeSet<u32>) -> u32 {
        // In order, so that no two workers wait for each other.
        let arrays: Vec<u32> = arrays.into_iter().collect();
        let found = self.lock_sets.iter().position(|s| *s == arrays);
        found.unwrap_or_else(|| {
            self.lock_sets.push(arrays);
            self.lock_sets.len() - 1
        }) as u32
    }

    /// What each node of a pipeline does first, by the arrays that each names and the nodes it may come after.
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
        // 1 spans 2, and what 2 reaches.
        let (nodes, sets) = of(&[&[1], &[2], &[1], &[2, 4]]);
        assert_eq!((nodes, sets), (vec![Some(0); 4], vec![vec![1, 2, 4]]));
        assert_eq!(of(&[]), (vec![], vec![]));
    }

    #[test]
    fn they_are_taken_where_packets_come_in_and_given_up_where_they_leave() {
        // 0 goes to 1 or 3, 1 to 2, 2 and 3 to 4.
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
