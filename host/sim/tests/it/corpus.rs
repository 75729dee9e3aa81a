//! Replays the corpus of the fuzz targets with an enemy between client and server.

use rivulet_sim::hostile::{Enemy, session};

#[path = "../../../fuzz/inputs.rs"]
mod inputs;

use inputs::replay;

#[test]
fn client_survives_a_hostile_server() {
    replay("client", |input| {
        session(input, Enemy::Server);
    });
}

#[test]
fn server_survives_a_hostile_client() {
    replay("server", |input| {
        session(input, Enemy::Client);
    });
}
