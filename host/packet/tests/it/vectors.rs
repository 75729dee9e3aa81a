//! docs/wire-vectors.json matches the code and covers every error.

use std::collections::BTreeSet;

use crate::support;
use rivulet_packet::WireError;

#[test]
fn committed_vectors_match_the_code() {
    let committed = std::fs::read_to_string(support::vectors_path()).expect("docs/wire-vectors.json");
    let fresh = support::render(&support::vectors());
    let first = committed.lines().zip(fresh.lines()).position(|(a, b)| a != b);
    assert!(
        committed == fresh,
        "docs/wire-vectors.json is stale from line {:?}; run `cargo run -p rivulet-packet --example wire_vectors`",
        first.map(|n| n + 1)
    );
}

#[test]
fn every_error_has_a_vector() {
    let vectors = support::vectors();
    let names = |section: &str| -> BTreeSet<String> {
        let rows = vectors[section].as_array().expect("a section");
        rows.iter().map(|v| v["error"].as_str().expect("an error").to_owned()).collect()
    };
    let mut seen = names("invalid");
    seen.extend(names("invalid_heartbeats"));
    // Only a caller that reads a request as a response gets this error; no packet causes it.
    seen.insert("class_direction".into());
    let missing: Vec<_> = WireError::NAMES.iter().filter(|n| !seen.contains(**n)).collect();
    assert!(missing.is_empty(), "errors without a vector: {missing:?}");
}

#[test]
fn every_class_has_a_vector_in_each_family_tagged_and_not() {
    let vectors = support::vectors();
    let mut seen = BTreeSet::new();
    for p in vectors["packets"].as_array().expect("packets") {
        let v6 = p["ip"]["src"].as_str().expect("an address").contains(':');
        seen.insert((p["option"]["class"].to_string(), v6, p["eth"]["vlan"].is_null()));
    }
    assert_eq!(seen.len(), 16 * 4);
}
