//! A cursor over JSON with its position, so that every error contains its place.

use std::fmt::Write as _;
use std::rc::Rc;

use num_bigint::BigInt;
use num_traits::Zero;
use serde_json::Value;

use crate::types::LoadError;

/// Deepest nesting accepted. p4c nests expressions; a hash unrolled over locals can nest hundreds
/// deep.
const MAX_DEPTH: usize = 4096;

enum Seg<'a> {
    Key(&'a str),
    Index(usize),
}

struct Path<'a> {
    seg: Seg<'a>,
    up: Option<Rc<Path<'a>>>,
}

/// A JSON value and its place.
#[derive(Clone)]
pub(crate) struct Json<'a> {
    value: &'a Value,
    path: Option<Rc<Path<'a>>>,
}

pub(crate) type Res<T> = Result<T, LoadError>;

/// Parses a document, after checking the depth for the recursive parser.
pub(crate) fn parse(text: &[u8]) -> Res<Value> {
    let plain = |what: String| LoadError { place: String::new(), what };
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for &byte in text {
        if in_string {
            match (escaped, byte) {
                (true, _) => escaped = false,
                (false, b'\\') => escaped = true,
                (false, b'"') => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'{' | b'[' => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return Err(plain(format!("nested more than {MAX_DEPTH} deep")));
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    let mut reader = serde_json::Deserializer::from_slice(text);
    reader.disable_recursion_limit();
    let value: Value =
        serde::Deserialize::deserialize(&mut reader).map_err(|e| plain(format!("not JSON: {e}")))?;
    reader.end().map_err(|e| plain(format!("not JSON: {e}")))?;
    Ok(value)
}

impl<'a> Json<'a> {
    pub(crate) fn root(value: &'a Value) -> Self {
        Json { value, path: None }
    }

    fn child(&self, value: &'a Value, seg: Seg<'a>) -> Self {
        Json { value, path: Some(Rc::new(Path { seg, up: self.path.clone() })) }
    }

    pub(crate) fn err<T>(&self, what: impl Into<String>) -> Res<T> {
        Err(self.error(what))
    }

    pub(crate) fn error(&self, what: impl Into<String>) -> LoadError {
        let mut segs = Vec::new();
        let mut at = self.path.as_ref();
        while let Some(p) = at {
            segs.push(&p.seg);
            at = p.up.as_ref();
        }
        let mut place = String::new();
        for seg in segs.iter().rev() {
            match seg {
                Seg::Key(k) if place.is_empty() => place.push_str(k),
                Seg::Key(k) => {
                    let _ = write!(place, ".{k}");
                }
                Seg::Index(i) => {
                    let _ = write!(place, "[{i}]");
                }
            }
        }
        LoadError { place, what: what.into() }
    }

    /// All strings in it, except keys.
    pub(crate) fn strings(&self, each: &mut impl FnMut(&'a str)) {
        fn walk<'a>(value: &'a Value, each: &mut impl FnMut(&'a str)) {
            match value {
                Value::String(s) => each(s),
                Value::Array(list) => list.iter().for_each(|v| walk(v, each)),
                Value::Object(members) => members.values().for_each(|v| walk(v, each)),
                _ => {}
            }
        }
        walk(self.value, each);
    }

    pub(crate) fn is_null(&self) -> bool {
        self.value.is_null()
    }

    pub(crate) fn is_number(&self) -> bool {
        self.value.is_number()
    }

    /// The member, which must exist (it may be null).
    pub(crate) fn get(&self, key: &'a str) -> Res<Json<'a>> {
        match self.value {
            Value::Object(map) => match map.get(key) {
                Some(v) => Ok(self.child(v, Seg::Key(key))),
                None => self.err(format!("`{key}` is missing")),
            },
            _ => self.err("an object was expected"),
        }
    }

    /// The member, if it exists and is not null.
    pub(crate) fn opt(&self, key: &'a str) -> Option<Json<'a>> {
        let v = self.value.as_object()?.get(key)?;
        if v.is_null() { None } else { Some(self.child(v, Seg::Key(key))) }
    }

    /// The elements of an array.
    pub(crate) fn items(&self) -> Res<Vec<Json<'a>>> {
        match self.value {
            Value::Array(list) => {
                Ok(list.iter().enumerate().map(|(i, v)| self.child(v, Seg::Index(i))).collect())
            }
            _ => self.err("an array was expected"),
        }
    }

    /// The elements of a member that is an array; empty if it does not exist.
    pub(crate) fn list(&self, key: &'a str) -> Res<Vec<Json<'a>>> {
        self.opt(key).map_or(Ok(Vec::new()), |v| v.items())
    }

    /// One element of an array.
    pub(crate) fn at(&self, index: usize) -> Res<Json<'a>> {
        match self.value {
            Value::Array(list) => match list.get(index) {
                Some(v) => Ok(self.child(v, Seg::Index(index))),
                None => self.err(format!("element {index} is missing")),
            },
            _ => self.err("an array was expected"),
        }
    }

    /// Names and values of an object's members.
    pub(crate) fn members(&self) -> Res<Vec<(&'a str, Json<'a>)>> {
        match self.value {
            Value::Object(map) => {
                Ok(map.iter().map(|(k, v)| (k.as_str(), self.child(v, Seg::Key(k)))).collect())
            }
            _ => self.err("an object was expected"),
        }
    }

    pub(crate) fn str(&self) -> Res<&'a str> {
        self.value.as_str().ok_or_else(|| self.error("a string was expected"))
    }

    pub(crate) fn bool(&self) -> Res<bool> {
        // p4c writes 0 as the sign of a boolean field.
        let number = || self.value.as_i64().map(|n| n != 0);
        self.value.as_bool().or_else(number).ok_or_else(|| self.error("true or false was expected"))
    }

    pub(crate) fn int(&self) -> Res<i64> {
        self.value.as_i64().ok_or_else(|| self.error("an integer was expected"))
    }

    /// An integer from 0 to `max`.
    pub(crate) fn uint(&self, max: u64) -> Res<u64> {
        match self.value.as_u64() {
            Some(n) if n <= max => Ok(n),
            Some(n) => self.err(format!("{n} is more than {max}, the most that is taken")),
            None => self.err("a number of 0 or more was expected"),
        }
    }

    pub(crate) fn flag(&self, key: &'a str) -> Res<bool> {
        self.opt(key).map_or(Ok(false), |v| v.bool())
    }

    pub(crate) fn name(&self) -> Res<&'a str> {
        self.get("name")?.str()
    }

    /// A hexadecimal number, optionally with `-` and `0x`.
    pub(crate) fn hex(&self) -> Res<BigInt> {
        let text = self.str()?;
        let (neg, digits) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let digits = digits.strip_prefix("0x").unwrap_or(digits);
        if digits.is_empty() || digits.len() > 4096 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return self.err(format!("`{text:.40}` is no hexadecimal number"));
        }
        let value = BigInt::parse_bytes(digits.as_bytes(), 16).unwrap_or_else(BigInt::zero);
        Ok(if neg { -value } else { value })
    }

    /// A hexadecimal string as bytes, with its leading zeros.
    pub(crate) fn hex_bytes(&self) -> Res<Vec<u8>> {
        let n = self.hex()?;
        if n < BigInt::zero() {
            return self.err("a negative value has no place here");
        }
        let text = self.str()?;
        let len = text.strip_prefix("0x").unwrap_or(text).len().div_ceil(2);
        let bytes = n.to_bytes_be().1;
        let mut out = vec![0; len.saturating_sub(bytes.len())];
        out.extend_from_slice(&bytes[bytes.len().saturating_sub(len)..]);
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_their_place() {
        let v = parse(br#"{"a": [{"b": 1}, {"c": "x"}]}"#).unwrap();
        let e = Json::root(&v).get("a").unwrap().at(1).unwrap().get("c").unwrap().int().unwrap_err();
        assert_eq!(e.to_string(), "a[1].c: an integer was expected");
        let e = Json::root(&v).get("a").unwrap().at(0).unwrap().get("d").err().unwrap();
        assert_eq!(e.to_string(), "a[0]: `d` is missing");
    }

    #[test]
    fn hexadecimal_numbers_are_parsed_or_refused() {
        let v = parse(br#"["-0x10", "0x0aba03", "f", "0x", "zz"]"#).unwrap();
        let j = Json::root(&v).items().unwrap();
        assert_eq!(j[0].hex().unwrap(), BigInt::from(-16));
        assert_eq!(j[1].hex_bytes().unwrap(), [0x0a, 0xba, 0x03]);
        assert_eq!(j[2].hex_bytes().unwrap(), [15]);
        assert!(j[3].hex().is_err() && j[4].hex().is_err());
    }

    #[test]
    fn nesting_is_bounded() {
        let deep = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
        assert!(parse(&deep).unwrap_err().what.contains("deep"));
    }
}
