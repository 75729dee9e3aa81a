//! Replays the corpus of the fuzz targets that put an enemy between client and server.

use std::path::PathBuf;

use rivulet_sim::hostile::{Enemy, session};

fn replay(target: &str, enemy: Enemy) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        session(&std::fs::read(entry.unwrap().path()).unwrap(), enemy);
        count += 1;
    }
    assert!(count > 0, "no corpus for {target}");
}

#[test]
fn the_client_fed_by_a_hostile_server() {
    replay("client", Enemy::Server);
}

#[test]
fn the_server_fed_by_a_hostile_client() {
    replay("server", Enemy::Client);
}
