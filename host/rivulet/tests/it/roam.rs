//! Downloads of a client whose address changes. Needs root; skipped where namespaces cannot be made.

use std::process::Child;

use rivulet_pktio::testing::Netns;

use crate::rig::{Rig, SERVICE};

/// Slow enough that addresses change in the middle of a download.
const RATE: &str = "40mbit";

/// A client with two links to a router. It begins with an address on the first one.
struct Links {
    rig: Rig,
    router: Netns,
}

impl Links {
    fn new() -> Option<Links> {
        let (rig, router) = Rig::with_router()?;
        rig.client.veth("c1", &router, "r2");
        router.ip("addr add 10.66.0.1/24 dev r2");
        rig.server.ip("route add 10.66.0.0/24 via 10.88.0.1");
        Some(Links { rig, router })
    }

    /// The client loses its address on one link and gets one on the other.
    fn hop(&self, to_second: bool) {
        let client = &self.rig.client;
        let (from, to, via) = if to_second {
            ("10.77.0.2/24 dev c0", "10.66.0.2/24 dev c1", "10.66.0.1")
        } else {
            ("10.66.0.2/24 dev c1", "10.77.0.2/24 dev c0", "10.77.0.1")
        };
        client.ip(&format!("addr del {from}"));
        // Between the two there is no way to the server.
        std::thread::sleep(std::time::Duration::from_millis(100));
        client.ip(&format!("addr add {to}"));
        client.ip(&format!("route replace {SERVICE}/32 via {via}"));
    }

    fn finished(&self, download: Child, content: &[u8], local: &str) -> serde_json::Value {
        let report = self.rig.finished(download, content);
        assert_eq!((&report["status"], &report["transport"]), (&200.into(), &"rivulet".into()));
        assert!(report["local"].as_str().unwrap().starts_with(local), "{}", report["local"]);
        report
    }
}

/// Back and forth between two links, with another replica after each: one connection, all bytes.
#[test]
fn download_follows_the_address_between_two_links() {
    let Some(links) = Links::new() else { return };
    let rig = &links.rig;
    let content = rig.file("file", 10_000_000);
    links.router.shape("r0", RATE);
    links.router.shape("r2", RATE);
    let mut server = rig.serve(&[]);
    let download = rig.download(&[]);
    for (wanted, to_second) in [(2_000_000, true), (4_000_000, false), (6_000_000, true)] {
        rig.progress(wanted);
        links.hop(to_second);
        drop(server);
        server = rig.serve(&[]);
    }
    let report = links.finished(download, &content, "10.66.0.2:");
    assert!(report["counts"]["restarts"].as_u64().unwrap() >= 3, "{report}");
}

/// The client has no address for longer than its requests are fresh; then its first one comes back.
#[test]
fn download_continues_when_the_address_returns() {
    let Some(links) = Links::new() else { return };
    let rig = &links.rig;
    let content = rig.file("file", 5_000_000);
    links.router.shape("r0", RATE);
    let _server = rig.serve(&["--horizon-ms", "300"]);
    let download = rig.download(&[]);
    rig.progress(1_000_000);
    rig.client.ip("addr del 10.77.0.2/24 dev c0");
    std::thread::sleep(std::time::Duration::from_secs(3));
    rig.client.ip("addr add 10.77.0.2/24 dev c0");
    rig.client.ip(&format!("route replace {SERVICE}/32 via 10.77.0.1"));
    links.finished(download, &content, "10.77.0.2:");
}
