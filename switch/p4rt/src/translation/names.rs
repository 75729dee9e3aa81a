//! The strings of one translated type and the data plane's values for them.
//!
//! A string has a value while something in the switch uses it. The rules:
//! * a string of `@p4runtime_translation_mappings` has its value for ever;
//! * a decimal number such as `12` has its own value, unless another string has it;
//! * every other string gets the lowest free value, but never 0, which is also the value of
//!   metadata that nothing has set.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::error::{Result, exhausted, invalid};

/// Longest string in bytes.
pub const MAX_NAME_BYTES: usize = 1024;
/// Most strings of one type; the sizes of tables usually keep them far below.
const MAX_NAMES: usize = 1 << 20;

/// The strings in use, in both directions.
#[derive(Clone, Debug, Default)]
pub struct Names {
    by_name: HashMap<Arc<str>, u64>,
    by_value: HashMap<u64, Arc<str>>,
    highest: u64,
}

impl Names {
    /// The value of a string: given out before, or a decimal number that means itself.
    pub fn value(&self, name: &str) -> Option<u64> {
        self.by_name.get(name).copied().or_else(|| self.own_value(name))
    }

    /// The string for a value; a value without a string is written as a decimal number, unless that
    /// number is the string of another value.
    pub fn name(&self, value: u64) -> Option<String> {
        if let Some(name) = self.by_value.get(&value) {
            return Some(name.to_string());
        }
        let decimal = value.to_string();
        (!self.by_name.contains_key(decimal.as_str())).then_some(decimal)
    }

    /// The value of a decimal number, if no other string has it.
    fn own_value(&self, name: &str) -> Option<u64> {
        let is_number = name.bytes().all(|b| b.is_ascii_digit()) && (name == "0" || !name.starts_with('0'));
        let value = name.parse().ok().filter(|v| is_number && *v <= self.highest)?;
        (!self.by_value.contains_key(&value)).then_some(value)
    }

    fn insert(&mut self, name: &str, value: u64) {
        let name: Arc<str> = name.into();
        self.by_name.insert(name.clone(), value);
        self.by_value.insert(value, name);
    }
}

/// Gives values to strings and takes them back.
#[derive(Clone, Debug)]
pub struct NameTable {
    type_name: String,
    bits: u32,
    names: Arc<Names>,
    fixed: HashSet<u64>,
    /// Uses of each value, also of values without a string, as in const entries.
    uses: HashMap<u64, u64>,
    /// Values below `next` that were given back.
    freed: BTreeSet<u64>,
    next: u64,
    /// Values that may be without uses.
    idle: Vec<u64>,
}

impl NameTable {
    /// A type of `bits` bits with its mappings, which must not contradict each other.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for a mapping that does not fit, or a string or value that has two.
    pub fn new(type_name: &str, bits: u32, mappings: &[(String, u64)]) -> Result<NameTable> {
        let highest = 1u64.checked_shl(bits).map_or(u64::MAX >> 1, |n| n - 1).min(u64::MAX >> 1);
        let mut names = Names { highest, ..Names::default() };
        for (name, value) in mappings {
            let wrong = |what: &str| invalid(format!("type {type_name}: the mapping of {name:?} {what}"));
            if *value > highest {
                return Err(wrong(&format!("to {value} does not fit {bits} bits")));
            }
            if names.by_name.contains_key(name.as_str()) || names.by_value.contains_key(value) {
                return Err(wrong(&format!("to {value}: the string or the value has another mapping")));
            }
            names.insert(name, *value);
        }
        let fixed = names.by_value.keys().copied().collect();
        Ok(NameTable {
            type_name: type_name.to_owned(),
            bits,
            names: Arc::new(names),
            fixed,
            uses: HashMap::new(),
            freed: BTreeSet::new(),
            next: 1,
            idle: Vec::new(),
        })
    }

    /// The strings in use.
    pub fn names(&self) -> &Arc<Names> {
        &self.names
    }

    /// The value of a string, which may get one now. It loses it at the next [`sweep`](Self::sweep)
    /// unless [`retain`](Self::retain) is called before.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for an empty or too long string, RESOURCE_EXHAUSTED without a free value.
    pub fn assign(&mut self, name: &str) -> Result<u64> {
        if let Some(value) = self.names.by_name.get(name) {
            return Ok(*value);
        }
        if name.is_empty() {
            return Err(invalid(format!("the empty string has no value of type {}", self.type_name)));
        }
        if name.len() > MAX_NAME_BYTES {
            return Err(invalid(format!("a string of {} bytes, at most {MAX_NAME_BYTES}", name.len())));
        }
        let value = match self.names.own_value(name) {
            Some(value) if self.names.by_name.len() < MAX_NAMES => value,
            _ => self.free_value()?,
        };
        Arc::make_mut(&mut self.names).insert(name, value);
        self.idle.push(value);
        Ok(value)
    }

    /// Gives a string the value that it had in another pipeline, if both are free.
    pub fn adopt(&mut self, other: &NameTable) {
        for (name, value) in &other.names.by_name {
            let free = *value <= self.names.highest && !self.is_taken(*value);
            if free && !self.names.by_name.contains_key(name) && self.names.by_name.len() < MAX_NAMES {
                Arc::make_mut(&mut self.names).insert(name, *value);
                self.idle.push(*value);
            }
        }
    }

    /// Counts a use of a value.
    pub fn retain(&mut self, value: u64) {
        *self.uses.entry(value).or_default() += 1;
    }

    /// Ends a use of a value.
    pub fn release(&mut self, value: u64) {
        if let Some(uses) = self.uses.get_mut(&value) {
            *uses -= 1;
            if *uses == 0 {
                self.uses.remove(&value);
                self.idle.push(value);
            }
        }
    }

    /// Takes values back that nothing uses.
    pub fn sweep(&mut self) {
        for value in std::mem::take(&mut self.idle) {
            if self.uses.contains_key(&value) || self.fixed.contains(&value) {
                continue;
            }
            if self.names.by_value.contains_key(&value) {
                let names = Arc::make_mut(&mut self.names);
                if let Some(name) = names.by_value.remove(&value) {
                    names.by_name.remove(&name);
                }
            }
            if (1..self.next).contains(&value) {
                self.freed.insert(value);
            }
        }
    }

    fn is_taken(&self, value: u64) -> bool {
        self.names.by_value.contains_key(&value) || self.uses.contains_key(&value)
    }

    fn free_value(&mut self) -> Result<u64> {
        if self.names.by_name.len() < MAX_NAMES {
            while let Some(value) = self.freed.pop_first() {
                if !self.is_taken(value) {
                    return Ok(value);
                }
            }
            while self.next <= self.names.highest {
                self.next += 1;
                if !self.is_taken(self.next - 1) {
                    return Ok(self.next - 1);
                }
            }
        }
        let (bits, in_use) = (self.bits, self.names.by_name.len());
        Err(exhausted(format!("type {} of {bits} bits: {in_use} strings are in use", self.type_name)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn table(bits: u32) -> NameTable {
        NameTable::new("t", bits, &[(String::new(), 0), ("five".into(), 5)]).unwrap()
    }

    #[test]
    fn values_are_assigned_and_reused() {
        let mut t = table(3);
        let values: Vec<u64> = ["a", "6", "b", "five", ""].iter().map(|n| t.assign(n).unwrap()).collect();
        assert_eq!(values, [1, 6, 2, 5, 0]);
        t.retain(1);
        t.sweep();
        assert_eq!(
            (t.names().value("a"), t.names().value("b"), t.names().value("five")),
            (Some(1), None, Some(5))
        );
        assert_eq!(t.assign("c").unwrap(), 2, "the lowest free value");
        t.release(1);
        t.sweep();
        assert_eq!(t.assign("d").unwrap(), 1);
    }

    #[test]
    fn type_with_few_bits_runs_out_of_values() {
        let mut t = table(2_u32.next_power_of_two() + 1);
        let given = (0..100).filter(|i| t.assign(&format!("s{i}")).is_ok()).count();
        assert_eq!(given, 6, "eight values without those of the mappings");
        let error = t.assign("more").unwrap_err();
        assert_eq!(error.code, tonic::Code::ResourceExhausted);
        t.sweep();
        assert!(t.assign("more").is_ok());
    }

    #[test]
    fn values_of_const_entries_are_not_assigned() {
        let mut t = table(3);
        t.retain(1);
        assert_eq!(t.assign("a").unwrap(), 2);
        assert_eq!(t.names().name(1).as_deref(), Some("1"));
        assert_eq!(t.assign("1").unwrap(), 1, "the number means the const entry's value");
    }

    #[test]
    fn name_gets_another_number_if_its_own_is_taken() {
        let mut t = table(3);
        t.retain(t.clone().assign("a").unwrap());
        t.release(1);
        assert_eq!(t.assign("a").unwrap(), 1);
        assert_eq!(t.assign("1").unwrap(), 2);
        t.retain(2);
        t.sweep();
        assert_eq!((t.names().name(2).as_deref(), t.names().name(1)), (Some("1"), None), "1 has no string");
    }

    #[test]
    fn bad_strings_and_mappings_are_refused() {
        let mut plain = NameTable::new("t", 4, &[]).unwrap();
        assert!(plain.assign("").is_err());
        assert!(plain.assign(&"x".repeat(MAX_NAME_BYTES + 1)).is_err());
        for wrong in [vec![("a", 16)], vec![("a", 1), ("b", 1)], vec![("a", 1), ("a", 2)]] {
            let wrong: Vec<_> = wrong.iter().map(|(n, v)| ((*n).to_owned(), *v)).collect();
            assert!(NameTable::new("t", 4, &wrong).is_err(), "{wrong:?}");
        }
        for bits in [1, 63, 64, 65, 2048] {
            assert_eq!(NameTable::new("t", bits, &[]).unwrap().assign("a").unwrap(), 1, "{bits} bits");
        }
    }

    proptest! {
        /// Against a list of uses: a string keeps its value while it is used, no two strings share
        /// one, and a string without uses can be given out again.
        #[test]
        fn strings_in_use_keep_their_values(
            steps in proptest::collection::vec((0..3u8, 0..14usize), 0..200), bits in 2..5u32
        ) {
            let all = ["", "five", "0", "1", "2", "5", "15", "16", "01", "a", "b", "c", "d", "e"];
            let mut t = NameTable::new("t", bits, &[(String::new(), 0), ("five".into(), 3)]).unwrap();
            let mut model: BTreeMap<&str, (u64, u32)> = BTreeMap::new();
            for (step, at) in steps {
                let name = all[at];
                match step {
                    0 => if let Ok(value) = t.assign(name) {
                        t.retain(value);
                        let known = model.entry(name).or_insert((value, 0));
                        prop_assert_eq!(known.0, value);
                        known.1 += 1;
                    } else {
                        let values: HashSet<u64> = model.values().map(|m| m.0).chain([0, 3]).collect();
                        // All values but 0 are taken: by uses or by a string of this step.
                        prop_assert!(values.len() as u64 + 1 >= 1 << bits);
                    },
                    1 => if let Some(known) = model.get_mut(name) {
                        t.release(known.0);
                        known.1 -= 1;
                        if known.1 == 0 {
                            model.remove(name);
                        }
                    },
                    _ => {
                        let _ = t.assign(name);
                    }
                }
                t.sweep();
                let mut seen = HashSet::new();
                for (name, (value, _)) in &model {
                    prop_assert!(seen.insert(*value));
                    prop_assert_eq!(t.names().value(name), Some(*value));
                    prop_assert_eq!(t.names().name(*value), Some((*name).to_owned()));
                }
                prop_assert!(t.names.by_name.len() <= model.len() + 2);
                prop_assert!(t.freed.len() <= 1 << bits);
            }
        }
    }
}
