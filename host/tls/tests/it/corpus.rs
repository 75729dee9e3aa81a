//! Replays the corpus of the fuzz targets.

use proptest::prelude::*;

#[path = "../support/hostile.rs"]
mod hostile;
#[path = "../../../fuzz/inputs.rs"]
mod inputs;

use inputs::{inputs, replay};

#[test]
fn corpus_of_states_passes() {
    replay("tls_state", hostile::state);
}

proptest! {
    #[test]
    fn damaged_states(
        input in prop::sample::select(inputs("tls_state")),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let mut input = input;
        for (at, byte) in changes {
            let at = at.index(input.len());
            input[at] = byte;
        }
        hostile::state(&input);
    }
}
