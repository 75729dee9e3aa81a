//! `P4Data` (P4Runtime section 8.5): values of registers and digests with their types from the
//! P4Info. The engine stores only bits; the type defines their grouping and signs.

use std::fmt::Display;

use crate::bytestring;
use crate::error::{Result, invalid};
use crate::proto::p4::config::v1 as config;
use crate::proto::p4::v1::{P4Data, P4Header, P4StructLike, p4_data::Data};
use crate::translation::{Sdn, Snapshot, Types};
use config::p4_bitstring_like_type_spec::TypeSpec as Bits;
use config::p4_data_type_spec::TypeSpec;

/// Deeper nesting is refused: no P4 program needs it, but a hostile P4Info might use it.
const MAX_DEPTH: usize = 16;
/// Fields and structs of one type, on all levels.
const MAX_PARTS: usize = 4096;

/// A type with resolved names.
#[derive(Clone, Debug, PartialEq)]
pub enum DataType {
    /// `bit<W>`
    Unsigned(u32),
    /// `int<W>`
    Signed(u32),
    /// A translated type: its form for controllers, and the bits of the data plane's `bit<W>`, which
    /// only the program has.
    Translated(Sdn, u32),
    /// `bool`
    Bool,
    /// A serializable enum of that many bits.
    EnumValue(u32),
    /// A struct.
    Struct(Vec<DataType>),
    /// A tuple.
    Tuple(Vec<DataType>),
    /// A header, which is always valid when it is reported.
    Header(Vec<DataType>),
}

impl DataType {
    /// Resolves a type declared in a P4Info. `place` starts the message of an error.
    pub fn resolve(
        spec: Option<&config::P4DataTypeSpec>,
        types: &Types<'_>,
        place: &dyn Display,
    ) -> Result<DataType> {
        let mut parts = 0;
        Resolver { types, place, parts: &mut parts }.data(spec, 0)
    }

    /// Takes the widths of translated values from those of the program's values, in order. Returns
    /// false if the program has other values.
    pub fn fit(&mut self, program: &[u32]) -> bool {
        let mut widths = program.iter();
        self.take_widths(&mut widths) && widths.next().is_none()
    }

    fn take_widths<'w>(&mut self, program: &mut impl Iterator<Item = &'w u32>) -> bool {
        match self {
            DataType::Translated(_, width) => {
                *width = program.next().copied().unwrap_or(0);
                *width > 0
            }
            DataType::Struct(m) | DataType::Tuple(m) | DataType::Header(m) => {
                m.iter_mut().all(|t| t.take_widths(program))
            }
            plain => plain.leaves().first() == program.next(),
        }
    }

    /// Forms and widths of the translated values in it.
    pub fn translated(&self) -> Vec<(Sdn, u32)> {
        match self {
            DataType::Translated(sdn, width) => vec![(*sdn, *width)],
            DataType::Struct(m) | DataType::Tuple(m) | DataType::Header(m) => {
                m.iter().flat_map(DataType::translated).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Widths of the plain values in it, in order.
    pub fn leaves(&self) -> Vec<u32> {
        match self {
            DataType::Unsigned(w) | DataType::Signed(w) | DataType::EnumValue(w) => vec![*w],
            DataType::Translated(_, w) => vec![*w],
            DataType::Bool => vec![1],
            DataType::Struct(m) | DataType::Tuple(m) | DataType::Header(m) => {
                m.iter().flat_map(DataType::leaves).collect()
            }
        }
    }

    /// Reads the values of a message, one for each element of [`leaves`](Self::leaves).
    pub fn read(&self, data: Option<&P4Data>, names: &Snapshot, place: &dyn Display) -> Result<Vec<Vec<u8>>> {
        let mut values = Vec::new();
        self.read_into(data, names, place, &mut values)?;
        Ok(values)
    }

    fn read_into(
        &self,
        data: Option<&P4Data>,
        names: &Snapshot,
        place: &dyn Display,
        out: &mut Vec<Vec<u8>>,
    ) -> Result<()> {
        let wrong = || invalid(format!("{place}: the data is not of the type in the P4Info"));
        match (self, data.and_then(|d| d.data.as_ref()).ok_or_else(wrong)?) {
            (DataType::Unsigned(w), Data::Bitstring(b)) | (DataType::EnumValue(w), Data::EnumValue(b)) => {
                out.push(bytestring::unsigned(b, *w, place)?);
            }
            (DataType::Translated(sdn, w), Data::Bitstring(b)) => {
                out.push(names.to_data_plane(*sdn, b, *w, place)?);
            }
            (DataType::Signed(w), Data::Bitstring(b)) => out.push(bytestring::signed(b, *w, place)?),
            (DataType::Bool, Data::Bool(b)) => out.push(vec![u8::from(*b)]),
            (DataType::Struct(types), Data::Struct(P4StructLike { members }))
            | (DataType::Tuple(types), Data::Tuple(P4StructLike { members }))
                if types.len() == members.len() =>
            {
                for (t, m) in types.iter().zip(members) {
                    t.read_into(Some(m), names, place, out)?;
                }
            }
            (DataType::Header(types), Data::Header(P4Header { is_valid: true, bitstrings }))
                if types.len() == bitstrings.len() =>
            {
                for (t, b) in types.iter().zip(bitstrings) {
                    t.read_into(Some(&P4Data { data: Some(Data::Bitstring(b.clone())) }), names, place, out)?;
                }
            }
            _ => return Err(wrong()),
        }
        Ok(())
    }

    /// Builds the message for values in the order of [`leaves`](Self::leaves), each as unsigned
    /// bits of its width.
    pub fn write<'a>(&self, values: &mut impl Iterator<Item = &'a [u8]>, names: &Snapshot) -> P4Data {
        let all =
            |members: &[DataType], values: &mut _| members.iter().map(|m| m.write(values, names)).collect();
        let data = match self {
            DataType::Unsigned(_) | DataType::Translated(..) | DataType::Signed(_) => {
                Data::Bitstring(self.write_bits(values, names))
            }
            DataType::EnumValue(_) => Data::EnumValue(next_canonical(values)),
            DataType::Bool => Data::Bool(values.next().is_some_and(|b| !bytestring::is_zero(b))),
            DataType::Struct(m) => Data::Struct(P4StructLike { members: all(m, values) }),
            DataType::Tuple(m) => Data::Tuple(P4StructLike { members: all(m, values) }),
            DataType::Header(m) => {
                let bitstrings = m.iter().map(|t| t.write_bits(values, names)).collect();
                Data::Header(P4Header { is_valid: true, bitstrings })
            }
        };
        P4Data { data: Some(data) }
    }

    fn write_bits<'a>(&self, values: &mut impl Iterator<Item = &'a [u8]>, names: &Snapshot) -> Vec<u8> {
        match self {
            // Empty if the value has no form of the controller.
            DataType::Translated(sdn, _) => {
                names.to_controller(*sdn, values.next().unwrap_or(&[0])).unwrap_or_default()
            }
            DataType::Signed(w) => bytestring::from_signed_bits(values.next().unwrap_or(&[0]), *w),
            _ => next_canonical(values),
        }
    }
}

fn next_canonical<'a>(values: &mut impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    bytestring::canonical(values.next().unwrap_or(&[0])).to_vec()
}

struct Resolver<'a> {
    types: &'a Types<'a>,
    place: &'a dyn Display,
    parts: &'a mut usize,
}

impl Resolver<'_> {
    fn data(&mut self, spec: Option<&config::P4DataTypeSpec>, depth: usize) -> Result<DataType> {
        let place = self.place;
        self.count()?;
        if depth > MAX_DEPTH {
            return Err(invalid(format!("{place}: types nest deeper than {MAX_DEPTH}, or name themselves")));
        }
        let spec = spec
            .and_then(|s| s.type_spec.as_ref())
            .ok_or_else(|| invalid(format!("{place}: has no type")))?;
        let unknown = |name: &str| invalid(format!("{place}: type {name} is not in type_info"));
        let types = self.types.info;
        match spec {
            TypeSpec::Bitstring(bits) => self.bits(bits),
            TypeSpec::Bool(_) => Ok(DataType::Bool),
            TypeSpec::Tuple(t) => {
                let members: Result<_> = t.members.iter().map(|m| self.data(Some(m), depth + 1)).collect();
                Ok(DataType::Tuple(members?))
            }
            TypeSpec::Struct(named) => {
                let def =
                    types.and_then(|t| t.structs.get(&named.name)).ok_or_else(|| unknown(&named.name))?;
                let members: Result<_> =
                    def.members.iter().map(|m| self.data(m.type_spec.as_ref(), depth + 1)).collect();
                Ok(DataType::Struct(members?))
            }
            TypeSpec::Header(named) => {
                let def =
                    types.and_then(|t| t.headers.get(&named.name)).ok_or_else(|| unknown(&named.name))?;
                let bits = |m: &config::p4_header_type_spec::Member| {
                    let spec = m.type_spec.as_ref();
                    self.bits(spec.ok_or_else(|| invalid(format!("{place}: {} has no type", m.name)))?)
                };
                Ok(DataType::Header(def.members.iter().map(bits).collect::<Result<_>>()?))
            }
            TypeSpec::SerializableEnum(named) => {
                let def = types
                    .and_then(|t| t.serializable_enums.get(&named.name))
                    .ok_or_else(|| unknown(&named.name))?;
                let width = def.underlying_type.as_ref().map_or(0, |t| t.bitwidth);
                Ok(DataType::EnumValue(self.width(width)?))
            }
            TypeSpec::NewType(named) => {
                use config::p4_new_type_spec::Representation;
                let def =
                    types.and_then(|t| t.new_types.get(&named.name)).ok_or_else(|| unknown(&named.name))?;
                match def.representation.as_ref() {
                    Some(Representation::OriginalType(t)) => self.data(Some(t), depth + 1),
                    Some(Representation::TranslatedType(_)) => {
                        let sdn = self.types.form(&named.name, def, place)?;
                        sdn.map(|sdn| DataType::Translated(sdn, 0)).ok_or_else(|| unknown(&named.name))
                    }
                    None => Err(invalid(format!("{place}: {} has no representation", named.name))),
                }
            }
            TypeSpec::HeaderUnion(_)
            | TypeSpec::HeaderStack(_)
            | TypeSpec::HeaderUnionStack(_)
            | TypeSpec::Enum(_)
            | TypeSpec::Error(_) => {
                Err(invalid(format!("{place}: v1model does not carry values of this type")))
            }
        }
    }

    fn bits(&mut self, bits: &config::P4BitstringLikeTypeSpec) -> Result<DataType> {
        match bits.type_spec.as_ref() {
            Some(Bits::Bit(t)) => Ok(DataType::Unsigned(self.width(t.bitwidth)?)),
            Some(Bits::Int(t)) => Ok(DataType::Signed(self.width(t.bitwidth)?)),
            Some(Bits::Varbit(_)) => Err(invalid(format!("{}: varbit is not served here", self.place))),
            None => Err(invalid(format!("{}: has no type", self.place))),
        }
    }

    fn width(&mut self, width: i32) -> Result<u32> {
        self.count()?;
        u32::try_from(width)
            .ok()
            .filter(|w| (1..=65_536).contains(w))
            .ok_or_else(|| invalid(format!("{}: a width of {width} bits", self.place)))
    }

    fn count(&mut self) -> Result<()> {
        *self.parts += 1;
        if *self.parts > MAX_PARTS {
            return Err(invalid(format!("{}: more than {MAX_PARTS} fields", self.place)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bit(bitwidth: i32) -> config::P4DataTypeSpec {
        let spec = Bits::Bit(config::P4BitTypeSpec { bitwidth });
        let bits = config::P4BitstringLikeTypeSpec { type_spec: Some(spec), ..Default::default() };
        config::P4DataTypeSpec { type_spec: Some(TypeSpec::Bitstring(bits)) }
    }

    fn named(name: &str) -> config::P4DataTypeSpec {
        config::P4DataTypeSpec {
            type_spec: Some(TypeSpec::Struct(config::P4NamedType { name: name.into() })),
        }
    }

    fn structs(list: &[(&str, Vec<config::P4DataTypeSpec>)]) -> config::P4TypeInfo {
        let member = |t: &config::P4DataTypeSpec| config::p4_struct_type_spec::Member {
            name: "m".into(),
            type_spec: Some(t.clone()),
        };
        let def = |m: &[config::P4DataTypeSpec]| config::P4StructTypeSpec {
            members: m.iter().map(member).collect(),
            ..Default::default()
        };
        config::P4TypeInfo {
            structs: list.iter().map(|(n, m)| ((*n).to_owned(), def(m))).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn nested_structs_flatten_and_come_back() {
        let types = structs(&[("inner", vec![bit(9), bit(48)]), ("outer", vec![bit(8), named("inner")])]);
        let t = DataType::resolve(Some(&named("outer")), &Types::new(Some(&types)), &"x").unwrap();
        assert_eq!(t.leaves(), [8, 9, 48]);
        let values = [vec![0], vec![1, 2], vec![0, 0, 7]];
        let data = t.write(&mut values.iter().map(Vec::as_slice), &Snapshot::default());
        assert_eq!(t.read(Some(&data), &Snapshot::default(), &"x").unwrap(), [vec![0], vec![1, 2], vec![7]]);
        assert_eq!(
            DataType::Bool.read(Some(&data), &Snapshot::default(), &"x").unwrap_err().code,
            tonic::Code::InvalidArgument
        );
    }

    #[test]
    fn a_type_that_contains_itself_is_refused() {
        let types = structs(&[("loop", vec![named("loop"), named("loop")])]);
        assert!(DataType::resolve(Some(&named("loop")), &Types::new(Some(&types)), &"x").is_err());
    }

    #[test]
    fn values_too_wide_are_out_of_range() {
        let t = DataType::Unsigned(9);
        let wide = P4Data { data: Some(Data::Bitstring(vec![2, 0])) };
        assert_eq!(
            t.read(Some(&wide), &Snapshot::default(), &"x").unwrap_err().code,
            tonic::Code::OutOfRange
        );
    }
}
