//! Table lookup: entries grouped by mask, each group a hash table.
//!
//! An exact table is a hash table of its own kind. A longest-prefix table has a group for each prefix length in use,
//! the longest first. A ternary table has one for each mask in use, ordered by its highest
//! priority, so that a search ends when no later group can be better (tuple space search,
//! Srinivasan et al. 1999). Large groups have a filter of a few kilobytes. The filters of many
//! groups are tested in a row without branches, and only groups that may contain the key are
//! searched.

mod exact;
mod filter;
mod hashing;

use hashbrown::HashTable;

use self::exact::Exact;
use self::filter::Filter;
use self::hashing::{hash, hash_masked};
use crate::info::TableKind;
use crate::key::{CanonKey, KeyFieldPlan, KeyPlan, Words};

/// Largest number of words in a key.
pub(crate) const MAX_WORDS: usize = 64;

/// Entries of a group with the same masked value, the best first. Only ternary and range tables can
/// have more than one.
#[derive(Clone)]
struct Bucket {
    first: u32,
    /// Priority of the first one.
    priority: i32,
    #[allow(clippy::box_collection, reason = "a bucket in 16 bytes: rarely is there more")]
    more: Option<Box<Vec<u32>>>,
}

impl Bucket {
    fn more(&self) -> &[u32] {
        self.more.as_ref().map_or(&[], |m| m.as_slice())
    }

    /// Sorts the slots of entries with equal keys by priority, highest first; among equal priorities
    /// the entry that BMv2 finds first comes first. `None` without slots.
    fn of(mut slots: Vec<u32>, priorities: &[i32]) -> Option<Bucket> {
        slots.sort_by_key(|s| (-i64::from(priorities[*s as usize]), *s));
        let first = *slots.first()?;
        slots.remove(0);
        let more = (!slots.is_empty()).then(|| Box::new(slots));
        Some(Bucket { first, priority: priorities[first as usize], more })
    }
}

#[derive(Clone)]
struct Group {
    mask: Words,
    /// Prefix length, or the highest priority in the group.
    rank: i64,
    buckets: HashTable<Bucket>,
    /// For large groups of ternary and range tables.
    filter: Option<Filter>,
}

/// Groups of ternary tables with more values than this have a filter. Smaller tables have their
/// control bytes in the processor's cache.
const FILTERED: usize = 64;
/// Number of filters tested before the first of their groups is searched.
const AT_A_TIME: usize = 16;

/// Finds entries' slots by key.
#[derive(Clone)]
pub(crate) struct Lookup {
    kind: TableKind,
    words: usize,
    seed: u64,
    /// Masked values of all slots, consecutively.
    values: Vec<u64>,
    priorities: Vec<i32>,
    ranges: Vec<Vec<(u32, Words, Words)>>,
    range_fields: Vec<KeyFieldPlan>,
    /// The entries of an exact table; it has no groups.
    exact: Exact,
    groups: Vec<Group>,
    /// For longest-prefix tables with many lengths.
    lengths: Option<Lengths>,
}

/// Tells which prefix lengths may match. Prefixes of at least `short` bits are recorded by a hash
/// of their first `short` bits (and the exact fields), with a bit for each length. Collisions and
/// removed prefixes only cost an unnecessary lookup. The few lengths of shorter prefixes are tried
/// one by one.
#[derive(Clone)]
struct Lengths {
    short: u32,
    mask: Words,
    notes: Vec<u128>,
    removed: usize,
    /// Group of each length.
    group_of: Vec<u16>,
}

/// Number of lengths that are always looked up one by one.
const FEW_LENGTHS: usize = 4;

impl Lookup {
    pub(crate) fn new(kind: TableKind, plan: &KeyPlan, seed: u64) -> Lookup {
        Lookup {
            kind,
            words: plan.words,
            seed,
            values: Vec::new(),
            priorities: Vec::new(),
            ranges: Vec::new(),
            range_fields: plan.fields.clone(),
            exact: Exact::new(plan.words, seed),
            groups: Vec::new(),
            lengths: None,
        }
    }

    fn value(values: &[u64], words: usize, slot: u32) -> &[u64] {
        &values[slot as usize * words..][..words]
    }

    /// Adds a slot; the key must not be in the table.
    pub(crate) fn insert(&mut self, slot: u32, key: &CanonKey) {
        let at = slot as usize;
        if self.priorities.len() <= at {
            self.priorities.resize(at + 1, 0);
            self.values.resize((at + 1) * self.words, 0);
            self.ranges.resize(at + 1, Vec::new());
        }
        self.values[at * self.words..][..self.words].copy_from_slice(&key.value);
        self.priorities[at] = key.priority;
        self.ranges[at] = key.ranges.to_vec();
        let rank = match self.kind {
            TableKind::Exact => return self.exact.insert(slot, &key.value),
            TableKind::Lpm => i64::from(key.prefix),
            TableKind::Ternary | TableKind::Range => i64::from(key.priority),
        };
        let known = self.groups.iter().position(|g| g.mask == key.mask);
        let index = match known {
            Some(i) => i,
            None => {
                let (mask, buckets) = (key.mask.clone(), HashTable::new());
                self.groups.push(Group { mask, rank, buckets, filter: None });
                self.groups.len() - 1
            }
        };
        let (values, words, seed) = (&self.values, self.words, self.seed);
        let group = &mut self.groups[index];
        let equal = |b: &Bucket| Self::value(values, words, b.first) == &key.value[..];
        let h = hash(&key.value, seed);
        match group.buckets.find_mut(h, equal) {
            Some(b) => {
                let slots = [&[b.first, slot], b.more()].concat();
                *b = Bucket::of(slots, &self.priorities).unwrap_or_else(|| b.clone());
            }
            None => {
                let again = |b: &Bucket| hash(Self::value(values, words, b.first), seed);
                group.buckets.insert_unique(
                    h,
                    Bucket { first: slot, priority: key.priority, more: None },
                    again,
                );
                if matches!(self.kind, TableKind::Ternary | TableKind::Range) {
                    let count = group.buckets.len();
                    if group.filter.as_ref().is_some_and(|f| f.holds(count)) {
                        group.filter.iter_mut().for_each(|f| f.add(h));
                    } else {
                        let anew = || Filter::new(count, group.buckets.iter().map(again));
                        group.filter = (count > FILTERED).then(anew);
                    }
                }
            }
        }
        group.rank = group.rank.max(rank);
        self.groups.sort_by_key(|g| -g.rank);
        if self.kind == TableKind::Lpm {
            if known.is_none() { self.note_all() } else { self.note(slot, key.prefix) }
        }
    }

    /// Rebuilds the records of lengths: the lengths in use have changed, or there are too many
    /// records.
    fn note_all(&mut self) {
        self.lengths = None;
        let count = self.groups.len();
        if count <= FEW_LENGTHS {
            return;
        }
        // The groups are sorted by length, longest first.
        let border = &self.groups[count - FEW_LENGTHS];
        let entries: usize = self.groups.iter().map(|g| g.buckets.len()).sum();
        let mut group_of = vec![0; 130];
        for (i, g) in self.groups.iter().enumerate() {
            if let Some(at) = group_of.get_mut(g.rank as usize) {
                *at = i as u16;
            }
        }
        if self.groups[0].rank > 128 {
            // More lengths than record bits; looked up one by one.
            return;
        }
        self.lengths = Some(Lengths {
            short: border.rank as u32,
            mask: border.mask.clone(),
            notes: vec![0; (entries * 4).next_power_of_two().max(256)],
            removed: 0,
            group_of,
        });
        let all: Vec<(u32, u32)> =
            self.groups.iter().flat_map(|g| g.buckets.iter().map(|b| (b.first, g.rank as u32))).collect();
        all.into_iter().for_each(|(slot, prefix)| self.set_note(slot, prefix));
    }

    fn note(&mut self, slot: u32, prefix: u32) {
        let entries: usize = self.groups.iter().map(|g| g.buckets.len()).sum();
        match &self.lengths {
            Some(l) if entries > l.notes.len() / 2 => self.note_all(),
            _ => self.set_note(slot, prefix),
        }
    }

    fn set_note(&mut self, slot: u32, prefix: u32) {
        let Some(l) = self.lengths.as_mut().filter(|l| prefix >= l.short && prefix > 0) else { return };
        let value = Self::value(&self.values, self.words, slot);
        let at = hash_masked(value, &l.mask, self.seed) as usize & (l.notes.len() - 1);
        l.notes[at] |= 1 << (prefix - 1);
    }

    #[inline]
    fn longest(&self, key: &[u64]) -> Option<u32> {
        let Some(l) = &self.lengths else {
            return self.groups.iter().find_map(|g| self.in_group(g, key)).map(|b| b.first);
        };
        let mut notes = l.notes[hash_masked(key, &l.mask, self.seed) as usize & (l.notes.len() - 1)];
        while notes != 0 {
            let prefix = 128 - notes.leading_zeros();
            if let Some(b) = self.in_group(&self.groups[l.group_of[prefix as usize] as usize], key) {
                return Some(b.first);
            }
            notes &= !(1 << (prefix - 1));
        }
        let short = self.groups.len() - FEW_LENGTHS + 1;
        self.groups[short..].iter().find_map(|g| self.in_group(g, key)).map(|b| b.first)
    }

    /// Removes a slot that is in the table.
    pub(crate) fn remove(&mut self, slot: u32) {
        let (values, words, seed) = (&self.values, self.words, self.seed);
        let value = Self::value(values, words, slot);
        if self.kind == TableKind::Exact {
            return self.exact.remove(value);
        }
        let h = hash(value, seed);
        let mut found = None;
        for (i, group) in self.groups.iter_mut().enumerate() {
            let here = |b: &Bucket| b.first == slot || b.more().contains(&slot);
            if let Ok(mut entry) = group.buckets.find_entry(h, here) {
                let b = entry.get_mut();
                let left: Vec<u32> =
                    std::iter::once(&b.first).chain(b.more()).copied().filter(|s| *s != slot).collect();
                match Bucket::of(left, &self.priorities) {
                    Some(left) => *b = left,
                    None => {
                        entry.remove();
                        let count = group.buckets.len();
                        if group.filter.as_mut().is_some_and(Filter::stale) {
                            let again = |b: &Bucket| hash(Self::value(values, words, b.first), seed);
                            let anew = || Filter::new(count, group.buckets.iter().map(again));
                            group.filter = (count > FILTERED).then(anew);
                        }
                    }
                }
                found = Some(i);
                break;
            }
        }
        let gone = found.filter(|i| self.groups[*i].buckets.is_empty());
        if let Some(i) = gone {
            self.groups.remove(i);
        }
        if self.kind == TableKind::Lpm {
            let stale = self.lengths.as_mut().is_some_and(|l| {
                l.removed += 1;
                l.removed > l.notes.len() / 4
            });
            if gone.is_some() || stale {
                self.note_all();
            }
        }
    }

    /// The slot of the entry matched by a key.
    #[inline(always)]
    pub(crate) fn find(&self, key: &[u64]) -> Option<u32> {
        match self.kind {
            TableKind::Exact => self.exact.find(key),
            TableKind::Lpm => self.longest(key),
            TableKind::Ternary | TableKind::Range => self.best(key),
        }
    }

    #[inline(always)]
    fn in_group<'g>(&self, group: &'g Group, key: &[u64]) -> Option<&'g Bucket> {
        let h = hash_masked(key, &group.mask, self.seed);
        group.buckets.find(h, |b| {
            let value = Self::value(&self.values, self.words, b.first);
            value.iter().zip(key.iter().zip(&group.mask)).all(|(v, (k, m))| *v == k & m)
        })
    }

    fn best(&self, key: &[u64]) -> Option<u32> {
        let mut best: Option<(i64, u32)> = None;
        for groups in self.groups.chunks(AT_A_TIME) {
            let mut worth = 0u32;
            for (i, group) in groups.iter().enumerate() {
                let may = match &group.filter {
                    None => true,
                    Some(f) => f.may_hold(hash_masked(key, &group.mask, self.seed)),
                };
                worth |= u32::from(may) << i;
            }
            while worth != 0 {
                let group = &groups[worth.trailing_zeros() as usize];
                worth &= worth - 1;
                if best.is_some_and(|(p, _)| p > group.rank) {
                    return best.map(|(_, s)| s);
                }
                if let Some(bucket) = self.in_group(group, key) {
                    self.better(bucket, key, &mut best);
                }
            }
            // The first of the next groups is the best of those left.
        }
        best.map(|(_, s)| s)
    }

    /// Takes the best slot of a bucket with ranges that contain the key, if it is better than the
    /// previous result.
    #[inline(always)]
    fn better(&self, bucket: &Bucket, key: &[u64], best: &mut Option<(i64, u32)>) {
        let beats = |best: &Option<(i64, u32)>, priority: i64, slot: u32| {
            best.is_none_or(|(p, s)| priority > p || priority == p && slot < s)
        };
        // The slots of a bucket are sorted, best first.
        let priority = i64::from(bucket.priority);
        if !beats(best, priority, bucket.first) {
            return;
        }
        if self.kind == TableKind::Ternary || self.in_ranges(bucket.first, key) {
            *best = Some((priority, bucket.first));
            return;
        }
        for slot in bucket.more() {
            let priority = i64::from(self.priorities[*slot as usize]);
            if !beats(best, priority, *slot) {
                return;
            }
            if self.in_ranges(*slot, key) {
                *best = Some((priority, *slot));
                return;
            }
        }
    }

    fn in_ranges(&self, slot: u32, key: &[u64]) -> bool {
        self.ranges[slot as usize].iter().all(|(field, low, high)| {
            let plan = &self.range_fields[*field as usize];
            if let [(word, shift)] = plan.at[..] {
                let v = key[word as usize] >> shift & crate::bits::ones(plan.width);
                return low[0] <= v && v <= high[0];
            }
            let v: Words = plan.at.iter().map(|(w, s)| key[*w as usize] >> s).collect();
            // The topmost limb first; only that limb can share its word with another field.
            let mut v = v;
            if let Some(top) = v.last_mut() {
                *top &= crate::bits::ones(plan.width - 64 * (plan.at.len() as u32 - 1));
            }
            v.iter().rev().ge(low.iter().rev()) && v.iter().rev().le(high.iter().rev())
        })
    }
}

#[cfg(test)]
mod tests;
