//! The list and the tests match each other.

use std::collections::BTreeSet;

const LIST: &str = include_str!("../../REQUIREMENTS.md");
const SOURCES: &[(&str, &str)] = &[
    ("arbitration", include_str!("arbitration.rs")),
    ("batches", include_str!("batches.rs")),
    ("bounds", include_str!("bounds.rs")),
    ("fuzz", include_str!("fuzz.rs")),
    ("pipeline", include_str!("pipeline.rs")),
    ("profiles", include_str!("profiles.rs")),
    ("replication", include_str!("replication.rs")),
    ("state", include_str!("state.rs")),
    ("streams", include_str!("streams.rs")),
    ("tables", include_str!("tables.rs")),
    ("tls", include_str!("tls.rs")),
    ("translation", include_str!("translation.rs")),
];

#[test]
fn requirements_and_tests_match() {
    let mut tests = BTreeSet::new();
    for (module, source) in SOURCES {
        let mut is_test = false;
        for line in source.lines() {
            is_test |= line.starts_with("#[tokio::test");
            if let Some(rest) = line.strip_prefix("async fn ").filter(|_| is_test) {
                tests.insert(format!("{module}::{}", rest.split('(').next().unwrap()));
                is_test = false;
            }
        }
    }
    let is_name =
        |s: &&str| s.contains("::") && s.chars().all(|c| c.is_ascii_alphanumeric() || "_:".contains(c));
    let listed: BTreeSet<String> = LIST.split('`').filter(is_name).map(str::to_owned).collect();
    let missing: Vec<_> = listed.difference(&tests).collect();
    let unlisted: Vec<_> = tests.difference(&listed).collect();
    assert!(missing.is_empty(), "in the list but no test: {missing:?}");
    assert!(unlisted.is_empty(), "tests that the list does not have: {unlisted:?}");
}
