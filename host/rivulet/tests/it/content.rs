//! A replica of stateless TCP whose content is not in force, and later comes into force: real
//! clients, and a server in this process. Needs root; skipped if namespaces cannot be created.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rivulet_pktio::testing::{PATIENCE, eventually, read_once};
use rivulet_pktio::{Interface, IoChoice, in_netns};
use rivulet_plain::{Entry, Object, Table};
use rivulet_server::keys::{CookieEpoch, KeySet, Secret};
use rivulet_server::service::{InForce, Plain, Service};
use rivulet_server::{Application, Config, Minisocket, Server};
use rivulet_transport::server::Refusal;

use crate::rig::{Rig, SERVICE, request, url};

/// More bytes than the client's receive buffer, as the test sets it.
const LARGE: usize = 4 << 20;
const BUFFER: &str = "net.ipv4.tcp_rmem=4096 131072 262144";

/// Refuses Rivulet's clients.
struct Nothing;

impl Application for Nothing {
    fn event(&mut self, _: &mut Minisocket<'_, '_>) -> Result<(), Refusal> {
        Err(Refusal::User)
    }
}

/// State that the server's thread shares with the test.
#[derive(Default)]
struct Said {
    stop: AtomicBool,
    changes: AtomicU64,
    ready: AtomicBool,
    refused: AtomicU64,
}

fn table() -> Table {
    let object =
        |body: &[u8]| Entry::Object(Object { kind: "text/plain".into(), hash: [7; 16], body: body.into() });
    let large = object(&vec![7; LARGE]);
    Table::new(vec![("large".into(), large), ("small".into(), object(b"small"))], true).unwrap()
}

/// The service with this content in force, and cookie keys of epochs 1 to `newest`, the last of
/// which is used.
fn service(keys: &KeySet, newest: u16, content: Option<InForce>) -> Service {
    let cookie = |epoch: u16| CookieEpoch { epoch, key: Secret([epoch as u8; 8]) };
    Service {
        content,
        ..Service::standalone(
            "www",
            vec![SERVICE.parse().unwrap()],
            80,
            KeySet { cookie: (1..=newest).map(cookie).collect(), usable_cookie: newest, ..keys.clone() },
            Plain::Stateless,
        )
    }
}

fn serve(mut server: Server, changes: &Receiver<Service>, said: &Said) {
    while !said.stop.load(Ordering::Acquire) {
        server.turn(&mut Nothing, Duration::from_millis(5));
        said.ready.store(server.is_ready(), Ordering::Release);
        let refused = server.counters().plain_refused;
        said.refused.store(refused.iter().sum(), Ordering::Release);
        for service in changes.try_iter() {
            server.replace(vec![service]).unwrap();
            assert_eq!(server.without_content().is_none(), server.is_ready());
            said.ready.store(server.is_ready(), Ordering::Release);
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

fn connect(rig: &Rig) -> TcpStream {
    let there: SocketAddr = format!("{SERVICE}:80").parse().unwrap();
    let stream = in_netns(Some(rig.client.name()), || TcpStream::connect(there)).unwrap().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Requests the file on a connection, and reads the end of its answer.
fn ask(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(request("small").replace("Connection: close\r\n", "").as_bytes())?;
    let mut got = Vec::new();
    while !got.ends_with(b"\r\n\r\nsmall") {
        let mut room = [0; 2048];
        match read_once(stream, &mut room)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            n => got.extend_from_slice(&room[..n]),
        }
    }
    Ok(())
}

/// Starts a download; its client then stops reading.
fn download(rig: &Rig) -> TcpStream {
    let mut stream = connect(rig);
    stream.write_all(request("large").as_bytes()).unwrap();
    stream.read_exact(&mut [0; 100_000]).unwrap();
    stream
}

fn curl(rig: &Rig, seconds: &str) -> bool {
    let mut command = rig.client.command("curl");
    command.args(["-sS", "--max-time", seconds, &url("small")]);
    let out = command.output().unwrap();
    assert!(!out.status.success() || out.stdout == b"small");
    out.status.success()
}

#[test]
fn connections_end_when_their_content_loses_force() {
    let Some(rig) = Rig::new() else { return };
    rig.server.ip(&format!("addr add {SERVICE}/32 dev lo"));
    assert!(rig.client.command("sysctl").args(["-qw", BUFFER]).status().unwrap().success());
    let keys = KeySet::generate(1).unwrap();
    let version = table().version();
    let in_force = |version, epoch| Some(InForce { version, epoch });
    let interface = Interface::new(Some(rig.server.name()), "s0").unwrap();
    let first = service(&keys, 1, in_force(0, 0));
    let config = Config { interface, services: vec![first], incarnation: 1, io: IoChoice::default() };
    let mut server = Server::open(&config).unwrap();
    assert_eq!(server.content(), None);
    server.set_large(true);
    server.set_objects(Arc::new(table()));
    assert_eq!(server.content(), Some(version));
    let said = Said::default();
    let (change, changes) = channel();
    std::thread::scope(|scope| {
        let told = &said;
        scope.spawn(move || serve(server, &changes, told));
        let _ends = StopAtEnd(&said);
        let become_ready = |service: Service, ready: bool| {
            let before = said.changes.load(Ordering::Acquire);
            change.send(service).unwrap();
            let patience = Instant::now() + PATIENCE;
            while said.changes.load(Ordering::Acquire) == before {
                assert!(Instant::now() < patience, "not taken up");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(said.ready.load(Ordering::Acquire), ready);
        };
        assert!(!curl(&rig, "1"), "nothing is decided");
        become_ready(service(&keys, 1, in_force(version ^ 4, 0)), false);
        assert!(!curl(&rig, "1"), "another content is in force");
        become_ready(service(&keys, 1, None), true);
        assert!(curl(&rig, "30"), "nobody decides");
        for (stamps, newest) in [(1, 1), (0, 2)] {
            rig.client.run(&format!("sysctl -qw net.ipv4.tcp_timestamps={stamps}"));
            become_ready(service(&keys, newest, in_force(version, newest - 1)), true);
            let mut connections = [connect(&rig), connect(&rig)];
            let mut downloads: Vec<_> = (0..stamps).map(|_| download(&rig)).collect();
            if stamps == 1 {
                ask(&mut connections[0]).unwrap();
            }
            // A change of keys alone changes nothing for connected clients.
            become_ready(service(&keys, newest + 1, in_force(version, newest - 1)), true);
            if stamps == 1 {
                ask(&mut connections[0]).unwrap();
            }
            // Another content was in force meanwhile; this replica's content is in force again, for
            // connections under the newest key.
            become_ready(service(&keys, newest + 1, in_force(version, newest + 1)), true);
            let before = said.refused.load(Ordering::Acquire);
            for stream in &mut connections {
                let error = ask(stream).expect_err("octets of two contents may come together");
                assert_eq!(error.kind(), ErrorKind::ConnectionReset, "timestamps {stamps}");
            }
            // Only its acknowledgements show that the download is not over.
            for stream in &mut downloads {
                let error = std::io::copy(stream, &mut std::io::sink()).expect_err("it cannot go on");
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            }
            eventually("all are counted", || said.refused.load(Ordering::Acquire) >= before + 2 + stamps);
            assert!(curl(&rig, "30"), "what begins is answered");
        }
    });
}
