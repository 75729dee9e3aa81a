//! Replays the corpus of the fuzz targets.

use proptest::prelude::*;

#[path = "../support/hostile.rs"]
mod hostile;
#[path = "../../../fuzz/inputs.rs"]
mod inputs;

use inputs::{inputs, replay};

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
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    let cut = any::<(bool, prop::sample::Index)>();
    (prop::sample::select(inputs(target)), changes, cut).prop_map(|(mut octets, changes, (cuts, cut))| {
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
