//! The tests of `survive.rs` without a store: replicas have only the timestamp that a client
//! echoes.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rivulet_bpf::trods::{FlowKey, Limits, Phase, Pin, Stamped, Trods};
use rivulet_pktio::sockets::Sockets;
use rivulet_pktio::testing::{PATIENCE, eventually, read_once};
use rivulet_pktio::{LinkInfo, in_netns};
use rivulet_trods::lease::clock;
use rivulet_trods::replica::Replica;
use rivulet_trods::ts::LeaveNamed;
use rivulet_trods::ts::hints::{Hint, Hints, PORT, Peers};
use rustix::net::sockopt::{set_socket_keepalive, set_socket_reuseaddr, set_tcp_keepidle};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use crate::survive::{Plan, Rig, SECRET, SERVICE, SERVICE6, TOR, resumes_behind_holes};

/// A rig without a store whose replicas have files of these names and lengths in their tables.
fn rig(plan: &Plan<'_>, files: &[(&str, usize)]) -> Option<Rig> {
    named(&Plan { stores: 0, ..*plan }, files)
}

/// Like [`rig`], with the stores of the plan.
pub fn named(plan: &Plan<'_>, files: &[(&str, usize)]) -> Option<Rig> {
    let rig = Rig::new(&Plan { named: true, ..*plan })?;
    for (name, octets) in files {
        rig.file(name, *octets);
    }
    let list: String = files.iter().map(|(name, _)| format!("/{name}\n")).collect();
    fs::write(rig.files.path().join("www/list"), list).unwrap();
    let service: SocketAddr = plan.service.parse().unwrap();
    let versions = || rig.hosts.iter().map(|host| host.replica.table(&service)).collect::<Vec<_>>();
    eventually("both have the same table", || matches!(versions()[..], [a, b] if a != 0 && a == b));
    Some(rig)
}

pub fn content(rig: &Rig, name: &str) -> Vec<u8> {
    fs::read(rig.files.path().join("www").join(name)).unwrap()
}

fn connected(rig: &Rig) -> TcpStream {
    let to: SocketAddr = SERVICE.parse().unwrap();
    in_netns(Some(rig.client.name()), || TcpStream::connect(to)).unwrap().unwrap()
}

/// Opens a connection and reads a megabyte of a long object.
fn begun(rig: &Rig) -> TcpStream {
    let mut stream = connected(rig);
    stream.write_all(b"GET /large HTTP/1.1\r\nHost: 10.8.9.9:8080\r\n\r\n").unwrap();
    stream.read_exact(&mut vec![0; 1_000_000]).unwrap();
    stream
}

fn got(rig: &Rig) -> Vec<u8> {
    fs::read(rig.files.path().join("got")).unwrap()
}

#[test]
fn unannounced_download_resumes_at_another_replica() {
    for service in [SERVICE, SERVICE6] {
        let Some(rig) = rig(&Plan { service, ..Plan::default() }, &[("large", 20_000_000)]) else { return };
        let mut curl = rig.curl(&format!("-g http://{service}/large"));
        eventually("a third of it", || rig.got() > 7_000_000);
        rig.router.ip("link set x1 down");
        // The second replica learns of the death before a client can reach it.
        rig.tell_named(1, 1);
        rig.steer("replace", 2);
        let status = curl.0.wait().unwrap();
        assert!(status.success(), "{service} {status}: {} octets", rig.got());
        assert!(got(&rig) == content(&rig, "large"));
        let (first, second) = (&rig.hosts[0].replica, &rig.hosts[1].replica);
        eventually("it is counted", || second.counts().adopted == 1 && first.counts().protected == 1);
        assert_eq!(second.counts().refused, 0);
        let unnamed = |of: &Replica| of.counts().unprotected.keys().any(|reason| reason.starts_with("ts_"));
        assert!(!unnamed(first) && !unnamed(second));
    }
}

#[test]
fn download_resumes_after_restart_of_nginx() {
    let Some(mut rig) = rig(&Plan::default(), &[("large", 20_000_000)]) else { return };
    let mut curl = rig.curl(&format!("http://{SERVICE}/large"));
    eventually("a third of it", || rig.got() > 7_000_000);
    rig.restart(0);
    let status = curl.0.wait().unwrap();
    assert!(status.success(), "{status}: {} octets", rig.got());
    assert!(got(&rig) == content(&rig, "large"));
    eventually("it is counted", || rig.hosts[0].replica.counts().adopted == 1);
}

/// The second replica has no hint: the client's own segment shows which part is missing.
#[test]
fn request_to_dead_replica_is_answered_elsewhere() {
    let Some(rig) = rig(&Plan::default(), &[("small", 3000)]) else { return };
    let mut stream = connected(&rig);
    rig.router.ip("link set x1 down");
    rig.steer("replace", 2);
    stream.write_all(b"GET /small HTTP/1.1\r\nHost: 10.8.9.9:8080\r\nConnection: close\r\n\r\n").unwrap();
    rig.tell_named(1, 1);
    let mut said = Vec::new();
    stream.read_to_end(&mut said).unwrap();
    assert!(said.starts_with(b"HTTP/1.1 200 OK\r\n") && said.ends_with(&content(&rig, "small")));
    eventually("it is counted", || rig.hosts[1].replica.counts().adopted == 1);
}

/// The client's next segment must not start another search for a connection being resumed.
#[test]
fn clients_request_reaches_the_adopter() {
    let Some(rig) = rig(&Plan::default(), &[("small", 3000)]) else { return };
    let mut streams = [(); 6].map(|()| connected(&rig));
    rig.router.ip("link set x1 down");
    rig.steer("replace", 2);
    rig.tell_named(1, 1);
    // The first of these requests may arrive before the replica searches.
    streams.iter_mut().for_each(|stream| ask(&rig, stream));
    eventually("they are counted", || rig.hosts[1].replica.counts().adopted == 6);
    let said = rig.client.run("ss -Htin state established dst 10.8.9.9");
    let once = said.lines().filter(|line| line.contains("cwnd:") && !line.contains("bytes_retrans:"));
    assert!(once.count() > 0, "{said}");
}

/// A client without the connection answers with a RST, or opens another on the same ports.
#[test]
fn departed_client_is_not_probed_again() {
    for says in [true, false] {
        let Some(rig) = rig(&Plan::default(), &[("large", 20_000_000)]) else { return };
        let stream = begun(&rig);
        let at = stream.local_addr().unwrap();
        rig.router.ip("link set x1 down");
        rig.steer("replace", 2);
        // Removes the client's socket, as if its machine had been rebooted.
        rig.client.run("ss -K dst 10.8.9.9");
        drop(stream);
        rig.client.run("nft add table ip t");
        rig.client.run("nft add chain ip t in { type filter hook input priority 0 ; }");
        rig.client.run("nft add chain ip t out { type filter hook output priority 0 ; }");
        rig.client.run("nft add rule ip t in tcp sport 8080 ip length 53 counter");
        if !says {
            rig.client.run("nft add rule ip t out tcp flags & rst == rst drop");
        }
        rig.tell_named(1, 1);
        let probes = || {
            let said = rig.client.run("nft list chain ip t in");
            let mut words = said.split_whitespace().skip_while(|word| *word != "packets");
            words.nth(1).and_then(|count| count.parse::<u32>().ok()).unwrap_or_else(|| panic!("{said}"))
        };
        eventually("it is asked", || probes() > 0);
        let _another = (!says).then(|| {
            in_netns(Some(rig.client.name()), || {
                let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
                set_socket_reuseaddr(&socket, true).unwrap();
                bind(&socket, &at).unwrap();
                connect(&socket, &SERVICE.parse::<SocketAddr>().unwrap()).unwrap();
                socket
            })
            .unwrap()
        });
        let before = if says { 0 } else { probes() };
        // Enough for eleven rounds of three probes.
        std::thread::sleep(Duration::from_millis(1200));
        assert!(probes() <= before + 9, "{says}: {} of {before}", probes());
    }
}

/// The response leaves in one piece before the client echoes its timestamp, and the connection
/// stays open, so no further segment of the kernel acknowledges the request.
#[test]
fn complete_response_acknowledges_the_request() {
    for service in [SERVICE, SERVICE6] {
        let Some(rig) = rig(&Plan { service, ..Plan::default() }, &[("small", 10_000)]) else { return };
        // The client would retransmit after 20 s, and must get the acknowledgement sooner.
        rig.client.ip("route change default via 10.8.0.254 rto_min 20s");
        rig.client.ip("-6 route change default via fd00:8::254 rto_min 20s");
        let to: SocketAddr = service.parse().unwrap();
        let mut stream = in_netns(Some(rig.client.name()), || TcpStream::connect(to)).unwrap().unwrap();
        ask(&rig, &mut stream);
        let socket = || rig.client.run("ss -Htin state established");
        eventually("its request is acknowledged", || !socket().contains("unacked:"));
        assert!(!socket().contains("bytes_retrans:"), "{}", socket());
    }
}

/// A hundred and more packets follow a hole, with a megabyte under way: the timestamps must stay
/// within the range that PAWS accepts.
#[test]
fn downloads_resume_with_holes_and_wide_windows() {
    let Some(rig) = rig(&Plan::default(), &[("large", 30_000_000)]) else { return };
    // The megabyte under way waits in this queue.
    rig.router.run("tc qdisc replace dev x0 root tbf rate 100mbit burst 64kb limit 1500kb");
    rig.router.run("nft add table ip t");
    rig.router.run("nft add chain ip t f { type filter hook forward priority 0 ; }");
    rig.router.run("nft add rule ip t f tcp sport 8080 numgen inc mod 3000 == 2999 drop");
    let status = rig.curl(&format!("http://{SERVICE}/large")).0.wait().unwrap();
    assert!(status.success(), "{status}: {} octets", rig.got());
    assert!(got(&rig) == content(&rig, "large"));
    let counts = || rig.hosts[0].replica.counts();
    eventually("it is counted", || counts().protected == 1);
    assert_eq!(counts().unprotected.keys().find(|reason| reason.starts_with("ts_")), None);
}

#[test]
fn data_behind_holes_does_not_stall_the_adopter() {
    let Some(rig) = rig(&Plan::default(), &[("large", 20_000_000)]) else { return };
    resumes_behind_holes(&rig, &content(&rig, "large"), || rig.tell_named(1, 1));
}

#[test]
fn unlisted_object_behaves_as_without_trods() {
    let Some(rig) = rig(&Plan::default(), &[("small", 3000)]) else { return };
    rig.file("other", 5000);
    for (path, octets) in [("small", 3000), ("other", 5000), ("none", 153)] {
        let curl = |arguments: &str| {
            let mut command = rig.client.command("curl");
            let out =
                command.args(arguments.split(' ')).arg(format!("http://{SERVICE}/{path}")).output().unwrap();
            (out.status.success(), out.stdout.len())
        };
        assert_eq!(curl("-s -m 20"), (true, octets), "{path}");
    }
    let counts = || rig.hosts[0].replica.counts();
    eventually("they are counted", || counts().unprotected.get("ts_unlisted") == Some(&2));
    assert_eq!(counts().protected, 1);
}

/// A client answers each probe: segments after the first answer may find limits and no socket yet.
#[test]
fn kernel_rst_does_not_end_adopted_connection() {
    let Some(rig) = rig(&Plan::default(), &[("large", 20_000_000)]) else { return };
    let (client, service) = ("10.8.0.1", SERVICE.parse::<SocketAddr>().unwrap());
    // The nftables rule sends the RSTs that the kernel would send for segments without a socket.
    let adopter = &rig.hosts[1].netns;
    adopter.run("nft add table ip early");
    adopter.run("nft add chain ip early in { type filter hook input priority 0 ; }");
    let clients = format!("iifname r0 ip saddr {client} tcp dport {}", service.port());
    adopter.run(&format!(
        "nft add rule ip early in {clients} limit rate 1/day burst 3 packets counter reject with tcp reset"
    ));
    rig.client.run("nft add table ip heard");
    rig.client.run("nft add chain ip heard in { type filter hook input priority 0 ; }");
    rig.client.run("nft add rule ip heard in tcp flags & rst == rst counter");
    let mut curl = rig.curl(&format!("http://{SERVICE}/large"));
    eventually("a third of it", || rig.got() > 7_000_000);
    rig.router.ip("link set x1 down");
    rig.tell_named(1, 1);
    rig.steer("replace", 2);
    let status = curl.0.wait().unwrap();
    let heard = rig.client.run("nft list chain ip heard in");
    assert!(heard.contains("counter packets 0 "), "{heard}");
    let said = adopter.run("nft list chain ip early in");
    assert!(said.contains("packets 3 "), "{said}");
    assert!(status.success(), "{status}: {} octets", rig.got());
    assert!(got(&rig) == content(&rig, "large"));
    assert_eq!(rig.hosts[1].replica.counts().refused, 0);
}

/// The ToR's choice may change during the search; two replicas must not both adopt.
#[test]
fn connection_adopted_elsewhere_is_not_adopted_here() {
    for is_told in [true, false] {
        let Some(rig) = rig(&Plan::default(), &[("large", 20_000_000)]) else { return };
        let (mut third, mut stream) = Third::begin(&rig);
        rig.router.ip("link set x1 down");
        let other = &rig.hosts[1].replica;
        rig.report_named_death(1, 1, Some(Pin { tor: TOR, holder: 3 }));
        // Waits until the search accepts any segment of the client, not only answers to probes.
        std::thread::sleep(Duration::from_millis(300));
        // This replica is searching for the connection by now.
        if is_told {
            third.tell();
        }
        rig.steer("replace", 2);
        stream.write_all(b"\r\n").unwrap();
        if is_told {
            // The third replica announces the connection at least twice in this time.
            std::thread::sleep(Duration::from_secs(1));
            assert_eq!(other.counts().adopted, 0);
        } else {
            eventually("it goes on here", || other.counts().adopted == 1);
        }
    }
}

/// The holder may not send yet, and its hint is older than the absence.
#[test]
fn returning_replica_gets_no_segments_before_announcing() {
    let Some(rig) = rig(&Plan::default(), &[("large", 20_000_000)]) else { return };
    let mut curl = rig.curl(&format!("http://{SERVICE}/large"));
    eventually("a third of it", || rig.got() > 7_000_000);
    rig.router.ip("link set x1 down");
    rig.tell_named(1, 1);
    rig.change_named(1, u64::MAX);
    // Before this the replica gets no answer from the client.
    rig.steer("replace", 2);
    let status = curl.0.wait().unwrap();
    assert!(status.success(), "{status}: {} octets", rig.got());
    eventually("it is counted", || rig.hosts[1].replica.counts().adopted == 1);
}

/// The client's holder has announced it, and its death was not reported.
#[test]
fn connection_of_live_holder_is_not_adopted() {
    let Some(rig) = rig(&Plan::default(), &[("large", 20_000_000)]) else { return };
    let stream = begun(&rig);
    set_socket_keepalive(&stream, true).unwrap();
    set_tcp_keepidle(&stream, Duration::from_secs(1)).unwrap();
    rig.router.ip("link set x1 down");
    // Another replica died, so segments of unannounced clients are examined.
    rig.report_named_death(1, 5, None);
    rig.steer("replace", 2);
    // Long enough for the client to send a segment.
    std::thread::sleep(Duration::from_millis(1800));
    assert_eq!(rig.hosts[1].replica.counts().adopted, 0);
    rig.tell_named(1, 1);
    eventually("it goes on here", || rig.hosts[1].replica.counts().adopted == 1);
}

/// The first replica answered the handshake; another one got the request and adopted.
#[test]
fn former_holder_drops_an_adopted_connection() {
    let Some(rig) = rig(&Plan::default(), &[("large", 20_000_000)]) else { return };
    let (mut third, _stream) = Third::begin(&rig);
    let there = || rig.hosts[0].netns.run("ss -Htn state established dst 10.8.0.1").lines().count();
    assert_eq!(there(), 1);
    // Stops the server, because it would close the connection of a client that does not read.
    rig.client.run(&format!("kill -STOP {}", rig.hosts[0].server.0.id()));
    third.tell();
    eventually("it is another's", || there() == 0);
}

/// TCP takes a drop on its own host as congestion; withheld segments must not look like drops.
#[test]
fn withheld_segments_do_not_halve_the_window() {
    let Some(rig) = rig(&Plan::default(), &[("small", 3000)]) else { return };
    // Other congestion controls, such as BBR, do not react to such losses.
    rig.hosts[0].netns.ip("route change default via 10.8.1.254 congctl reno");
    let mut stream = connected(&rig);
    ask(&rig, &mut stream);
    let told = rig.hosts[0].netns.run("ss -Htin state established dst 10.8.0.1");
    assert!(told.contains(" reno ") && !told.contains(" ssthresh:"), "{told}");
}

/// Leaves the first replica's connections (`drains`), or a former process's, to this holder.
fn leave(rig: &Rig, holder: Option<u8>, drains: bool) {
    let to = holder.map(|holder| LeaveNamed {
        services: vec![SERVICE.parse().unwrap()],
        drains,
        to: Box::new(move |_, _| Some(Pin { tor: TOR, holder })),
    });
    rig.hosts[0].replica.leave(vec![], to.into_iter().collect());
}

/// Requests a short object on a resumed connection.
fn ask(rig: &Rig, stream: &mut TcpStream) {
    stream.write_all(b"GET /small HTTP/1.1\r\nHost: 10.8.9.9:8080\r\n\r\n").unwrap();
    let (mut said, want) = (Vec::new(), content(rig, "small"));
    while !said.ends_with(&want) {
        let mut octets = [0; 4096];
        let got = read_once(stream, &mut octets).unwrap();
        assert!(got > 0, "it ended behind {said:?}");
        said.extend_from_slice(&octets[..got]);
    }
    assert!(said.starts_with(b"HTTP/1.1 200 OK\r\n"));
}

/// Idle connections and downloads; some hints are lost.
#[test]
fn connections_of_drained_replica_resume_elsewhere() {
    for is_lost in [false, true] {
        let Some(rig) = rig(&Plan::default(), &[("large", 20_000_000), ("small", 3000)]) else { return };
        let mut idle = connected(&rig);
        ask(&rig, &mut idle);
        let mut curl = rig.curl(&format!("http://{SERVICE}/large"));
        eventually("a third of it", || rig.got() > 7_000_000);
        let (first, second) = (&rig.hosts[0], &rig.hosts[1]);
        second.netns.run("nft add table ip t");
        second.netns.run("nft add chain ip t in { type filter hook input priority 0 ; }");
        if is_lost {
            second.netns.run(&format!("nft add rule ip t in udp dport {PORT} drop"));
        }
        leave(&rig, Some(2), true);
        rig.steer("replace", 2);
        eventually("it has left", || first.replica.counts().moved == 2);
        if is_lost {
            std::thread::sleep(Duration::from_millis(100));
            assert_eq!((first.replica.counts().named, second.replica.counts().adopted), (2, 0));
            second.netns.run("nft flush chain ip t in");
        }
        let status = curl.0.wait().unwrap();
        assert!(status.success(), "{status}: {} octets", rig.got());
        assert!(got(&rig) == content(&rig, "large"));
        ask(&rig, &mut idle);
        eventually("they went on there", || second.replica.counts().adopted == 2);
        eventually("nothing is on its way", || first.replica.counts().named == 0);
        assert_eq!(first.netns.run("ss -Htn state established dst 10.8.0.1").lines().count(), 0);
        assert_eq!((first.replica.counts().moved, second.replica.counts().refused), (2, 0));
    }
}

/// The expected adopter never adopts the connection.
#[test]
fn connection_without_adopter_returns() {
    let Some(rig) = rig(&Plan::default(), &[("large", 20_000_000)]) else { return };
    let mut curl = rig.curl(&format!("http://{SERVICE}/large"));
    eventually("a third of it", || rig.got() > 7_000_000);
    leave(&rig, Some(3), true);
    let counts = || rig.hosts[0].replica.counts();
    eventually("it has left", || counts().moved == 1);
    leave(&rig, None, true);
    let status = curl.0.wait().unwrap();
    assert!(status.success(), "{status}: {} octets", rig.got());
    assert!(got(&rig) == content(&rig, "large"));
    eventually("it is counted", || counts().adopted == 1);
}

/// The kernel would continue connections of another process with its own timestamps.
#[test]
fn new_process_gets_no_clients_before_others_adopted() {
    let plan = Plan { stores: 0, named: true, ..Plan::default() };
    for has in [false, true] {
        let Some(mut rig) = rig(&plan, &[("large", 20_000_000)]) else { return };
        let _stream = has.then(|| begun(&rig));
        assert!(!rig.hosts[0].replica.is_settling());
        rig.another(&plan);
        let service: SocketAddr = SERVICE.parse().unwrap();
        eventually("it has the table", || rig.hosts[0].replica.table(&service) != 0);
        assert_eq!(rig.hosts[0].replica.is_settling(), has);
        if has {
            eventually("they have had the time", || !rig.hosts[0].replica.is_settling());
        }
    }
}

/// The kernel must not continue a dead process's named connections with its own timestamps: other
/// replicas adopt them. The next process announces those that were never announced.
#[test]
fn connections_of_dead_process_are_left_to_others() {
    let plan = Plan { stores: 0, named: true, ..Plan::default() };
    let service: SocketAddr = SERVICE.parse().unwrap();
    for (died, told) in [(true, true), (true, false), (false, false)] {
        let Some(mut rig) = rig(&plan, &[("large", 20_000_000), ("small", 3000)]) else { return };
        let host = rig.hosts[0].netns.name().to_owned();
        let index = LinkInfo::of(&rig.hosts[0].netns.interface("r0")).unwrap().index;
        let sockets = Sockets::open(Some(&host)).unwrap();
        if !told {
            rig.router.ip("link set x1 address 02:00:00:00:00:01");
            let second = &rig.hosts[1].netns;
            second.run("nft add table ip t");
            second.run("nft add chain ip t in { type filter hook input priority 0 ; }");
            second.run(&format!("nft add rule ip t in ip saddr 10.8.1.1 udp dport {PORT} drop"));
        }
        let (third, mut stream) = Third::begin(&rig);
        // A RST at the next sequence number of an idle client would end its connection.
        let mut idle = connected(&rig);
        ask(&rig, &mut idle);
        assert_eq!(sockets.established(service).unwrap().len(), 2);
        let mut rest = Vec::new();
        // The BPF programs of a former process, still attached, which let no segment leave.
        let mut programs = Trods::load().unwrap();
        if died {
            in_netns(Some(&host), || programs.attach(index)).unwrap().unwrap();
        }
        if told || !died {
            // The router drops everything that those programs would hold back, except a RST.
            rig.router.run("nft add table ip t");
            rig.router.run("nft add chain ip t f { type filter hook forward priority 0 ; }");
            rig.router.run("nft add rule ip t f iifname x1 tcp flags & rst == 0 drop");
        } else {
            programs.protect(service, 0).unwrap();
            // Reading the data opens the window: its update leaves before the BPF programs watch.
            stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            assert_eq!(stream.read_to_end(&mut rest).unwrap_err().kind(), ErrorKind::WouldBlock);
            rig.steer("replace", 2);
            rig.tell_named(1, 1);
            // The process died after it had named the connection and before it announced it.
            programs.stamps().put(&third.key, &third.stamped()).unwrap();
            programs.killed();
            rig.hosts[1].netns.run("nft delete table ip t");
        }
        rig.another(&plan);
        leave(&rig, Some(2), false);
        eventually("it has the table", || rig.hosts[0].replica.table(&service) != 0);
        assert_eq!(sockets.established(service).unwrap().len(), if died { 0 } else { 2 });
        assert!(rig.hosts[0].replica.is_settling());
        idle.set_nonblocking(true).unwrap();
        assert_eq!(idle.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock, "nobody is reset");
        if died {
            rig.steer("replace", 2);
            rig.tell_named(1, 1);
            let content = content(&rig, "large");
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            while rest.len() < 18_000_000 || !content.ends_with(&rest) {
                let mut more = [0; 65_536];
                let count = read_once(&mut stream, &mut more).unwrap();
                assert!(count > 0 && rest.len() < content.len(), "{} octets", rest.len());
                rest.extend_from_slice(&more[..count]);
            }
        }
    }
}

/// A third replica on the router: it has no connections and sends the test's hints.
struct Third {
    hints: Hints,
    key: FlowKey,
    hint: Hint,
}

impl Third {
    /// Starts it with a client in the middle of a long object; the connection was announced to it.
    fn begin(rig: &Rig) -> (Third, TcpStream) {
        let to: SocketAddr = SERVICE.parse().unwrap();
        let mut hints = in_netns(Some(rig.router.name()), || Hints::open(PORT)).unwrap().unwrap();
        let others = [1, 2].map(|n| (n, ([10, 8, n, 1], PORT).into())).to_vec();
        hints.set_peers([(to, Peers { own: 3, others, secret: SECRET })].into());
        let stream = begun(rig);
        let key = FlowKey::new(stream.local_addr().unwrap(), to);
        let mut told = None;
        eventually("it is told of it", || {
            hints.hear(Instant::now());
            told = hints.holder(&key).map(|(_, hint)| *hint);
            told.is_some()
        });
        (Third { hints, key, hint: told.unwrap() }, stream)
    }

    /// State of the connection in the BPF map of the replica that named it.
    fn stamped(&self) -> Stamped {
        let Hint { client_next, base, object, generation, .. } = self.hint;
        let (phase, adopted, client_fin) = (Phase::Echoed, false, false);
        let (heard, isn, total, index, echo) = (clock(), 0, 0, 0, 0);
        Stamped {
            heard,
            isn,
            client_next,
            base,
            object,
            total,
            phase,
            client_fin,
            adopted,
            generation,
            index,
            echo,
            limits: Limits::default(),
        }
    }

    /// Announces that this replica has adopted the connection.
    fn tell(&mut self) {
        self.hints.tell(self.key, Hint { generation: self.hint.generation.next(), ..self.hint });
        self.hints.flush();
    }
}
