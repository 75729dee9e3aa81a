//! An adopter's web server sees the client's address, so that its access rules, limits and logs by
//! address stay right. Uses a real nginx; needs root, and is skipped if namespaces cannot be
//! created.

use std::fs;
use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use rivulet_pktio::in_netns;
use rivulet_pktio::testing::{Netns, PATIENCE, Process, eventually, read_once};
use rivulet_trods::{AdoptAs, Settings};

use crate::moves;
use crate::support::{CLOSED, nginx_with};
use crate::survive::{Plan, Rig, SERVICE, SERVICE6};

const ADDRESSES: [&str; 2] = ["10.8.0.1", "fd00:8::1"];

/// Starts nginx, which denies the client `/denied`, limits its address to one request of `/limited`
/// a minute, and logs addresses.
fn guarded(ns: &Netns, service: &str, root: &Path, dir: &Path) -> Process {
    let log = dir.join("access").display().to_string();
    let deny: String = ADDRESSES.map(|address| format!("deny {address};")).concat();
    nginx_with(ns, service, root, dir, &|text| {
        let zone = "log_format from '$remote_addr $uri $status';\n\
                    limit_req_zone $binary_remote_addr zone=z:1m rate=1r/m;\nserver {";
        let places = format!(
            "access_log {log} from; location /denied {{ {deny} }} location /limited {{ limit_req zone=z; }} }}"
        );
        text.replace("server {", zone).replacen("; }", &format!("; {places}"), 1)
    })
}

fn rig(service: &str, adopt_as: AdoptAs) -> Option<Rig> {
    let settings = Settings { adopt_as, ..CLOSED };
    let rig = Rig::new(&Plan { service, settings, server: &guarded, ..Plan::default() })?;
    for name in ["small", "denied", "limited", "large"] {
        rig.file(name, if name == "large" { 8_000_000 } else { 3000 });
    }
    Some(rig)
}

fn connect(rig: &Rig, service: &str) -> TcpStream {
    let to: SocketAddr = service.parse().unwrap();
    let stream = in_netns(Some(rig.client.name()), || TcpStream::connect(to)).unwrap().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Requests a file and returns the status of the answer.
fn get(stream: &mut TcpStream, name: &str) -> u16 {
    stream.write_all(format!("GET /{name} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes()).unwrap();
    let mut got = Vec::new();
    let end = |got: &[u8]| got.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4);
    loop {
        let mut bytes = [0; 4096];
        let count = read_once(stream, &mut bytes).unwrap();
        assert!(count > 0, "{name}: the connection ended");
        got.extend_from_slice(&bytes[..count]);
        let Some(end) = end(&got) else { continue };
        let head = String::from_utf8_lossy(&got[..end]).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        if got.len() >= end + length.parse::<usize>().unwrap() {
            return head.split(' ').nth(1).unwrap().parse().unwrap();
        }
    }
}

/// Addresses and statuses in a replica's log for requests of this name.
fn logged(rig: &Rig, of: usize, name: &str) -> Vec<(String, String)> {
    let lines = fs::read_to_string(rig.hosts[of].dir().join("access")).unwrap_or_default();
    let of_name = lines.lines().filter(|line| line.contains(&format!(" /{name} ")));
    let words = |line: &str| {
        let (from, status) = (line.split(' ').next().unwrap(), line.rsplit(' ').next().unwrap());
        (from.to_owned(), status.to_owned())
    };
    of_name.map(words).collect()
}

/// Cuts off or drains the first replica.
fn leave(rig: &Rig, how: &str) {
    if how == "drain" {
        moves::follow(rig);
        rig.steer("replace", 2);
        moves::drain(rig);
    } else {
        rig.router.ip("link set x1 down");
        rig.steer("replace", 2);
        rig.tell(1, 1);
    }
    eventually("it is adopted", || rig.hosts[1].replica.counts().adopted == 1);
}

#[test]
fn denied_and_limited_client_stays_so_after_adoption_and_drain() {
    for (service, address, how) in [
        (SERVICE, ADDRESSES[0], "death"),
        (SERVICE, ADDRESSES[0], "drain"),
        (SERVICE6, ADDRESSES[1], "death"),
    ] {
        let Some(rig) = rig(service, AdoptAs::Client) else { return };
        let mut stream = connect(&rig, service);
        assert_eq!((get(&mut stream, "small"), get(&mut stream, "denied")), (200, 403), "before");
        leave(&rig, how);
        let after = ["small", "denied", "limited", "limited", "denied"].map(|name| get(&mut stream, name));
        assert_eq!(after, [200, 403, 200, 503, 403], "{service} {how}");
        for (name, statuses) in
            [("small", &["200"][..]), ("denied", &["403", "403"]), ("limited", &["200", "503"])]
        {
            let want: Vec<_> = statuses.iter().map(|status| (address.to_owned(), (*status).into())).collect();
            eventually("nginx has logged it", || logged(&rig, 1, name).len() >= want.len());
            assert_eq!(logged(&rig, 1, name), want, "{service} {how}");
        }
    }
}

#[test]
fn rest_is_requested_from_the_clients_address() {
    let Some(rig) = rig(SERVICE, AdoptAs::Client) else { return };
    let content = fs::read(rig.files.path().join("www/large")).unwrap();
    let mut curl = rig.curl(&format!("http://{SERVICE}/large"));
    eventually("some of it", || rig.got() > 1_000_000);
    leave(&rig, "death");
    assert!(curl.0.wait().unwrap().success());
    assert!(fs::read(rig.files.path().join("got")).unwrap() == content);
    let asked = logged(&rig, 1, "large");
    assert!(asked.iter().any(|(from, status)| from == ADDRESSES[0] && status == "206"), "{asked:?}");
}

/// The service is configured with `adopt_as: server`.
#[test]
fn server_gets_its_own_address_if_configured() {
    let Some(rig) = rig(SERVICE, AdoptAs::Server) else { return };
    let mut stream = connect(&rig, SERVICE);
    assert_eq!(get(&mut stream, "small"), 200);
    leave(&rig, "death");
    assert_eq!(get(&mut stream, "small"), 200);
    eventually("nginx has logged it", || !logged(&rig, 1, "small").is_empty());
    assert_eq!(logged(&rig, 1, "small"), [("10.8.9.9".to_owned(), "200".to_owned())]);
}

/// On a host that does not route packets for the client's address back to the agent.
#[test]
fn client_is_reset_where_its_address_cannot_be_carried() {
    let Some(rig) = rig(SERVICE, AdoptAs::Client) else { return };
    let mut stream = connect(&rig, SERVICE);
    assert_eq!(get(&mut stream, "small"), 200);
    let netns = &rig.hosts[1].netns;
    leave(&rig, "death");
    netns.ip("rule del priority 100");
    stream.write_all(b"GET /denied HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let got = read_once(&mut stream, &mut [0; 100]);
    assert!(got.as_ref().is_err_and(|e| e.kind() == ErrorKind::ConnectionReset), "{got:?}");
    eventually("it is counted", || rig.hosts[1].replica.counts().refused == 1);
}
