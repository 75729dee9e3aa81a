//! Entity tags and conditional requests (RFC 9110 sections 8.8.3 and 13).

use crate::{Method, RangeSpec};

/// An entity tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntityTag<'a> {
    /// `W/` stands in front of it.
    pub weak: bool,
    /// What stands between the quotes.
    pub opaque: &'a [u8],
}

impl EntityTag<'_> {
    /// Reads one entity tag that has nothing around it.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<EntityTag<'_>> {
        let (weak, quoted) = text.strip_prefix(b"W/").map_or((false, text), |rest| (true, rest));
        let opaque = quoted.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
        // etagc
        let good = |b: &u8| matches!(b, 0x21 | 0x23..=0x7e | 0x80..);
        opaque.iter().all(good).then_some(EntityTag { weak, opaque })
    }
}

/// The entity tags of a list. Elements that are not entity tags are skipped. A comma within quotes belongs to the tag.
pub fn entity_tags(value: &[u8]) -> impl Iterator<Item = EntityTag<'_>> {
    let mut quoted = false;
    value
        .split(move |&b| {
            quoted ^= b == b'"';
            b == b',' && !quoted
        })
        .filter_map(|item| EntityTag::parse(item.trim_ascii()))
}

/// Whether the value of an `If-Match` (`strong`) or `If-None-Match` field holds for a content that has this strong entity
/// tag: it is `*`, or names the tag (sections 13.1.1, 13.1.2 and 8.8.3.2).
#[must_use]
pub fn matches_any(value: &[u8], tag: &[u8], strong: bool) -> bool {
    value == b"*" || entity_tags(value).any(|given| given.opaque == tag && !(strong && given.weak))
}

/// Whether the value of an `If-Range` field is this strong entity tag. A date never holds: no content here has one
/// (section 13.1.5).
#[must_use]
pub fn matches_if_range(value: &[u8], tag: &[u8]) -> bool {
    EntityTag::parse(value).is_some_and(|given| !given.weak && given.opaque == tag)
}

/// The conditions of a request, each `None` if its field is not there, else whether it holds for the content that there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// `If-Match` holds.
    pub if_match: Option<bool>,
    /// `If-None-Match` names the content.
    pub if_none_match: Option<bool>,
    /// `If-Range` holds.
    pub if_range: Option<bool>,
}

/// What a request gets of a content that there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// All of it.
    Whole,
    /// So many bytes from this one on (206).
    Part(u64, u64),
    /// The client has it (304).
    NotModified,
    /// A precondition does not hold (412).
    PreconditionFailed,
    /// Nothing of it lies in the range (416).
    Unsatisfiable,
}

impl Conditions {
    /// What the request gets of a content of `size` bytes, in the order of section 13.2.2. `If-Modified-Since` and
    /// `If-Unmodified-Since` are ignored where no content has a date (sections 13.1.3 and 13.1.4).
    #[must_use]
    pub fn select(self, method: Method, range: RangeSpec, size: u64) -> Selection {
        if self.if_match == Some(false) {
            return Selection::PreconditionFailed;
        }
        if self.if_none_match == Some(true) {
            return match method {
                Method::Get | Method::Head => Selection::NotModified,
                _ => Selection::PreconditionFailed,
            };
        }
        // Ranges are defined for GET alone (section 14.2).
        if method != Method::Get || self.if_range == Some(false) {
            return Selection::Whole;
        }
        match range.resolve(size) {
            Ok(None) => Selection::Whole,
            Ok(Some((first, length))) => Selection::Part(first, length),
            Err(_) => Selection::Unsatisfiable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_entity_tags() {
        let tags = |text: &'static str| entity_tags(text.as_bytes()).collect::<Vec<_>>();
        let tag = |weak, opaque: &'static str| EntityTag { weak, opaque: opaque.as_bytes() };
        assert_eq!(tags(r#""a,b", W/"c" ,,"""#), [tag(false, "a,b"), tag(true, "c"), tag(false, "")]);
        assert_eq!(tags(r#"a, "b, w/"c", "d"e", "f g""#), []);
        assert_eq!(tags("*"), []);
    }

    #[test]
    fn comparison_is_strong_where_it_has_to_be() {
        let (strong, weak) = (br#""x", "t""#, br#"W/"t""#);
        assert!(matches_any(strong, b"t", true) && matches_any(strong, b"t", false));
        assert!(!matches_any(weak, b"t", true) && matches_any(weak, b"t", false));
        assert!(matches_any(b"*", b"t", true) && !matches_any(b"\"*\"", b"t", true));
        assert!(matches_if_range(br#""t""#, b"t"));
        for text in ["W/\"t\"", "*", "\"x\"", "\"t\", \"x\"", "t", "Fri, 27 Nov 2026 10:00:00 GMT", ""] {
            assert!(!matches_if_range(text.as_bytes(), b"t"), "{text}");
        }
    }

    #[test]
    fn conditions_have_an_order() {
        let range = RangeSpec::Span(2, 3);
        let select = |a, b, c, method| {
            Conditions { if_match: a, if_none_match: b, if_range: c }.select(method, range, 10)
        };
        let (yes, no) = (Some(true), Some(false));
        for (a, b, c, method, want) in [
            (None, None, None, Method::Get, Selection::Part(2, 2)),
            (None, None, None, Method::Head, Selection::Whole),
            (no, yes, yes, Method::Get, Selection::PreconditionFailed),
            (yes, yes, yes, Method::Get, Selection::NotModified),
            (yes, yes, yes, Method::Put, Selection::PreconditionFailed),
            (yes, no, no, Method::Get, Selection::Whole),
            (yes, no, yes, Method::Get, Selection::Part(2, 2)),
        ] {
            assert_eq!(select(a, b, c, method), want, "{a:?} {b:?} {c:?} {method:?}");
        }
        let beyond = Conditions::default().select(Method::Get, RangeSpec::Span(10, 11), 10);
        assert_eq!(beyond, Selection::Unsatisfiable);
    }
}
