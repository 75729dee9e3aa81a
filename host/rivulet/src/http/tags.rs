//! The entity tags of a request that this server could have made, in a form small enough for a
//! continuation.

use rivulet_http::{EntityTag, Refused, entity_tags};

use super::codec::{Malformed, Reader};

/// Limit on the entity tags of one header. An `If-Match` with more is refused, because a dropped
/// tag might match; an `If-None-Match` drops them, which can only cause a full answer.
const MAX_TAGS: usize = 5;

/// Entity tags of an `If-Match`, `If-None-Match` or `If-Range` header that have this server's form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tags {
    /// Whether the request has the header.
    pub present: bool,
    /// The header's value is `*`.
    any: bool,
    tags: Vec<[u8; 16]>,
}

impl Tags {
    /// Adds the value of an `If-Match` (`strong`: weak tags do not count) or `If-None-Match` header.
    pub(super) fn add_list(&mut self, value: &[u8], strong: bool) -> Result<(), Refused> {
        self.present = true;
        self.any |= value == b"*";
        for tag in entity_tags(value).filter(|tag| !(strong && tag.weak)).filter_map(hash) {
            if self.tags.len() < MAX_TAGS {
                self.tags.push(tag);
            } else if strong {
                return Err(Refused(431));
            }
        }
        Ok(())
    }

    /// Reads the value of an `If-Range` header: one strong tag (RFC 9110 section 13.1.5).
    pub(super) fn add_if_range(&mut self, value: &[u8]) {
        self.present = true;
        self.tags = EntityTag::parse(value).filter(|tag| !tag.weak).and_then(hash).into_iter().collect();
    }

    /// Whether the condition matches a content (`None`: there is no content); returns `None` if
    /// there is no condition.
    #[must_use]
    pub fn names(&self, content: Option<&[u8; 16]>) -> Option<bool> {
        self.present.then(|| content.is_some_and(|hash| self.any || self.tags.contains(hash)))
    }

    /// Whether `*` is among the values.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.any
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

/// The hash in a tag of this server's form.
fn hash(tag: EntityTag<'_>) -> Option<[u8; 16]> {
    let hex = std::str::from_utf8(tag.opaque).ok()?;
    // Tags are case-sensitive, so only lower case matches.
    let ours = hex.len() == 32 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    ours.then(|| u128::from_str_radix(hex, 16).ok().map(u128::to_be_bytes))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_entity_tags_match() {
        let hash = [0xab; 16];
        let text = "\"".to_owned() + &"ab".repeat(16) + "\"";
        let list = |value: &str, strong| {
            let mut tags = Tags::default();
            tags.add_list(value.as_bytes(), strong).map(|()| tags)
        };
        let names = |value: &str, strong| list(value, strong).unwrap().names(Some(&hash));
        assert_eq!(Tags::default().names(Some(&hash)), None);
        assert_eq!(names(&text, true), Some(true));
        assert_eq!(names(&format!("\"x\", W/{text}"), false), Some(true));
        assert_eq!(names(&format!("W/{text}"), true), Some(false));
        assert_eq!(names("*", false), Some(true));
        assert_eq!(names("\"ab\"", false), Some(false));
        assert_eq!(names(&text.to_uppercase(), true), Some(false));
        assert_eq!(list("*", true).unwrap().names(None), Some(false));
        let other = |n: u128| format!("\"{n:032x}\", ");
        let many = (0..MAX_TAGS as u128).map(other).collect::<String>() + &text;
        assert_eq!(list(&many, true), Err(Refused(431)));
        assert_eq!(names(&many, false), Some(false));
        for (value, want) in [(text.clone(), true), (format!("W/{text}"), false), ("*".into(), false)] {
            let mut tags = Tags::default();
            tags.add_if_range(value.as_bytes());
            assert_eq!(tags.names(Some(&hash)), Some(want), "{value}");
        }
    }

    #[test]
    fn encoding_round_trips() {
        let mut tags = Tags::default();
        tags.add_list(format!("\"{}\"", "0f".repeat(16)).as_bytes(), false).unwrap();
        let mut out = Vec::new();
        tags.encode(&mut out);
        assert_eq!(Tags::decode(&mut Reader(&out)), Ok(tags));
    }
}
