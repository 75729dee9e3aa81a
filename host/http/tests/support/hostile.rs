//! Bytes of anybody's as request heads: what the fuzz target runs, and the test that replays its corpus.

use rivulet_http::{
    Conditions, Field, Framing, MAX_PATH, RangeSpec, RequestLine, Selection, Target, entity_tags,
    matches_any, matches_if_range,
};

/// A head, line by line. Nothing panics; a path leads nowhere else, and a part lies within its content.
pub fn head(bytes: &[u8]) {
    let mut lines = bytes.split(|&b| b == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let Some(Ok(line)) = lines.next().map(RequestLine::parse) else { return };
    if let Ok(target) = Target::parse(line.target, line.method) {
        let path = &target.path[..];
        assert!(path.starts_with(b"/") && path.len() <= MAX_PATH && !path.contains(&0));
        let parts: Vec<_> = path[1..].split(|&b| b == b'/').collect();
        let (last, inner) = parts.split_last().unwrap();
        assert!(inner.iter().all(|part| !part.is_empty()));
        assert!(inner.iter().chain([last]).all(|part| !matches!(*part, b"." | b"..")));
    }
    let mut framing = Framing::new(line.old);
    let (mut conditions, mut range) = (Conditions::default(), RangeSpec::All);
    let tag = b"0123456789abcdef0123456789abcdef";
    for line in lines.take_while(|line| !line.is_empty()) {
        let Ok(field) = Field::parse(line) else { return };
        if framing.take(&field).is_err() {
            return;
        }
        if field.is("range") {
            range = RangeSpec::parse(field.value);
        } else if field.is("if-match") {
            conditions.if_match = Some(matches_any(field.value, tag, true));
        } else if field.is("if-none-match") {
            conditions.if_none_match = Some(matches_any(field.value, tag, false));
            assert!(entity_tags(field.value).all(|tag| !tag.opaque.contains(&b'"')));
        } else if field.is("if-range") {
            conditions.if_range = Some(matches_if_range(field.value, tag));
        }
    }
    let _ = (framing.complete(line.method), framing.closes(), framing.has_body());
    for size in [0, 1, 10, u64::MAX] {
        if let Selection::Part(first, length) = conditions.select(line.method, range, size) {
            assert!(length > 0 && first.checked_add(length).is_some_and(|end| end <= size));
        }
    }
}
