//! The list of the connections that left a replica last, and its encoding in the store.

use std::collections::VecDeque;

use crate::record::Age;

/// Limit on the connections in a list; older ones are dropped.
pub const LISTED: usize = 256;
/// Length of an encoded entry.
const ENTRY: usize = 24;

/// A connection that left its replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// The number of its record.
    pub number: u32,
    /// Age of the record, which distinguishes it from a later record under the same number.
    pub age: Age,
}

/// The most recent connections that left, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct List {
    /// Position of the first entry, counted over all entries that the list ever had.
    first: u64,
    entries: VecDeque<Left>,
}

impl List {
    /// An empty list; its first entry will have position `first`.
    #[must_use]
    pub fn new(first: u64) -> List {
        List { first, entries: VecDeque::new() }
    }

    /// Appends an entry.
    pub fn push(&mut self, left: Left) {
        self.entries.push_back(left);
        if self.entries.len() > LISTED {
            self.entries.pop_front();
            self.first += 1;
        }
    }

    /// The position after the last entry.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.first.saturating_add(self.entries.len() as u64)
    }

    /// The entries from position `place` on that are still in the list.
    pub fn from(&self, place: u64) -> impl Iterator<Item = Left> {
        let known = usize::try_from(place.saturating_sub(self.first)).unwrap_or(usize::MAX);
        self.entries.iter().skip(known).copied()
    }

    /// Encodes the list: the first position, then each entry's number and age.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut octets = Vec::with_capacity(8 + ENTRY * self.entries.len());
        octets.extend_from_slice(&self.first.to_be_bytes());
        for left in &self.entries {
            octets.extend_from_slice(&left.number.to_be_bytes());
            octets.extend_from_slice(&left.age.encode());
        }
        octets
    }

    /// Decodes the result of [`List::encode`]; `None` for anything else.
    #[must_use]
    pub fn decode(octets: &[u8]) -> Option<List> {
        let (first, rest) = octets.split_first_chunk::<8>()?;
        if !rest.len().is_multiple_of(ENTRY) || rest.len() > LISTED * ENTRY {
            return None;
        }
        let entry = |octets: &[u8]| {
            let (number, rest) = octets.split_first_chunk::<4>()?;
            Some(Left { number: u32::from_be_bytes(*number), age: Age::decode(rest.first_chunk()?) })
        };
        let entries = rest.chunks_exact(ENTRY).map(entry).collect::<Option<_>>()?;
        Some(List { first: u64::from_be_bytes(*first), entries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Tuple;
    use crate::testing::idle;

    fn left(number: u32) -> Left {
        let tuple =
            Tuple { client: "10.0.0.1:4000".parse().unwrap(), service: "10.9.0.1:80".parse().unwrap() };
        let mut record = idle(tuple, 900, 30);
        (record.version, record.handshake.at_ms) = (number + 1, u64::MAX - 7);
        Left { number, age: record.age() }
    }

    #[test]
    fn list_round_trips_and_rejects_other_bytes() {
        let mut list = List::default();
        assert_eq!((List::decode(&list.encode()), list.end()), (Some(list.clone()), 0));
        for number in 0..3 {
            list.push(left(number));
        }
        let octets = list.encode();
        assert_eq!(List::decode(&octets), Some(list));
        for short in (0..octets.len()).filter(|short| short % ENTRY != 8) {
            assert_eq!(List::decode(&octets[..short]), None, "{short}");
        }
        assert_eq!(List::decode(&vec![0; 8 + ENTRY * (LISTED + 1)]), None, "no replica writes so many");
    }

    #[test]
    fn list_keeps_newest_entries_at_their_positions() {
        let mut list = List::new(1000);
        for number in 0..LISTED as u32 + 2 {
            list.push(left(number));
        }
        assert_eq!(list.end(), 1002 + LISTED as u64);
        for (place, first) in [(0, 2), (1002, 2), (1003, 3), (list.end() - 1, LISTED as u32 + 1)] {
            let from: Vec<Left> = list.from(place).collect();
            assert_eq!((from[0], from.len()), (left(first), LISTED + 2 - first as usize), "{place}");
        }
        for place in [list.end(), list.end() + 1, u64::MAX] {
            assert_eq!(list.from(place).count(), 0);
        }
    }
}
