//! Replays the corpus of the fuzz targets.

use std::path::PathBuf;

#[path = "../support/hostile.rs"]
mod hostile;

fn replay(target: &str, run: fn(&[u8])) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        run(&std::fs::read(entry.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count > 0, "no corpus for {target}");
}

#[test]
fn heads() {
    replay("plain_head", hostile::head);
}

#[test]
fn packets_of_hostile_clients() {
    replay("plain_step", hostile::step);
}

#[test]
fn messages_of_dns() {
    replay("plain_dns", hostile::dns);
}

#[test]
fn packets_to_a_service_with_a_back_end() {
    replay("plain_relay", hostile::relay);
}
