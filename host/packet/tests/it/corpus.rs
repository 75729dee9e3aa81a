//! Replays the corpus of the fuzz targets as a regression test.

use crate::support;
use rivulet_packet::Heartbeat;

#[path = "../../../fuzz/inputs.rs"]
mod inputs;

use inputs::replay;

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
