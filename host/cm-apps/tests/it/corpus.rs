//! Replays the corpus of the fuzz target, also with changed bytes.

use proptest::prelude::*;
use rivulet_cm_apps::wire::Message;

#[path = "../support/hostile.rs"]
mod hostile;
#[path = "../../../fuzz/inputs.rs"]
mod inputs;

#[test]
fn messages() {
    inputs::replay("cm_apps_message", hostile::message);
}

#[test]
fn each_kind_is_there() {
    let mut kinds = [0; 5];
    for bytes in inputs::inputs("cm_apps_message") {
        match Message::parse(&bytes) {
            Ok(Message::Hello { .. }) => kinds[0] += 1,
            Ok(Message::Cookie(_)) => kinds[1] += 1,
            Ok(Message::Data { .. }) => kinds[2] += 1,
            Ok(Message::Report(_)) => kinds[3] += 1,
            Ok(Message::Bye(_)) => kinds[4] += 1,
            Err(_) => {}
        }
    }
    assert!(kinds.iter().all(|n| *n > 0), "{kinds:?}");
}

proptest! {
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        hostile::message(&bytes);
    }

    #[test]
    fn changed_ones(
        input in prop::sample::select(inputs::inputs("cm_apps_message")),
        at in any::<prop::sample::Index>(),
        octet in any::<u8>(),
    ) {
        let mut input = input;
        let at = at.index(input.len());
        input[at] = octet;
        hostile::message(&input);
    }
}
