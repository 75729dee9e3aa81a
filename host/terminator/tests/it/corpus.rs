//! Runs the fuzz target on its stored corpus, and on damaged copies of it.

use proptest::prelude::*;
use rivulet_terminator::testing::relay;

#[path = "../../../fuzz/inputs.rs"]
mod inputs;

use inputs::{inputs, replay};

#[test]
fn corpus_of_relay_passes() {
    replay("tls_relay", relay);
}

proptest! {
    #[test]
    fn damaged_bytes_are_relayed_without_panic(
        input in prop::sample::select(inputs("tls_relay")),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let mut input = input;
        for (at, byte) in changes {
            let at = at.index(input.len());
            input[at] = byte;
        }
        relay(&input);
    }
}
