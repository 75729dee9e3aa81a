//! Replays the corpus of the fuzz target, also with changed bytes.

#[path = "../support/hostile.rs"]
mod hostile;
#[path = "../../../fuzz/inputs.rs"]
mod inputs;

#[test]
fn corpus_is_read_without_panic() {
    inputs::replay("watermark", |input| {
        hostile::picture(input);
        for at in 0..input.len() {
            let mut other = input.to_vec();
            other[at] ^= 0x41;
            hostile::picture(&other);
            hostile::picture(&input[..at]);
        }
    });
}
