//! Answers that take longer than a seal epoch lasts. Needs root; skipped where namespaces cannot be made.

mod rig;

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rig::{Rig, SERVICE, url};
use rivulet_cli::http::{Objects, Site};
use rivulet_cli::serve::stateless::Files;
use rivulet_pktio::Interface;
use rivulet_server::keys::{KeySet, NonceEpoch, SealKey, Secret};
use rivulet_server::service::Service;
use rivulet_server::{Config, Server};

/// Replies of this service are sealed under the last of the epochs, and opened under all of them.
fn service(epochs: &[u16]) -> Service {
    let seal = |epoch: &u16| SealKey { epoch: *epoch, master: Secret([*epoch as u8; 16]) };
    let nonce = NonceEpoch { epoch: 1, k: Secret([1; 8]), k_prime: Secret([2; 8]), opening: Secret([3; 16]) };
    Service {
        name: "files".into(),
        addresses: vec![SERVICE.parse().unwrap()],
        port: 80,
        keys: KeySet {
            service: 1,
            usable_seal: *epochs.last().unwrap(),
            usable_nonce: 1,
            seal: epochs.iter().map(seal).collect(),
            nonce: vec![nonce],
        },
        member: None,
        trust_tor: false,
        plain_tcp: false,
        horizon: Duration::from_secs(4),
        tunnels: Vec::new(),
    }
}

/// Serves in this process, with the keys that come.
fn serve(mut server: Server, mut files: Files, keys: &Receiver<Vec<u16>>, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        server.turn(&mut files, Duration::from_millis(5));
        for epochs in keys.try_iter() {
            server.replace(vec![service(&epochs)]).unwrap();
        }
    }
}

/// The server ends with the test, also when that fails.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// One connection, two requests one after the other, each answered over more epochs than are ever held at a time. The
/// continuations that the answers began with are long refused when they end, and so is the one that the second request
/// would have been sent with.
#[test]
fn answers_outlive_the_keys_that_promised_them() {
    let Some(rig) = Rig::new() else { return };
    rig.server.run("tc qdisc add dev s0 root tbf rate 60mbit burst 64kb limit 256kb");
    rig.server.ip(&format!("addr add {SERVICE}/32 dev lo"));
    let (one, two) = (rig.file("one", 6_000_000), rig.file("two", 3_000_000));
    let site = Site { objects: Objects::open(&rig.www()).unwrap(), uploads: None };
    let interface = Interface::new(Some(rig.server.name()), "s0").unwrap();
    let config = Config { interface, services: vec![service(&[1])], incarnation: 1 };
    let server = Server::open(&config).unwrap();
    let stop = AtomicBool::new(false);
    let (rotate, keys) = channel();
    std::thread::scope(|scope| {
        let told = &stop;
        let serving = scope.spawn(move || serve(server, Files::new(site), &keys, told));
        let _ends = StopAtEnd(&stop);
        let (out_one, out_two) = (rig.dir.path().join("out1"), rig.dir.path().join("out2"));
        let mut command = rig.client.command(rig::RIVULET);
        command.env("RIVULET_SHIM", rig::shim()).args(["run", "--", "curl", "-sS", "-w", "%{num_connects} "]);
        command.arg("-o").arg(&out_one).arg(url("one")).arg("-o").arg(&out_two).arg(url("two"));
        let mut curl = command.stdout(Stdio::piped()).spawn().unwrap();
        let size = |path| std::fs::metadata(path).map_or(0, |m| m.len());
        let mut newest = 1;
        let patience = Instant::now() + Duration::from_secs(120);
        for at in 1..=8 {
            // A rotation for each megabyte that came: the next epoch beside the present one, then the next alone.
            while size(&out_one) + size(&out_two) < at * 1_000_000 && curl.try_wait().unwrap().is_none() {
                assert!(Instant::now() < patience, "no progress at {at} MB, epoch {newest}");
                std::thread::sleep(Duration::from_millis(2));
            }
            rotate.send(vec![newest, newest + 1]).unwrap();
            let beside = size(&out_one) + size(&out_two) + 400_000;
            while size(&out_one) + size(&out_two) < beside && curl.try_wait().unwrap().is_none() {
                assert!(Instant::now() < patience, "no progress beside {newest}");
                std::thread::sleep(Duration::from_millis(2));
            }
            newest += 1;
            rotate.send(vec![newest]).unwrap();
        }
        let result = curl.wait_with_output().unwrap();
        stop.store(true, Ordering::Release);
        serving.join().unwrap();
        assert!(result.status.success(), "{:?}", result.status);
        assert_eq!(String::from_utf8_lossy(&result.stdout), "1 0 ", "one connection for both");
        assert!(std::fs::read(&out_one).unwrap() == one && std::fs::read(&out_two).unwrap() == two);
    });
}
