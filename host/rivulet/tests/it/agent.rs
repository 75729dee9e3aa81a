//! `rivulet agent`: keys for serving processes without a controller, and heartbeats for services of
//! the kernel's TCP. Needs root; skipped if namespaces cannot be created.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Stdio;

use crate::rig::{RIVULET, Rig, url};
use prost::Message;
use rivulet_agent::proto::{NonceKey, Plain, SealKey, Service, Update};
use rivulet_packet::heartbeat::{ETHER_TYPE, Heartbeat};
use rivulet_pktio::filter::Rule;
use rivulet_pktio::testing::{Process, eventually};
use rivulet_pktio::{AfPacket, Config, Filter, Interface, PacketIo};

/// A service as a controller sends it.
pub fn service(rig: &Rig) -> Service {
    Service {
        id: 1,
        name: "files".into(),
        addresses: vec![vec![10, 9, 0, 1]],
        port: 80,
        pool: 1,
        replica: 2,
        // Answers are sent to the ToR; here that is the client's interface.
        tor_mac: rig.client.mac("c0").into(),
        heartbeat_interval_us: 10_000,
        liveness_bound_us: 100_000,
        trust_tor: false,
        plain: Plain::Kernel.into(),
        seal_keys: vec![SealKey { epoch: 1, master: vec![1; 16] }],
        nonce_keys: vec![NonceKey { epoch: 1, k: vec![1; 8], k_prime: vec![2; 8], opening: vec![3; 16] }],
        usable_seal_epoch: 1,
        usable_nonce_epoch: 1,
        horizon_us: 4_000_000,
        tunnels: Vec::new(),
        ..Service::default()
    }
}

/// Stores services as if a controller had sent them once.
pub fn keep(rig: &Rig, service: Service) {
    let update = Update { version: 3, services: vec![service] };
    let mut file = std::fs::File::options();
    let mut file = file.write(true).create(true).mode(0o600).open(rig.dir.path().join("kept")).unwrap();
    file.write_all(&update.encode_to_vec()).unwrap();
}

pub fn agent(rig: &Rig, flags: &[&str]) -> Process {
    let mut command = rig.server.command(RIVULET);
    command.current_dir(rig.dir.path()).args(["agent", "--name", "r1", "-i", "s0", "--socket", "agent.sock"]);
    command.args(["--keep", "kept", "--controller", "unix:nobody.sock,unix:nobody2.sock"]).args(flags);
    let process = Process(command.spawn().unwrap());
    eventually("the agent's socket", || rig.dir.path().join("agent.sock").exists());
    process
}

fn serve(rig: &Rig) -> Process {
    let mut command = rig.server.command(RIVULET);
    command.current_dir(rig.dir.path()).args(["serve", "www", "-i", "s0", "--name", "r1"]);
    command.args(["--controller", "unix:agent.sock", "--setup-address"]);
    rig.started(Process(command.spawn().unwrap()))
}

/// No controller is running: the agent has the keys, a serving process dies in the middle of a
/// download, the next one gets the keys at once, and the same connection finishes.
#[test]
fn keys_outlive_serving_processes() {
    let Some(rig) = Rig::new() else { return };
    rig.server.run("tc qdisc add dev s0 root tbf rate 40mbit burst 64kb limit 256kb");
    keep(&rig, service(&rig));
    let agent = agent(&rig, &[]);
    let content = rig.file("file", 12_000_000);
    let server = serve(&rig);
    let mut command = rig.get(&["--json", "-o"]);
    let download = command.arg(rig.out()).arg(url("file")).stdout(Stdio::piped()).spawn().unwrap();
    let part = rig.dir.path().join("out.part");
    eventually("progress", || std::fs::metadata(&part).map_or(0, |m| m.len()) > 3_000_000);
    drop(server);
    let server = serve(&rig);
    let result = download.wait_with_output().unwrap();
    assert!(result.status.success());
    assert!(std::fs::read(rig.out()).unwrap() == content);
    server.stop();
    agent.stop();
    assert!(!rig.dir.path().join("agent.sock").exists(), "taken down");
}

/// Receives heartbeats at the client's end, in place of the ToR.
struct Ear(AfPacket);

impl Ear {
    fn new(rig: &Rig) -> Ear {
        let filter = Filter::new(&[Rule::EtherType(ETHER_TYPE)]).unwrap();
        let interface = Interface::new(Some(rig.client.name()), "c0").unwrap();
        Ear(AfPacket::open(&interface, Config { filter: Some(filter), ..Config::default() }).unwrap())
    }

    /// All heartbeats received so far.
    fn all(&mut self) -> Vec<Heartbeat> {
        let count = self.0.recv().unwrap();
        (0..count).map(|i| Heartbeat::parse(&self.0.frame(i).data[14..]).unwrap()).collect()
    }

    /// Waits for a heartbeat for which `wanted` is true.
    fn hear(&mut self, what: &str, wanted: impl Fn(&Heartbeat) -> bool) -> Heartbeat {
        let mut found = None;
        eventually(what, || {
            found = self.all().into_iter().find(&wanted);
            found.is_some()
        });
        found.unwrap()
    }
}

/// A service of the kernel's TCP is ready while it accepts connections; once a serving process is
/// attached, that process sends the heartbeats.
#[test]
fn plain_service_sends_ready_heartbeats_while_it_accepts() {
    let Some(rig) = Rig::new() else { return };
    keep(&rig, service(&rig));
    rig.file("small", 1000);
    let mut ear = Ear::new(&rig);
    let _agent = agent(&rig, &["--plain-tcp", "--health-path", "/small", "--setup-address"]);
    let first = ear.hear("a heartbeat that is not ready", |b| !b.ready);
    assert_eq!((first.pool, first.replica), (1, 2));
    let python = rig.plain_server();
    let ready = ear.hear("a ready heartbeat", |b| b.ready);
    assert_eq!(ready.incarnation, first.incarnation);
    // Plain clients are served, and Rivulet's clients fall back on the same handshake.
    let out = rig.get(&["--json", "-o"]).arg(rig.out()).arg(url("small")).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    drop(python);
    ear.hear("not ready again", |b| !b.ready);

    let _server = serve(&rig);
    // Both processes may have started in the same second; the sequence numbers order their
    // heartbeats within it.
    let agents = |b: &Heartbeat| {
        b.incarnation == first.incarnation && b.sequence.wrapping_sub(first.sequence) < 1 << 17
    };
    ear.hear("the serving process's", |b| !agents(b) && b.ready);
    // Heartbeats in flight at the attachment may still arrive; after that only one process sends.
    // If both sent at equal rates, thirty in a row from one would not occur.
    let mut in_a_row = 0;
    eventually("the serving process to be the only one of its replica that beats", || {
        for beat in ear.all() {
            in_a_row = if agents(&beat) { 0 } else { in_a_row + 1 };
        }
        in_a_row >= 30
    });
}
