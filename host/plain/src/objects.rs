//! The objects that are served without state: an immutable table, so that every replica with it
//! sends the same bytes.

use core::cmp::Ordering;

use crate::head::Name;
use crate::large::MAX_LARGE_OBJECTS;
use rivulet_packet::nonce::half_sip_hash_32;

/// Limit on a media type, bytes.
const MAX_KIND: usize = 100;
/// Objects longer than this may need a large answer, so they are numbered.
const LARGE: usize = 12_000;
/// Not a secret: versions distinguish tables and prove nothing.
const VERSION_KEY: [u8; 8] = *b"rivulet\0";

/// A content with its identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its media type, for `Content-Type`.
    pub kind: Box<str>,
    /// A hash of the content, used as the entity tag.
    pub hash: [u8; 16],
    /// The content.
    pub body: Box<[u8]>,
}

/// An entry of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// An object that is served without state.
    Object(Object),
    /// A folder: a request with a final slash is served.
    Folder,
    /// Something that the kernel's TCP serves.
    Kernel,
}

/// Why a table cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Two entries have the same name.
    #[error("a name stands twice")]
    Twice,
    /// A name is longer than [`Name`] allows, or a media type does not fit into a header.
    #[error("a name or a media type that does not fit into a header")]
    Long,
}

/// Entries by name, in the order of their names.
#[derive(Clone, Debug)]
pub struct Table {
    entries: Box<[(Box<[u8]>, Entry)]>,
    unknown: bool,
    version: u32,
    /// Entries of the first objects that are too long for a small answer; their index here is their
    /// number.
    large: Box<[u32]>,
}

/// Result of looking up a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// This entry is an object.
    Object(u32),
    /// This entry is a folder.
    Folder(u32),
    /// The kernel's TCP serves the name.
    Kernel,
    /// No entry has this name.
    Missing,
}

impl Table {
    /// Makes a table. With `unknown` the kernel's TCP serves names that are not in the table; otherwise they do not exist.
    ///
    /// # Errors
    /// [`TableError`].
    pub fn new(entries: Vec<(Box<str>, Entry)>, unknown: bool) -> Result<Table, TableError> {
        let entries = entries.into_iter().map(|(name, entry)| (name.into_boxed_bytes(), entry));
        Table::with_names(entries.collect(), unknown)
    }

    /// Like [`new`](Self::new), with names that may be invalid UTF-8.
    ///
    /// # Errors
    /// [`TableError`].
    pub fn with_names(mut entries: Vec<(Box<[u8]>, Entry)>, unknown: bool) -> Result<Table, TableError> {
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        if entries.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err(TableError::Twice);
        }
        let fits = |(name, entry): &(Box<[u8]>, Entry)| {
            name.len() <= Name::new_const().capacity()
                && match entry {
                    Entry::Object(o) => {
                        o.kind.len() <= MAX_KIND && o.kind.bytes().all(|b| (b' '..0x7f).contains(&b))
                    }
                    _ => true,
                }
        };
        if entries.len() > u32::MAX as usize || !entries.iter().all(fits) {
            return Err(TableError::Long);
        }
        let mut version = u32::from(unknown);
        for (name, entry) in &entries {
            let mut text = version.to_be_bytes().to_vec();
            text.extend_from_slice(name);
            match entry {
                Entry::Object(object) => {
                    text.push(0);
                    text.extend_from_slice(&object.hash);
                    text.extend_from_slice(object.kind.as_bytes());
                }
                Entry::Folder => text.push(1),
                Entry::Kernel => text.push(2),
            }
            version = half_sip_hash_32(VERSION_KEY, &text);
        }
        // 0 means "no object" in timestamps.
        let long =
            |(_, entry): &&(Box<[u8]>, Entry)| matches!(entry, Entry::Object(o) if o.body.len() > LARGE);
        let long = entries.iter().enumerate().filter(|(_, e)| long(e)).map(|(n, _)| n as u32);
        let large = long.take(MAX_LARGE_OBJECTS).collect();
        Ok(Table { entries: entries.into(), unknown, version: version.max(1), large })
    }

    /// The entry of the large object with this number.
    pub(crate) fn large(&self, number: u16) -> Option<u32> {
        self.large.get(usize::from(number)).copied()
    }

    /// The number of a large object's entry.
    pub(crate) fn large_number(&self, entry: u32) -> Option<u16> {
        self.large.binary_search(&entry).ok().map(|n| n as u16)
    }

    /// A number that is equal for equal tables and never 0. Two different tables share it with a
    /// probability of 2^-32, and its lowest two bits with 1/4.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Looks up a name (without a leading slash). The kernel's TCP serves all names below a name that it serves itself, such as
    /// a linked folder or one that cannot be read.
    #[must_use]
    pub fn find(&self, name: &[u8]) -> Found {
        let at = |name: &[u8]| self.entries.binary_search_by(|entry| -> Ordering { entry.0[..].cmp(name) });
        let is_kernels = |above: &[u8]| at(above).is_ok_and(|n| matches!(self.entries[n].1, Entry::Kernel));
        match at(name) {
            Ok(n) => match self.entries[n].1 {
                Entry::Object(_) => Found::Object(n as u32),
                Entry::Folder => Found::Folder(n as u32),
                Entry::Kernel => Found::Kernel,
            },
            Err(_) if self.unknown => Found::Kernel,
            Err(_) if folders(name).any(is_kernels) => Found::Kernel,
            Err(_) => Found::Missing,
        }
    }

    /// The object of an entry.
    #[must_use]
    pub fn object(&self, number: u32) -> Option<&Object> {
        match &self.entries.get(number as usize)?.1 {
            Entry::Object(object) => Some(object),
            _ => None,
        }
    }

    /// The name of an entry.
    #[must_use]
    pub fn name(&self, number: u32) -> Option<&[u8]> {
        Some(&self.entries.get(number as usize)?.0)
    }
}

/// The parent folders of a name.
fn folders(name: &[u8]) -> impl Iterator<Item = &[u8]> {
    name.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(n, _)| &name[..n])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::MAX_NAME;

    fn object(hash: u8) -> Entry {
        Entry::Object(Object { kind: "text/plain".into(), hash: [hash; 16], body: vec![hash; 9].into() })
    }

    #[test]
    fn names_lead_to_entries_in_any_order() {
        let entries = [("b", object(1)), ("a/c", object(2)), ("a", Entry::Folder), ("big", Entry::Kernel)];
        let table = |order: [usize; 4], unknown| {
            let entries = order.map(|n| (entries[n].0.into(), entries[n].1.clone()));
            Table::new(entries.into(), unknown).unwrap()
        };
        let (one, other) = (table([0, 1, 2, 3], false), table([3, 1, 0, 2], false));
        assert_eq!(one.version(), other.version());
        assert_ne!(one.version(), table([0, 1, 2, 3], true).version());
        let Found::Object(n) = one.find(b"a/c") else { panic!("not found") };
        assert_eq!((one.object(n).unwrap().hash, one.name(n)), ([2; 16], Some(&b"a/c"[..])));
        assert!(matches!(one.find(b"a"), Found::Folder(n) if one.object(n).is_none()));
        assert_eq!((one.find(b"big"), one.find(b"bi")), (Found::Kernel, Found::Missing));
        assert_eq!(table([0, 1, 2, 3], true).find(b"bi"), Found::Kernel);
        assert!(one.object(99).is_none() && one.name(99).is_none());
        assert_eq!((one.find(b"big/x/y"), one.find(b"a/big/x")), (Found::Kernel, Found::Missing));
    }

    #[test]
    fn unrepresentable_objects_are_refused() {
        let twice = vec![("a".into(), object(1)), ("a".into(), object(2))];
        assert_eq!(Table::new(twice, false).unwrap_err(), TableError::Twice);
        let long = vec![("a".repeat(MAX_NAME + 20).into(), object(1))];
        assert_eq!(Table::new(long, false).unwrap_err(), TableError::Long);
        let Entry::Object(o) = object(1) else { panic!() };
        let split = Entry::Object(Object { kind: "text/plain\r\nX: y".into(), ..o });
        assert_eq!(Table::new(vec![("a".into(), split)], false).unwrap_err(), TableError::Long);
    }
}
