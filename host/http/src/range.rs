//! Byte ranges (RFC 9110 section 14).

/// The part of a content that a `Range` field asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RangeSpec {
    /// The whole: there was no range, or one that may be ignored (section 14.2): another unit, several ranges, or a malformed one.
    #[default]
    All,
    /// `first-last`, both included; `u64::MAX` for an open end.
    Span(u64, u64),
    /// The last so many bytes.
    Suffix(u64),
}

/// Nothing of the content lies in the range (416).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsatisfiable;

impl RangeSpec {
    /// Reads the value of a `Range` field.
    #[must_use]
    pub fn parse(value: &[u8]) -> RangeSpec {
        Self::read(value).unwrap_or_default()
    }

    fn read(value: &[u8]) -> Option<RangeSpec> {
        let equals = value.iter().position(|&b| b == b'=')?;
        let (unit, set) = (&value[..equals], &value[equals + 1..]);
        if !unit.eq_ignore_ascii_case(b"bytes") {
            return None;
        }
        // Elements of a list may be empty (section 5.6.1.2).
        let mut specs = set.split(|&b| b == b',').map(<[u8]>::trim_ascii).filter(|spec| !spec.is_empty());
        let (Some(spec), None) = (specs.next(), specs.next()) else { return None };
        let dash = spec.iter().position(|&b| b == b'-')?;
        match (&spec[..dash], &spec[dash + 1..]) {
            (b"", suffix) => Some(RangeSpec::Suffix(number(suffix)?)),
            (first, b"") => Some(RangeSpec::Span(number(first)?, u64::MAX)),
            (first, last) => {
                let (first, last) = (number(first)?, number(last)?);
                (first <= last).then_some(RangeSpec::Span(first, last))
            }
        }
    }

    /// First byte and number of bytes of a content of `size` bytes; `None` for the whole.
    ///
    /// # Errors
    /// [`Unsatisfiable`].
    pub fn resolve(self, size: u64) -> Result<Option<(u64, u64)>, Unsatisfiable> {
        match self {
            // A content without bytes has no parts, and the field may be ignored (section 14.2).
            RangeSpec::Span(..) | RangeSpec::Suffix(_) if size == 0 => Ok(None),
            RangeSpec::All => Ok(None),
            RangeSpec::Span(first, _) if first >= size => Err(Unsatisfiable),
            RangeSpec::Span(first, last) => Ok(Some((first, last.min(size - 1) - first + 1))),
            RangeSpec::Suffix(0) => Err(Unsatisfiable),
            RangeSpec::Suffix(n) => Ok(Some((size - n.min(size), n.min(size)))),
        }
    }
}

/// A number longer than any content is as good as its end (section 14.1.2).
fn number(digits: &[u8]) -> Option<u64> {
    let text = core::str::from_utf8(digits).ok()?;
    let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        for (text, want) in [
            ("bytes=0-0", Ok(Some((0, 1)))),
            ("bytes=5-", Ok(Some((5, 95)))),
            ("bytes=5-1000", Ok(Some((5, 95)))),
            ("bytes=-7", Ok(Some((93, 7)))),
            ("bytes=-700", Ok(Some((0, 100)))),
            ("BYTES= 1-2 ,", Ok(Some((1, 2)))),
            ("bytes=100-", Err(Unsatisfiable)),
            ("bytes=-0", Err(Unsatisfiable)),
            ("bytes=7-3", Ok(None)),
            ("bytes=0-1,5-6", Ok(None)),
            ("lines=0-1", Ok(None)),
            ("bytes=+1-2", Ok(None)),
            ("bytes=1-2x", Ok(None)),
            ("bytes=99999999999999999999-", Err(Unsatisfiable)),
            ("bytes=5-99999999999999999999", Ok(Some((5, 95)))),
            ("bytes=-99999999999999999999", Ok(Some((0, 100)))),
            ("bytes=", Ok(None)),
            ("", Ok(None)),
        ] {
            assert_eq!(RangeSpec::parse(text.as_bytes()).resolve(100), want, "{text}");
        }
        for text in ["bytes=0-", "bytes=-5", "bytes=-0", "bytes=3-4"] {
            assert_eq!(RangeSpec::parse(text.as_bytes()).resolve(0), Ok(None), "{text}");
        }
    }
}
