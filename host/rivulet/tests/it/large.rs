//! Large files for unmodified clients, from stateless replicas. Needs root; skipped if namespaces
//! cannot be created.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rivulet_pktio::testing::Process;

use crate::stateless::{BY_BLOCK, Rack, SERVICE6, url};

fn serve(rack: &Rack, replica: usize) -> Process {
    rack.serve_with(replica, &["--large"])
}

/// Runs a program at the client and returns its output.
fn prints(rack: &Rack, program: &str, args: &[&str]) -> Vec<u8> {
    let out = rack.client.command(program).args(args).output().unwrap();
    assert!(out.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    out.stdout
}

#[test]
fn plain_clients_get_large_files_from_two_replicas() {
    let Some(rack) = Rack::new() else { return };
    let files = [("a", 15_500), ("b", 1_000_000), ("c", 20_000_000)]
        .map(|(name, size)| (name, rack.file(name, size)));
    let _servers = [serve(&rack, 0), serve(&rack, 1)];
    rack.wire().only.store(BY_BLOCK, Ordering::Relaxed);
    for (name, content) in &files {
        assert!(rack.get(&[&url(name)]) == *content, "{name}");
        assert!(rack.get(&["-g", &format!("http://[{SERVICE6}]/{name}")]) == *content, "{name} over IPv6");
        assert!(prints(&rack, "wget", &["-q", "-O", "-", &url(name)]) == *content, "{name}: wget");
        let script = format!(
            "import sys,urllib.request as u; sys.stdout.buffer.write(u.urlopen('{}').read())",
            url(name)
        );
        assert!(prints(&rack, "python3", &["-c", &script]) == *content, "{name}: urllib");
    }
    assert!(rack.get(&["--limit-rate", "400k", &url("b")]) == files[1].1, "a slow reader");
    prints(&rack, "sh", &["-c", "echo 4096 8192 8192 > /proc/sys/net/ipv4/tcp_rmem"]);
    assert!(rack.get(&[&url("b")]) == files[1].1, "a small buffer");
    for replica in 0..2 {
        assert!(
            rack.wire().carried[replica].load(Ordering::Relaxed) > 1000,
            "replica {replica} had its share"
        );
        assert_eq!(rack.replicas[replica].counter("TcpPassiveOpens"), 0, "the kernel took no part");
    }
    assert_eq!(rack.client.counter("TcpEstabResets"), 0);
}

#[test]
fn large_downloads_outlive_their_replicas() {
    let Some(rack) = Rack::new() else { return };
    let content = rack.file("file", 6_000_000);
    let mut servers = [Some(serve(&rack, 0)), Some(serve(&rack, 1))];
    rack.wire().only.store(BY_BLOCK, Ordering::Relaxed);
    rack.wire().loss.store(5, Ordering::Relaxed);
    let address = url("file");
    for round in 0..6 {
        let target = round % 2;
        std::thread::scope(|scope| {
            let (rack, content, address) = (&rack, &content, &address);
            let clients: Vec<_> = (0..3)
                .map(|_| scope.spawn(move || assert!(rack.get(&["--limit-rate", "4M", address]) == *content)))
                .collect();
            std::thread::sleep(Duration::from_millis(300));
            // SIGKILL in the middle: packets still go to the dead replica for a while, as before a
            // ToR has detected the death.
            drop(servers[target].take());
            std::thread::sleep(Duration::from_millis(50));
            rack.wire().only.store(1 - target as u32, Ordering::Relaxed);
            for client in clients {
                client.join().expect("a client of the killed replica's");
            }
        });
        servers[target] = Some(serve(&rack, target));
        rack.wire().only.store(BY_BLOCK, Ordering::Relaxed);
    }
    assert_eq!(rack.client.counter("TcpEstabResets"), 0);
}
