//! Replays the corpus of the fuzz targets, so that what fuzzing once found stays found.

use std::path::PathBuf;

use crate::support;
use rivulet_packet::Heartbeat;

fn replay(target: &str, run: impl Fn(&[u8])) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        run(&std::fs::read(entry.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count > 0, "no corpus for {target}");
}

#[test]
fn frames() {
    replay("frame", support::exercise);
}

#[test]
fn requests() {
    replay("request", support::request_input);
}

#[test]
fn responses() {
    replay("response", support::response_input);
}

#[test]
fn heartbeats() {
    replay("heartbeat", |b| {
        if let Ok(h) = Heartbeat::parse(b) {
            let mut again = [0; 20];
            h.write(&mut again).unwrap();
            assert_eq!(again, b[..20]);
        }
    });
}
