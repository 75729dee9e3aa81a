//! Converts match keys between messages and the engine (P4Runtime section 9.1.1).

use std::fmt::Display;

use rivulet_engine::KeyMatch;

use crate::bytestring::{self, all_ones, is_zero, padded, prefix_mask, unsigned, within_mask};
use crate::error::{Result, invalid};
use crate::index::Field;
use crate::proto::p4::config::v1::match_field::MatchType;
use crate::proto::p4::v1::FieldMatch;
use crate::proto::p4::v1::field_match::{Exact, FieldMatchType, Lpm, Optional, Range, Ternary};

/// Reads a whole key: every field at most once, and every exact field.
pub fn read(fields: &[Field], matches: &[FieldMatch], place: &dyn Display) -> Result<Vec<KeyMatch>> {
    let mut key: Vec<Option<KeyMatch>> = vec![None; fields.len()];
    for m in matches {
        let at = fields
            .iter()
            .position(|f| f.id == m.field_id)
            .ok_or_else(|| invalid(format!("{place} has no key field with id {}", m.field_id)))?;
        let read = read_field(&fields[at], m, &format_args!("{place}: key {}", fields[at].name))?;
        if key[at].replace(read).is_some() {
            return Err(invalid(format!("{place}: key {} is there twice", fields[at].name)));
        }
    }
    fields
        .iter()
        .zip(key)
        .map(|(field, read)| match read {
            Some(read) => Ok(read),
            None if field.kind == MatchType::Exact => {
                Err(invalid(format!("{place}: exact key {} is missing", field.name)))
            }
            None => Ok(KeyMatch::Any),
        })
        .collect()
}

fn read_field(field: &Field, m: &FieldMatch, place: &dyn Display) -> Result<KeyMatch> {
    let width = field.width;
    let omit = || invalid(format!("{place}: matches anything and must be left out"));
    match (field.kind, m.field_match_type.as_ref()) {
        (MatchType::Exact, Some(FieldMatchType::Exact(Exact { value })))
        | (MatchType::Optional, Some(FieldMatchType::Optional(Optional { value }))) => {
            Ok(KeyMatch::Exact(unsigned(value, width, place)?))
        }
        (MatchType::Lpm, Some(FieldMatchType::Lpm(Lpm { value, prefix_len }))) => {
            let value = unsigned(value, width, place)?;
            let prefix_len = u32::try_from(*prefix_len)
                .ok()
                .filter(|n| *n <= width)
                .ok_or_else(|| invalid(format!("{place}: a prefix of {prefix_len} of {width} bits")))?;
            if prefix_len == 0 {
                return Err(omit());
            }
            if !within_mask(&value, &prefix_mask(prefix_len, width)) {
                return Err(invalid(format!("{place}: bits below the prefix are set")));
            }
            Ok(KeyMatch::Lpm { value, prefix_len })
        }
        (MatchType::Ternary, Some(FieldMatchType::Ternary(Ternary { value, mask }))) => {
            let (value, mask) = (unsigned(value, width, place)?, unsigned(mask, width, place)?);
            if is_zero(&mask) {
                return Err(omit());
            }
            if !within_mask(&value, &mask) {
                return Err(invalid(format!("{place}: bits outside the mask are set")));
            }
            Ok(KeyMatch::Ternary { value, mask })
        }
        (MatchType::Range, Some(FieldMatchType::Range(Range { low, high }))) => {
            let (low, high) = (unsigned(low, width, place)?, unsigned(high, width, place)?);
            if padded(&low, width) > padded(&high, width) {
                return Err(invalid(format!("{place}: low is above high")));
            }
            if is_zero(&low) && high == all_ones(width) {
                return Err(omit());
            }
            Ok(KeyMatch::Range { low, high })
        }
        (_, None) => Err(invalid(format!("{place}: has no match"))),
        (kind, Some(_)) => Err(invalid(format!("{place}: is a {} field", kind.as_str_name()))),
    }
}

/// Builds the messages for a key of the engine, without wildcard fields.
pub fn write(fields: &[Field], key: &[KeyMatch]) -> Vec<FieldMatch> {
    fields.iter().zip(key).filter_map(|(f, k)| write_field(f, k)).collect()
}

fn write_field(field: &Field, key: &KeyMatch) -> Option<FieldMatch> {
    let width = field.width;
    let ones = || all_ones(width);
    let canonical = |v: &[u8]| bytestring::canonical(v).to_vec();
    let (is_ternary, is_exact) = (field.kind == MatchType::Ternary, field.kind == MatchType::Exact);
    let match_type = match key {
        KeyMatch::Any => return None,
        KeyMatch::Exact(value) if is_exact => FieldMatchType::Exact(Exact { value: canonical(value) }),
        KeyMatch::Exact(value) if is_ternary => {
            FieldMatchType::Ternary(Ternary { value: canonical(value), mask: ones() })
        }
        KeyMatch::Exact(value) => FieldMatchType::Optional(Optional { value: canonical(value) }),
        KeyMatch::Lpm { prefix_len: 0, .. } => return None,
        KeyMatch::Lpm { value, prefix_len } => {
            let prefix_len = i32::try_from(*prefix_len).unwrap_or(i32::MAX);
            FieldMatchType::Lpm(Lpm { value: canonical(value), prefix_len })
        }
        KeyMatch::Ternary { mask, .. } if is_zero(mask) => return None,
        KeyMatch::Ternary { value, mask } if is_ternary => {
            FieldMatchType::Ternary(Ternary { value: canonical(value), mask: canonical(mask) })
        }
        KeyMatch::Ternary { value, .. } => FieldMatchType::Optional(Optional { value: canonical(value) }),
        KeyMatch::Range { low, high } if is_zero(low) && canonical(high) == ones() => return None,
        KeyMatch::Range { low, high } => {
            FieldMatchType::Range(Range { low: canonical(low), high: canonical(high) })
        }
    };
    Some(FieldMatch { field_id: field.id, field_match_type: Some(match_type) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    fn field(kind: MatchType) -> Vec<Field> {
        vec![Field { id: 1, name: "f".into(), width: 12, sdn: None, kind }]
    }

    fn read_one(kind: MatchType, m: FieldMatchType) -> Result<KeyMatch> {
        let m = FieldMatch { field_id: 1, field_match_type: Some(m) };
        Ok(read(&field(kind), &[m], &"table t")?.remove(0))
    }

    fn code(kind: MatchType, m: FieldMatchType) -> Code {
        read_one(kind, m).unwrap_err().code
    }

    fn lpm(value: &[u8], prefix_len: i32) -> FieldMatchType {
        FieldMatchType::Lpm(Lpm { value: value.to_vec(), prefix_len })
    }

    fn ternary(value: &[u8], mask: &[u8]) -> FieldMatchType {
        FieldMatchType::Ternary(Ternary { value: value.to_vec(), mask: mask.to_vec() })
    }

    fn range(low: &[u8], high: &[u8]) -> FieldMatchType {
        FieldMatchType::Range(Range { low: low.to_vec(), high: high.to_vec() })
    }

    #[test]
    fn values_come_back_canonical() {
        for (kind, given, canonical) in [
            (MatchType::Lpm, lpm(&[0, 0x0a, 0x00], 8), lpm(&[0x0a, 0x00], 8)),
            (MatchType::Ternary, ternary(&[0, 0, 1], &[0, 0xff]), ternary(&[1], &[0xff])),
            (MatchType::Range, range(&[0, 1], &[0, 0, 9]), range(&[1], &[9])),
        ] {
            let key = read_one(kind, given).unwrap();
            let back = write(&field(kind), &[key]).remove(0).field_match_type.unwrap();
            assert_eq!(back, canonical);
        }
    }

    #[test]
    fn optional_differs_from_ternary() {
        let optional = FieldMatchType::Optional(Optional { value: vec![0, 5] });
        let key = read_one(MatchType::Optional, optional).unwrap();
        let as_ternary = KeyMatch::Ternary { value: vec![5], mask: vec![0x0f, 0xff] };
        for key in [key, as_ternary] {
            let back = write(&field(MatchType::Optional), &[key]).remove(0).field_match_type.unwrap();
            assert_eq!(back, FieldMatchType::Optional(Optional { value: vec![5] }));
        }
    }

    #[test]
    fn invalid_keys_are_refused() {
        use MatchType as M;
        assert_eq!(code(M::Lpm, lpm(&[0], 0)), Code::InvalidArgument, "don't care");
        assert_eq!(code(M::Lpm, lpm(&[0], 13)), Code::InvalidArgument);
        assert_eq!(code(M::Lpm, lpm(&[0], -1)), Code::InvalidArgument);
        assert_eq!(code(M::Lpm, lpm(&[0x0a, 0x01], 8)), Code::InvalidArgument);
        assert_eq!(code(M::Lpm, lpm(&[0x1a, 0x00], 8)), Code::OutOfRange);
        assert_eq!(code(M::Ternary, ternary(&[0], &[0])), Code::InvalidArgument, "don't care");
        assert_eq!(code(M::Ternary, ternary(&[3], &[2])), Code::InvalidArgument);
        assert_eq!(code(M::Ternary, ternary(&[], &[2])), Code::OutOfRange);
        assert_eq!(code(M::Range, range(&[3], &[2])), Code::InvalidArgument);
        assert_eq!(code(M::Range, range(&[0], &[0x0f, 0xff])), Code::InvalidArgument, "don't care");
        assert_eq!(code(M::Range, range(&[0], &[0x10, 0])), Code::OutOfRange);
        assert_eq!(code(M::Exact, range(&[0], &[1])), Code::InvalidArgument, "wrong kind");
        let missing = read(&field(M::Exact), &[], &"table t").unwrap_err();
        assert!(missing.message.contains("f is missing"), "{missing}");
        let stranger = FieldMatch { field_id: 2, field_match_type: None };
        assert_eq!(read(&field(M::Lpm), &[stranger], &"table t").unwrap_err().code, Code::InvalidArgument);
        let m = FieldMatch { field_id: 1, field_match_type: Some(lpm(&[0x0a, 0], 8)) };
        assert!(read(&field(M::Lpm), &[m.clone(), m], &"table t").unwrap_err().message.contains("twice"));
    }
}
