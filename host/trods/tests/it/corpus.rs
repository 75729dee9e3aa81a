//! Runs the fuzz targets on their stored corpus, and on damaged copies of it.

use proptest::prelude::*;
use rivulet_trods::Record;
use rivulet_trods::record::Body;

#[path = "../support/hostile.rs"]
mod hostile;
#[path = "../../../fuzz/inputs.rs"]
mod inputs;

use inputs::{inputs, replay};

#[test]
fn stored_requests_do_not_panic() {
    replay("trods_request", hostile::request);
}

#[test]
fn stored_responses_do_not_panic() {
    replay("trods_response", hostile::response);
}

#[test]
fn records() {
    replay("trods_record", hostile::record);
}

/// The corpus must contain responses of each kind, or the replay tests nothing.
#[test]
fn records_of_all_kinds_are_there() {
    let mut kinds = [0; 3];
    for octets in inputs("trods_record") {
        let octets = [&octets[..], &crc32c::crc32c(&octets).to_be_bytes()].concat();
        for response in Record::decode(&octets).map(|record| record.responses).unwrap_or_default() {
            kinds[match response.body {
                Body::Object { .. } => 0,
                Body::Generated { .. } => 1,
                Body::Whole(_) => 2,
            }] += 1;
        }
    }
    assert!(kinds[0] > 0 && kinds[1] == 4 && kinds[2] > 0, "{kinds:?}");
}

#[test]
fn stored_flows_do_not_panic() {
    replay("trods_flow", hostile::flow);
}

/// An input from the corpus of a target, with some bytes changed.
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
    fn damaged_requests_do_not_panic(octets in damaged("trods_request")) {
        hostile::request(&octets);
    }

    #[test]
    fn damaged_responses_do_not_panic(octets in damaged("trods_response")) {
        hostile::response(&octets);
    }

    #[test]
    fn damaged_records_do_not_panic(octets in damaged("trods_record")) {
        hostile::record(&octets);
    }

    #[test]
    fn damaged_flows_do_not_panic(octets in damaged("trods_flow")) {
        hostile::flow(&octets);
    }
}
