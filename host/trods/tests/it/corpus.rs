//! Replays the corpus of the fuzz targets.

use std::path::PathBuf;

use proptest::prelude::*;

#[path = "../support/hostile.rs"]
mod hostile;

fn replay(target: &str, run: fn(&[u8])) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        run(&std::fs::read(entry.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count > 0, "no corpus for {target}");
}

#[test]
fn requests() {
    replay("trods_request", hostile::request);
}

#[test]
fn responses() {
    replay("trods_response", hostile::response);
}

#[test]
fn records() {
    replay("trods_record", hostile::record);
}

#[test]
fn flows() {
    replay("trods_flow", hostile::flow);
}

/// Of each target: its corpus with octets changed.
fn damaged(target: &str) -> impl Strategy<Value = Vec<u8>> + use<> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let mut all: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    let cut = any::<(bool, prop::sample::Index)>();
    (prop::sample::select(all), changes, cut).prop_map(|(path, changes, (cuts, cut))| {
        let mut octets = std::fs::read(path).unwrap();
        for (at, octet) in changes {
            let at = at.index(octets.len());
            octets[at] = octet;
        }
        if cuts {
            octets.truncate(cut.index(octets.len()));
        }
        octets
    })
}

proptest! {
    #[test]
    fn damaged_requests(octets in damaged("trods_request")) {
        hostile::request(&octets);
    }

    #[test]
    fn damaged_responses(octets in damaged("trods_response")) {
        hostile::response(&octets);
    }

    #[test]
    fn damaged_records(octets in damaged("trods_record")) {
        hostile::record(&octets);
    }

    #[test]
    fn damaged_flows(octets in damaged("trods_flow")) {
        hostile::flow(&octets);
    }
}
