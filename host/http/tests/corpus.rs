//! Replays the corpus of the fuzz target.

#[path = "support/hostile.rs"]
mod hostile;
#[path = "../../fuzz/inputs.rs"]
mod inputs;

#[test]
fn heads() {
    inputs::replay("http_head", hostile::head);
}
