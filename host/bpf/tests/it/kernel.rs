//! Kernel TCP with the Congestion Manager, on veth pairs between network namespaces. Each test
//! registers another name.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::thread;

use rivulet_bpf::cm::{self, Cm, Macroflow, Options};
use rivulet_bpf::kernel::{Feature, skipped};
use rivulet_pktio::testing::{Netns, eventually};

const SERVER: &str = "192.0.2.1";
const CLIENT: &str = "192.0.2.2";
const MSS: u64 = 1448;

/// A client and a server; the server's connections use the Congestion Manager.
struct Hosts {
    server: Netns,
    client: Netns,
}

fn hosts() -> Option<Hosts> {
    if skipped(Feature::StructOpsLink) {
        return None;
    }
    let (server, client) = (Netns::new("rvcm-s")?, Netns::new("rvcm-c")?);
    server.quiet();
    client.quiet();
    server.veth("v", &client, "v");
    server.ip(&format!("addr add {SERVER}/24 dev v"));
    client.ip(&format!("addr add {CLIENT}/24 dev v"));
    Some(Hosts { server, client })
}

/// Runs a closure in a network namespace, on a separate thread.
fn within<T: Send>(ns: &Netns, f: impl FnOnce() -> T + Send) -> T {
    let path = format!("/run/netns/{}", ns.name());
    thread::scope(|s| {
        let run = s.spawn(move || {
            let file = fs::File::open(path).expect("the namespace");
            // SAFETY: changes the namespace of this thread only.
            assert_eq!(unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) }, 0);
            f()
        });
        run.join().unwrap_or_else(|e| std::panic::resume_unwind(e))
    })
}

fn choose(socket: &impl AsRawFd, name: &str) {
    // SAFETY: the name lives through the call.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_ptr().cast(),
            name.len() as libc::socklen_t,
        )
    };
    assert_eq!(rc, 0, "TCP_CONGESTION {name}: {}", std::io::Error::last_os_error());
}

/// A field of `struct tcp_info`, by its offset.
fn info(socket: &impl AsRawFd, offset: usize) -> u32 {
    let mut octets = [0u8; 256];
    let mut length = octets.len() as libc::socklen_t;
    // SAFETY: the buffer has the given size.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            octets.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    assert_eq!(rc, 0, "TCP_INFO: {}", std::io::Error::last_os_error());
    u32::from_ne_bytes(*octets[offset..].first_chunk().unwrap())
}

fn window(socket: &impl AsRawFd) -> u64 {
    u64::from(info(socket, 80))
}

impl Hosts {
    /// Opens connections from the client; the server's ends use the congestion control `name`.
    fn connect(&self, name: &str, count: usize) -> Vec<(TcpStream, TcpStream)> {
        let listener = within(&self.server, || TcpListener::bind((SERVER, 0)).unwrap());
        choose(&listener, name);
        let address = listener.local_addr().unwrap();
        (0..count)
            .map(|_| {
                let client = within(&self.client, || TcpStream::connect(address).unwrap());
                (listener.accept().unwrap().0, client)
            })
            .collect()
    }

    /// Sends bytes and compares them with those that arrive.
    fn transfer(pair: &mut (TcpStream, TcpStream), bytes: usize) {
        let (server, client) = pair;
        let data: Vec<u8> = (0..bytes).map(|n| (n % 251) as u8).collect();
        thread::scope(|s| {
            s.spawn(|| server.write_all(&data).unwrap());
            let mut got = vec![0; bytes];
            client.read_exact(&mut got).unwrap();
            assert!(got == data, "other bytes arrived");
        });
    }
}

fn load(name: &str) -> Cm {
    Cm::load(&Options { name, ..Options::default() }).unwrap_or_else(|e| panic!("{e}"))
}

/// The only macroflow, once its connections have no outstanding bytes.
fn settled(cm: &Cm) -> Macroflow {
    let mut found = vec![];
    eventually("all is acknowledged", || {
        found = cm.macroflows().unwrap();
        found.iter().all(|m| m.numbers.outstanding() == 0)
    });
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

#[test]
fn later_connection_starts_with_learnt_window() {
    let Some(hosts) = hosts() else { return };
    let cm = load("rvcm_later");
    let mut first = hosts.connect("rvcm_later", 1).remove(0);
    Hosts::transfer(&mut first, 300_000);
    let m = settled(&cm);
    assert_eq!((m.destination.to_string().as_str(), m.dscp, m.numbers.flows), (CLIENT, 0, 1));
    assert!(m.numbers.sent >= 300_000 && m.numbers.srtt > 0, "{m:?}");
    let learnt = m.numbers.cwnd / MSS;
    assert!(learnt >= 20, "{m:?}");
    drop(first);
    eventually("it left", || cm.macroflows().unwrap()[0].numbers.flows == 0);
    let mut second = hosts.connect("rvcm_later", 1).remove(0);
    second.0.write_all(b"x").unwrap();
    // The window counts from the first transmission. A second of idleness may have halved it
    // meanwhile.
    assert!(window(&second.0) >= learnt / 4 && window(&second.0) > 10, "{} of {learnt}", window(&second.0));
    Hosts::transfer(
        &mut (second.0, {
            let mut c = second.1;
            let mut x = [0];
            c.read_exact(&mut x).unwrap();
            c
        }),
        100_000,
    );
    assert_eq!(settled(&cm).numbers.joined, 2);
    // A connection with Reno does not use the macroflow's window.
    let reno = hosts.connect("reno", 1).remove(0);
    (&reno.0).write_all(b"x").unwrap();
    assert_eq!(window(&reno.0), 10);
}

#[test]
fn concurrent_connections_share_one_window() {
    let Some(hosts) = hosts() else { return };
    hosts.server.shape("v", "20mbit");
    let cm = load("rvcm_share");
    let mut pairs = hosts.connect("rvcm_share", 4);
    let mut sums = vec![];
    thread::scope(|s| {
        let servers: Vec<_> = pairs.iter().map(|p| p.0.try_clone().unwrap()).collect();
        for pair in &mut pairs {
            s.spawn(|| Hosts::transfer(pair, 1_500_000));
        }
        eventually("they send", || cm.macroflows().unwrap().iter().any(|m| m.numbers.hungry == 4));
        for _ in 0..50 {
            let windows: Vec<u64> = servers.iter().map(window).collect();
            let numbers = cm.macroflows().unwrap()[0].numbers;
            if numbers.hungry == 4 {
                sums.push((windows.iter().sum::<u64>(), numbers.cwnd / MSS));
            }
            thread::sleep(std::time::Duration::from_millis(10));
        }
    });
    // Each connection learns the window at its next acknowledgement, so the sum lags behind it.
    let near = sums.iter().filter(|(sum, window)| sum.abs_diff(*window) <= 8 + window / 4).count();
    assert!(sums.len() >= 10 && near * 10 >= sums.len() * 7, "{sums:?}");
    let m = settled(&cm);
    assert_eq!(m.numbers.flows, 4);
    assert!(m.numbers.sent >= 6_000_000 && m.numbers.reported == m.numbers.sent, "{m:?}");
}

#[test]
fn losses_reduce_window_and_data_arrives() {
    let Some(hosts) = hosts() else { return };
    hosts.server.run("tc qdisc replace dev v root tbf rate 30mbit burst 4kb limit 30kb");
    hosts.server.run("ethtool -K v tso off gso off");
    let cm = load("rvcm_loss");
    let mut pairs = hosts.connect("rvcm_loss", 2);
    thread::scope(|s| pairs.iter_mut().for_each(|pair| drop(s.spawn(|| Hosts::transfer(pair, 2_000_000)))));
    let m = settled(&cm);
    assert!(m.numbers.reductions >= 3, "{m:?}");
    assert!(m.numbers.ssthresh < 200 * MSS, "{m:?}");
    assert!(hosts.server.counter("TcpRetransSegs") > 0);
}

#[test]
fn different_destinations_do_not_share_macroflow() {
    let Some(hosts) = hosts() else { return };
    hosts.client.ip("addr add 192.0.2.3/24 dev v");
    let cm = load("rvcm_apart");
    let mut here = hosts.connect("rvcm_apart", 2);
    // The client's end uses it, too: another direction in another namespace.
    choose(&here[1].1, "rvcm_apart");
    let (a, b) = here.split_at_mut(1);
    Hosts::transfer(&mut a[0], 50_000);
    let (server, client) = &mut b[0];
    Hosts::transfer(&mut (client.try_clone().unwrap(), server.try_clone().unwrap()), 50_000);
    let mut found = cm.macroflows().unwrap();
    found.sort_by_key(|m| m.destination);
    let to: Vec<_> = found.iter().map(|m| (m.destination.to_string(), m.numbers.joined)).collect();
    assert_eq!(to, [(SERVER.to_owned(), 1), (CLIENT.to_owned(), 2)]);
    assert_ne!(found[0].netns, found[1].netns);
}

fn set_tos(socket: &impl AsRawFd, tos: libc::c_int) {
    let value = (&raw const tos).cast();
    // SAFETY: an int, as the option wants, which lives through the call.
    let rc = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_IP, libc::IP_TOS, value, 4) };
    assert_eq!(rc, 0);
}

#[test]
fn code_points_and_families_have_separate_macroflows() {
    let Some(hosts) = hosts() else { return };
    hosts.server.run("sysctl -qw net.ipv6.conf.all.disable_ipv6=0 net.ipv6.conf.lo.disable_ipv6=0");
    let cm = load("rvcm_dscp");
    within(&hosts.server, || {
        // The last connection uses IPv4 on an IPv6 socket, so its destination is that of the first.
        for (listen, to, tos) in [
            ("127.0.0.1", "127.0.0.1", 0),
            ("127.0.0.1", "127.0.0.1", 46 << 2),
            ("::1", "::1", 0),
            ("::", "127.0.0.1", 0),
        ] {
            let listener = TcpListener::bind((listen, 0)).unwrap();
            choose(&listener, "rvcm_dscp");
            if tos > 0 {
                set_tos(&listener, tos);
            }
            let client = TcpStream::connect((to, listener.local_addr().unwrap().port())).unwrap();
            Hosts::transfer(&mut (listener.accept().unwrap().0, client), 10_000);
        }
    });
    let mut found: Vec<_> = cm
        .macroflows()
        .unwrap()
        .iter()
        .map(|m| (m.destination.to_string(), m.dscp, m.numbers.joined))
        .collect();
    found.sort();
    assert_eq!(found, [("127.0.0.1".into(), 0, 2), ("127.0.0.1".into(), 46, 1), ("::1".into(), 0, 1)]);
}

#[test]
fn connection_without_macroflow_uses_reno() {
    let Some(hosts) = hosts() else { return };
    hosts.client.ip("addr add 192.0.2.3/24 dev v");
    let cm = Cm::load(&Options { name: "rvcm_full", macroflows: 1, ..Options::default() }).unwrap();
    let mut first = hosts.connect("rvcm_full", 1).remove(0);
    Hosts::transfer(&mut first, 10_000);
    // The client's end has another destination, for which the table has no room.
    choose(&first.1, "rvcm_full");
    let (server, client) = first;
    let mut back = (client.try_clone().unwrap(), server);
    Hosts::transfer(&mut back, 500_000);
    assert!(window(&client) > 10, "it grew: {}", window(&client));
    // Reno recovers from losses and halves the window.
    hosts.client.run("tc qdisc replace dev v root tbf rate 30mbit burst 4kb limit 30kb");
    hosts.client.run("ethtool -K v tso off gso off");
    Hosts::transfer(&mut back, 2_000_000);
    assert!(hosts.client.counter("TcpRetransSegs") > 0);
    assert!((2..200).contains(&window(&client)), "{}", window(&client));
    let found = cm.macroflows().unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].destination.to_string().as_str(), found[0].numbers.joined), (CLIENT, 1));
}

/// A separate BPF file system, unmounted on drop.
struct BpfFs(tempfile::TempDir);

impl BpfFs {
    fn new() -> BpfFs {
        let folder = tempfile::tempdir().unwrap();
        let done = std::process::Command::new("mount").args(["-t", "bpf", "bpf"]).arg(folder.path()).status();
        assert!(done.is_ok_and(|s| s.success()), "mount -t bpf");
        BpfFs(folder)
    }
}

impl Drop for BpfFs {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

fn available(name: &str) -> bool {
    let names = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap();
    names.split_whitespace().any(|n| n == name)
}

#[test]
fn pinned_program_outlives_loader() {
    let Some(hosts) = hosts() else { return };
    let bpf = BpfFs::new();
    let folder: PathBuf = bpf.0.path().join("rvcm_pin");
    let mut cm = load("rvcm_pin");
    cm.pin(&folder).unwrap();
    let again = load("rvcm_pin2").pin(&folder).unwrap_err();
    assert_eq!(again.kind(), std::io::ErrorKind::AlreadyExists, "{again}");
    drop(cm);
    eventually("the second is gone", || !available("rvcm_pin2"));
    assert!(available("rvcm_pin"));
    assert_eq!(cm::list(bpf.0.path()).unwrap(), std::slice::from_ref(&folder));
    let mut pair = hosts.connect("rvcm_pin", 1).remove(0);
    Hosts::transfer(&mut pair, 100_000);
    let found = cm::pinned(&folder).unwrap();
    assert_eq!((found.len(), found[0].numbers.flows), (1, 1));
    assert_eq!(cm::forget(&folder).unwrap(), 0, "a macroflow with a connection stays");
    cm::unpin(&folder).unwrap();
    eventually("the name is gone", || !available("rvcm_pin"));
    assert!(cm::pinned(&folder).is_err() && cm::unpin(&folder).is_err());
    // The connection keeps the congestion control.
    Hosts::transfer(&mut pair, 100_000);
}

/// A deleted macroflow leaves room for another destination, which starts with a fresh macroflow.
#[test]
fn deleted_macroflow_makes_room_for_another() {
    let Some(hosts) = hosts() else { return };
    let bpf = BpfFs::new();
    let folder: PathBuf = bpf.0.path().join("rvcm_room");
    let mut cm = Cm::load(&Options { name: "rvcm_room", macroflows: 2, ..Options::default() }).unwrap();
    cm.pin(&folder).unwrap();
    for round in 0..3u8 {
        // Two destinations fill the table, and the third one has no macroflow.
        let to: Vec<String> = (0..3).map(|n| format!("192.0.2.{}", 10 * (round + 1) + n)).collect();
        let pairs: Vec<_> = to
            .iter()
            .map(|to| {
                hosts.client.ip(&format!("addr add {to}/24 dev v"));
                let listener = within(&hosts.client, || TcpListener::bind((to.as_str(), 0)).unwrap());
                let address = listener.local_addr().unwrap();
                let server = within(&hosts.server, || TcpStream::connect(address).unwrap());
                choose(&server, "rvcm_room");
                let mut pair = (server, listener.accept().unwrap().0);
                Hosts::transfer(&mut pair, 300_000);
                pair
            })
            .collect();
        let mut found = cm.macroflows().unwrap();
        found.sort_by_key(|m| m.destination);
        let known: Vec<_> = found.iter().map(|m| (m.destination.to_string(), m.numbers.joined)).collect();
        assert_eq!(known, [(to[0].clone(), 1), (to[1].clone(), 1)], "round {round}");
        assert!(found.iter().all(|m| (300_000..400_000).contains(&m.numbers.sent)), "{found:?}");
        assert_eq!(cm::forget(&folder).unwrap(), 0, "macroflows with connections stay");
        drop(pairs);
        eventually("they left", || cm.macroflows().unwrap().iter().all(|m| m.numbers.flows == 0));
        assert_eq!((cm::forget(&folder).unwrap(), cm.macroflows().unwrap()), (2, vec![]));
    }
    cm::unpin(&folder).unwrap();
}

/// An administrator chooses it so, in a namespace other than the first one.
#[test]
fn sysctl_and_route_choose_congestion_control() {
    let Some(hosts) = hosts() else { return };
    let cm = load("rvcm_sysctl");
    hosts.server.run("sysctl -qw net.ipv4.tcp_congestion_control=rvcm_sysctl");
    let listener = within(&hosts.server, || TcpListener::bind((SERVER, 0)).unwrap());
    let address = listener.local_addr().unwrap();
    let client = within(&hosts.client, || TcpStream::connect(address).unwrap());
    let mut pair = (listener.accept().unwrap().0, client);
    Hosts::transfer(&mut pair, 10_000);
    assert_eq!(settled(&cm).numbers.flows, 1);
    drop(pair);
    hosts.server.run("sysctl -qw net.ipv4.tcp_congestion_control=reno");
    hosts.server.ip(&format!("route add {CLIENT}/32 dev v congctl rvcm_sysctl"));
    let client = within(&hosts.client, || TcpStream::connect(address).unwrap());
    let mut pair = (listener.accept().unwrap().0, client);
    Hosts::transfer(&mut pair, 10_000);
    assert_eq!(settled(&cm).numbers.joined, 2);
}
