//! Byte ranges and entity tags (RFC 9110 sections 14 and 8.8.3), small enough to travel in a continuation.

use super::codec::{Malformed, Reader};

/// What a `Range` header asks for. Several ranges in one header are answered as if there were none,
/// which section 14.2 allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RangeSpec {
    /// The whole.
    #[default]
    All,
    /// `first-last`, both included; `u64::MAX` for an open end.
    Span(u64, u64),
    /// The last so many octets.
    Suffix(u64),
}

/// Nothing of the content lies in the range (416).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsatisfiable;

impl RangeSpec {
    /// Reads the value of a `Range` header; what is not understood counts as absent.
    #[must_use]
    pub fn parse(value: &str) -> RangeSpec {
        Self::try_parse(value).unwrap_or_default()
    }

    fn try_parse(value: &str) -> Option<RangeSpec> {
        let (unit, set) = value.split_once('=')?;
        if !unit.trim().eq_ignore_ascii_case("bytes") {
            return None;
        }
        let (first, last) = set.trim().split_once('-')?;
        let number = |s: &str| -> Option<u64> {
            // Longer than any content, and so as good as its end (RFC 9110 section 14.1.2).
            (!s.is_empty() && s.bytes().all(|b| b.is_ascii_digit())).then(|| s.parse().unwrap_or(u64::MAX))
        };
        match (first.trim(), last.trim()) {
            ("", suffix) => Some(RangeSpec::Suffix(number(suffix)?)),
            (first, "") => Some(RangeSpec::Span(number(first)?, u64::MAX)),
            (first, last) => {
                let (first, last) = (number(first)?, number(last)?);
                (first <= last).then_some(RangeSpec::Span(first, last))
            }
        }
    }

    /// First octet and number of octets of a content of `size` octets: `Ok(None)` for the whole,
    /// `Err` if nothing of it is asked for (416).
    pub fn resolve(self, size: u64) -> Result<Option<(u64, u64)>, Unsatisfiable> {
        match self {
            RangeSpec::All => Ok(None),
            RangeSpec::Span(first, _) if first >= size => Err(Unsatisfiable),
            RangeSpec::Span(first, last) => Ok(Some((first, last.min(size - 1) - first + 1))),
            RangeSpec::Suffix(0) => Err(Unsatisfiable),
            RangeSpec::Suffix(_) if size == 0 => Err(Unsatisfiable),
            RangeSpec::Suffix(n) => Ok(Some((size - n.min(size), n.min(size)))),
        }
    }

    pub(crate) fn encode(self, out: &mut Vec<u8>) {
        let (kind, a, b) = match self {
            RangeSpec::All => (0, 0, 0),
            RangeSpec::Span(a, b) => (1, a, b),
            RangeSpec::Suffix(n) => (2, n, 0),
        };
        out.push(kind);
        out.extend_from_slice(&u64::to_be_bytes(a));
        out.extend_from_slice(&u64::to_be_bytes(b));
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<RangeSpec, Malformed> {
        let (kind, a, b) = (r.u8()?, r.u64()?, r.u64()?);
        match kind {
            0 => Ok(RangeSpec::All),
            1 if a <= b => Ok(RangeSpec::Span(a, b)),
            2 => Ok(RangeSpec::Suffix(a)),
            _ => Err(Malformed),
        }
    }
}

/// Entity tags kept of one header; more are dropped, which can only cause a full answer.
const MAX_TAGS: usize = 4;

/// Entity tags of an `If-None-Match` or `If-Range` header, those in this server's form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tags {
    /// The header was there.
    pub present: bool,
    /// `*`
    pub any: bool,
    tags: Vec<[u8; 16]>,
}

impl Tags {
    /// Reads a header's value; with `strong`, weak tags do not count (section 13.1.5).
    #[must_use]
    pub fn parse(value: &str, strong: bool) -> Tags {
        let mut tags = Tags { present: true, any: value.trim() == "*", tags: Vec::new() };
        for item in value.split(',').map(str::trim) {
            let item = match item.strip_prefix("W/") {
                Some(_) if strong => continue,
                Some(rest) => rest,
                None => item,
            };
            let Some(hex) = item.strip_prefix('"').and_then(|s| s.strip_suffix('"')) else { continue };
            if let Some(tag) = parse_hex(hex)
                && tags.tags.len() < MAX_TAGS
            {
                tags.tags.push(tag);
            }
        }
        tags
    }

    /// True if `hash` is among them.
    #[must_use]
    pub fn matches(&self, hash: &[u8; 16]) -> bool {
        self.any || self.tags.contains(hash)
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.present) | u8::from(self.any) << 1 | (self.tags.len() as u8) << 4);
        self.tags.iter().for_each(|t| out.extend_from_slice(t));
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Tags, Malformed> {
        let bits = r.u8()?;
        let count = usize::from(bits >> 4);
        if count > MAX_TAGS {
            return Err(Malformed);
        }
        let tags = (0..count).map(|_| r.array()).collect::<Result<_, _>>()?;
        Ok(Tags { present: bits & 1 != 0, any: bits & 2 != 0, tags })
    }
}

fn parse_hex(hex: &str) -> Option<[u8; 16]> {
    if hex.len() != 32 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(hex, 16).ok().map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_headers() {
        let cases = [
            ("bytes=0-0", Ok(Some((0, 1)))),
            ("bytes=5-", Ok(Some((5, 95)))),
            ("bytes=5-1000", Ok(Some((5, 95)))),
            ("bytes=-7", Ok(Some((93, 7)))),
            ("bytes=-700", Ok(Some((0, 100)))),
            ("bytes=100-", Err(Unsatisfiable)),
            ("bytes=-0", Err(Unsatisfiable)),
            ("bytes=7-3", Ok(None)),
            ("bytes=0-1,5-6", Ok(None)),
            ("lines=0-1", Ok(None)),
            ("bytes=+1-2", Ok(None)),
            ("bytes=99999999999999999999-", Err(Unsatisfiable)),
            ("bytes=5-99999999999999999999", Ok(Some((5, 95)))),
            ("bytes=-99999999999999999999", Ok(Some((0, 100)))),
            ("", Ok(None)),
        ];
        for (text, want) in cases {
            assert_eq!(RangeSpec::parse(text).resolve(100), want, "{text}");
        }
        assert_eq!(RangeSpec::parse("bytes=-7").resolve(0), Err(Unsatisfiable));
    }

    #[test]
    fn tags_match_what_we_wrote_and_nothing_else() {
        let hash = [0xab; 16];
        let text = "\"".to_owned() + &"ab".repeat(16) + "\"";
        assert!(Tags::parse(&text, true).matches(&hash));
        assert!(Tags::parse(&format!("\"x\", W/{text}"), false).matches(&hash));
        assert!(!Tags::parse(&format!("W/{text}"), true).matches(&hash));
        assert!(Tags::parse("*", false).matches(&hash));
        assert!(!Tags::parse("\"ab\"", false).matches(&hash));
    }

    #[test]
    fn encodings_come_back() {
        for spec in
            [RangeSpec::All, RangeSpec::Span(3, 9), RangeSpec::Span(3, u64::MAX), RangeSpec::Suffix(4)]
        {
            let mut out = Vec::new();
            spec.encode(&mut out);
            assert_eq!(RangeSpec::decode(&mut Reader(&out)), Ok(spec));
        }
        let tags = Tags::parse(&format!("\"{}\"", "0f".repeat(16)), false);
        let mut out = Vec::new();
        tags.encode(&mut out);
        assert_eq!(Tags::decode(&mut Reader(&out)), Ok(tags));
    }
}
