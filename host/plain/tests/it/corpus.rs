//! Runs the fuzz targets on their stored corpus.

#[path = "../support/hostile.rs"]
mod hostile;
#[path = "../../../fuzz/inputs.rs"]
mod inputs;

use inputs::replay;

#[test]
fn stored_heads_do_not_panic() {
    replay("plain_head", hostile::head);
}

#[test]
fn stored_hostile_packets_do_not_panic() {
    replay("plain_step", hostile::step);
}

#[test]
fn stored_dns_messages_do_not_panic() {
    replay("plain_dns", hostile::dns);
}

#[test]
fn stored_packets_to_a_back_end_do_not_panic() {
    replay("plain_relay", hostile::relay);
}
