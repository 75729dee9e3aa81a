//! Answers that take longer than a seal epoch lasts. Needs root; skipped if namespaces cannot be
//! created.

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::rig::{self, Rig, SERVICE, url};
use rivulet_cli::http::{Objects, Site};
use rivulet_cli::serve::stateless::Files;
use rivulet_pktio::{Interface, IoChoice};
use rivulet_server::keys::{KeySet, NonceEpoch, SealKey, Secret};
use rivulet_server::service::Service;
use rivulet_server::{Config, Server};

/// The service with these seal epochs: the last one seals, and all of them open.
fn service(epochs: &[u16]) -> Service {
    let seal = |epoch: &u16| SealKey { epoch: *epoch, master: Secret([*epoch as u8; 16]) };
    let nonce = NonceEpoch { epoch: 1, k: Secret([1; 8]), k_prime: Secret([2; 8]), opening: Secret([3; 16]) };
    Service::standalone(
        "files",
        vec![SERVICE.parse().unwrap()],
        80,
        KeySet {
            service: 1,
            usable_seal: *epochs.last().unwrap(),
            usable_nonce: 1,
            usable_tor: 0,
            usable_cookie: 0,
            seal: epochs.iter().map(seal).collect(),
            nonce: vec![nonce],
            tor: Vec::new(),
            cookie: Vec::new(),
        },
        rivulet_server::service::Plain::None,
    )
}

/// Number of responses between two epochs.
const BETWEEN: u64 = 400;
/// Number of epochs held at a time: they cover many windows of this path, in which the client's
/// continuation is sealed again, and much less than an answer.
const HELD: u16 = 4;

/// State that the server's thread shares with the test.
#[derive(Default)]
struct Said {
    stop: AtomicBool,
    responses: AtomicU64,
    /// Changes of keys that the server has applied.
    changes: AtomicU64,
}

/// Serves in this process, with the keys that arrive on the channel.
fn serve(mut server: Server, mut files: Files, keys: &Receiver<Vec<u16>>, said: &Said) {
    while !said.stop.load(Ordering::Acquire) {
        server.turn(&mut files, Duration::from_millis(5));
        said.responses.store(server.counters().responses, Ordering::Release);
        for epochs in keys.try_iter() {
            server.replace(vec![service(&epochs)]).unwrap();
            said.changes.fetch_add(1, Ordering::Release);
        }
    }
}

/// Ends the server with the test, even if that fails.
struct StopAtEnd<'a>(&'a Said);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Release);
    }
}

/// One connection with two consecutive requests, each answered over more epochs than are ever held
/// at a time. The continuations from the answers' beginnings have expired when they end, and so has
/// the one with which the second request would have been sent.
#[test]
fn answers_outlive_the_keys_of_their_continuations() {
    let Some(rig) = Rig::new() else { return };
    rig.server.run("tc qdisc add dev s0 root tbf rate 60mbit burst 64kb limit 128kb");
    rig.server.ip(&format!("addr add {SERVICE}/32 dev lo"));
    let (one, two) = (rig.file("one", 6_000_000), rig.file("two", 3_000_000));
    let site = Site { objects: Objects::open(&rig.www()).unwrap(), uploads: None };
    let interface = Interface::new(Some(rig.server.name()), "s0").unwrap();
    let config = Config { interface, services: vec![service(&[1])], incarnation: 1, io: IoChoice::default() };
    let server = Server::open(&config).unwrap();
    let said = Said::default();
    let (rotate, keys) = channel();
    std::thread::scope(|scope| {
        let told = &said;
        let serving = scope.spawn(move || serve(server, Files::new(site), &keys, told));
        let _ends = StopAtEnd(&said);
        let (out_one, out_two) = (rig.dir.path().join("out1"), rig.dir.path().join("out2"));
        let mut command = rig.client.command(rig::RIVULET);
        command.env("RIVULET_SHIM", rig::shim()).args(["run", "--", "curl", "-sS", "-w", "%{num_connects} "]);
        command.arg("-o").arg(&out_one).arg(url("one")).arg("-o").arg(&out_two).arg(url("two"));
        let mut curl = command.stdout(Stdio::piped()).spawn().unwrap();
        let patience = Instant::now() + Duration::from_secs(120);
        let mut until = |what: &str, done: &dyn Fn() -> bool| {
            while !done() && curl.try_wait().unwrap().is_none() {
                assert!(Instant::now() < patience, "no progress: {what}");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        for newest in 2..=18u16 {
            let epochs: Vec<u16> = (newest.saturating_sub(HELD - 1).max(1)..=newest).collect();
            let what = format!("{epochs:?}");
            let changes = said.changes.load(Ordering::Acquire);
            rotate.send(epochs).unwrap();
            until(&what, &|| said.changes.load(Ordering::Acquire) > changes);
            let responses = said.responses.load(Ordering::Acquire);
            until(&what, &|| said.responses.load(Ordering::Acquire) > responses + BETWEEN);
        }
        let result = curl.wait_with_output().unwrap();
        said.stop.store(true, Ordering::Release);
        serving.join().unwrap();
        assert!(result.status.success(), "{:?}", result.status);
        assert_eq!(String::from_utf8_lossy(&result.stdout), "1 0 ", "one connection for both");
        assert!(std::fs::read(&out_one).unwrap() == one && std::fs::read(&out_two).unwrap() == two);
    });
}
