//! `@p4runtime_translation` (P4Runtime sections 8.4.6 and 18.1): a value of a translated type has
//! one form for controllers and another in the data plane. Numbers keep their value in another
//! width; strings stand for values that the switch chooses ([`names`]).
//!
//! Messages are translated as a whole where they enter and leave ([`entities`]); everything behind
//! sees the data plane's values only.

mod entities;
mod mappings;
mod matches;
mod names;

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Arc;

use crate::bytestring;
use crate::error::{Result, invalid, not_found};
use crate::proto::p4::config::v1 as config;
use config::p4_new_type_spec::Representation;
use config::p4_new_type_translation::SdnType;
pub use names::{NameTable, Names};

/// Widest number that a controller may exchange, in bits.
const MAX_WIDTH: u32 = 2048;

/// The controller's form of a translated type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sdn {
    /// A number of this many bits, equal to the data plane's number.
    Number(u32),
    /// A string, of the type at this position in [`Index::name_types`](crate::index::Index).
    Name(usize),
}

/// A type that is translated to strings.
#[derive(Clone, Debug, PartialEq)]
pub struct NameType {
    /// Its URI, or its name without one: types with one URI have one translation.
    pub name: String,
    /// Bits of the data plane's type; 0 until something uses it.
    pub bits: u32,
    /// Strings with the values that the program gives them.
    pub mappings: Vec<(String, u64)>,
    /// Whether packet metadata or digests carry it.
    pub in_messages: bool,
}

/// The types that a P4Info declares, and the string types found so far.
pub struct Types<'a> {
    /// As in the P4Info.
    pub info: Option<&'a config::P4TypeInfo>,
    found: RefCell<Vec<NameType>>,
}

impl<'a> Types<'a> {
    /// The types of a P4Info.
    pub fn new(info: Option<&'a config::P4TypeInfo>) -> Types<'a> {
        Types { info, found: RefCell::default() }
    }

    /// The controller's form of a field or parameter with this type name and width in bits; `None`
    /// if its type is not translated.
    ///
    /// # Errors
    /// INVALID_ARGUMENT, starting with `place`, for translations that this server does not know and
    /// for widths that contradict the type.
    pub fn translated(
        &self,
        name: Option<&config::P4NamedType>,
        bitwidth: i32,
        place: &dyn Display,
    ) -> Result<Option<Sdn>> {
        let Some(name) = name else { return Ok(None) };
        let Some(spec) = self.info.and_then(|i| i.new_types.get(&name.name)) else { return Ok(None) };
        let Some(Representation::TranslatedType(_)) = &spec.representation else { return Ok(None) };
        let Some(sdn) = self.form(&name.name, spec, place)? else { return Ok(None) };
        let declared = match sdn {
            Sdn::Number(width) => width,
            Sdn::Name(_) => 0,
        };
        if u32::try_from(bitwidth) != Ok(declared) {
            let bits = format!("{bitwidth} bits in the P4Info, its translated type {declared}");
            return Err(invalid(format!("{place} has {bits}")));
        }
        Ok(Some(sdn))
    }

    /// The controller's form of a value that has `program` bits in the program, if it is translated;
    /// otherwise the P4Info must have the same width.
    ///
    /// # Errors
    /// As [`translated`](Self::translated), and if the widths differ.
    pub fn form_of(
        &self,
        name: Option<&config::P4NamedType>,
        bitwidth: i32,
        program: u32,
        place: &str,
    ) -> Result<Option<Sdn>> {
        let sdn = self.translated(name, bitwidth, &place)?;
        match sdn {
            Some(sdn) => self.note_width(sdn, program, false),
            None if u32::try_from(bitwidth) != Ok(program) => {
                let bits = format!("{bitwidth} bits in the P4Info, {program} in the program");
                return Err(invalid(format!("{place} has {bits}")));
            }
            None => {}
        }
        Ok(sdn)
    }

    /// The controller's form of a declared type; `None` if it is not translated.
    pub fn form(&self, name: &str, spec: &config::P4NewTypeSpec, place: &dyn Display) -> Result<Option<Sdn>> {
        let Some(Representation::TranslatedType(t)) = &spec.representation else { return Ok(None) };
        match t.sdn_type {
            Some(SdnType::SdnBitwidth(width)) => {
                let number = u32::try_from(width).ok().filter(|w| (1..=MAX_WIDTH).contains(w));
                let number = number.map(|w| Some(Sdn::Number(w)));
                number.ok_or_else(|| invalid(format!("{place} is translated to {width} bits")))
            }
            Some(SdnType::SdnString(_)) => {
                let key = if t.uri.is_empty() { name } else { &t.uri };
                let mappings = mappings::parse(&spec.annotations, name)?;
                let mut found = self.found.borrow_mut();
                let at = found.iter().position(|f| f.name == key).unwrap_or(found.len());
                if at == found.len() {
                    let name = key.to_owned();
                    found.push(NameType { name, bits: 0, mappings, in_messages: false });
                } else if found[at].mappings != mappings {
                    return Err(invalid(format!("types with the URI {key} have different mappings")));
                }
                Ok(Some(Sdn::Name(at)))
            }
            None => Err(invalid(format!("{place}: {name} is translated to nothing"))),
        }
    }

    /// Notes that the program has `width` bits for values of this form.
    pub fn note_width(&self, sdn: Sdn, width: u32, in_message: bool) {
        if let Sdn::Name(at) = sdn {
            let known = &mut self.found.borrow_mut()[at];
            known.bits = if known.bits == 0 { width } else { known.bits.min(width) };
            known.in_messages |= in_message;
        }
    }

    /// The string types found.
    pub fn into_found(self) -> Vec<NameType> {
        self.found.into_inner()
    }
}

/// The strings in use of every string type, for translation without giving out values.
#[derive(Clone, Debug, Default)]
pub struct Snapshot(pub Vec<Arc<Names>>);

impl Snapshot {
    /// Whether both are the same state of the same tables.
    pub fn is_same(&self, other: &Snapshot) -> bool {
        self.0.len() == other.0.len() && self.0.iter().zip(&other.0).all(|(a, b)| Arc::ptr_eq(a, b))
    }

    /// The data plane's value of `width` bits for a controller's, canonical.
    ///
    /// # Errors
    /// OUT_OF_RANGE for a number that one of the two forms lacks, NOT_FOUND for a string without a
    /// value.
    pub fn to_data_plane(&self, sdn: Sdn, value: &[u8], width: u32, place: &dyn Display) -> Result<Vec<u8>> {
        match sdn {
            Sdn::Number(sdn_width) => number(value, sdn_width, width, place),
            Sdn::Name(at) => {
                let name = text(value, place)?;
                let value = self.0.get(at).and_then(|names| names.value(name));
                let value = value.ok_or_else(|| not_found(format!("{place}: nothing uses {name:?}")))?;
                Ok(bytestring::canonical(&value.to_be_bytes()).to_vec())
            }
        }
    }

    /// The controller's form of a value; `None` if it has none.
    pub fn to_controller(&self, sdn: Sdn, value: &[u8]) -> Option<Vec<u8>> {
        match sdn {
            Sdn::Number(width) => (bytestring::bit_length(value) <= width as usize)
                .then(|| bytestring::canonical(value).to_vec()),
            Sdn::Name(at) => self.0.get(at)?.name(to_u64(value)?).map(String::into_bytes),
        }
    }
}

/// A controller's number of `sdn` bits as the data plane's of `width` bits, canonical.
///
/// # Errors
/// OUT_OF_RANGE if it does not fit into one of them.
fn number(value: &[u8], sdn: u32, width: u32, place: &dyn Display) -> Result<Vec<u8>> {
    bytestring::unsigned(value, sdn, place)?;
    bytestring::unsigned(value, width, &format_args!("{place}: data plane"))
}

/// A controller's string.
fn text<'v>(value: &'v [u8], place: &dyn Display) -> Result<&'v str> {
    std::str::from_utf8(value).map_err(|_| invalid(format!("{place}: the string is not UTF-8")))
}

/// The value as a number, if it fits in 64 bits.
fn to_u64(value: &[u8]) -> Option<u64> {
    let fold = |n: u64, b: &u8| n << 8 | u64::from(*b);
    (bytestring::bit_length(value) <= 64).then(|| bytestring::canonical(value).iter().fold(0, fold))
}

/// The string tables of a configuration, as [`Index::name_types`](crate::index::Index) lists them.
#[derive(Clone, Debug, Default)]
pub struct NameTables(pub Vec<NameTable>);

impl NameTables {
    /// Tables without uses.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for contradicting mappings.
    pub fn new(types: &[NameType]) -> Result<NameTables> {
        let table = |t: &NameType| NameTable::new(&t.name, t.bits, &t.mappings);
        Ok(NameTables(types.iter().map(table).collect::<Result<_>>()?))
    }

    /// The strings in use.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.0.iter().map(|t| t.names().clone()).collect())
    }

    /// Takes over the values of types with the same name.
    pub fn adopt(&mut self, types: &[NameType], other: &NameTables, other_types: &[NameType]) {
        let others: HashMap<&str, &NameTable> =
            other_types.iter().map(|t| t.name.as_str()).zip(&other.0).collect();
        for (table, t) in self.0.iter_mut().zip(types) {
            if let Some(other) = others.get(t.name.as_str()) {
                table.adopt(other);
            }
        }
    }

    /// Takes back all values that nothing uses.
    pub fn sweep(&mut self) {
        self.0.iter_mut().for_each(NameTable::sweep);
    }
}
