//! Replays the corpus of the fuzz targets.

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
fn packets_of_hostile_clients() {
    replay("plain_step", hostile::step);
}

#[test]
fn stored_dns_messages_do_not_panic() {
    replay("plain_dns", hostile::dns);
}

#[test]
fn packets_to_a_service_with_a_back_end() {
    replay("plain_relay", hostile::relay);
}
