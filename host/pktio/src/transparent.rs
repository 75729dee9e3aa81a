//! Connects to a server of this host from a foreign source address (`IP_TRANSPARENT`), and routes
//! the server's replies back to this host instead of the address's owner.
//!
//! The connection's packets carry a mark. A server's socket inherits the mark of the SYN that it
//! accepts (`net.ipv4.tcp_fwmark_accept`, for IPv6 too), and a rule routes marked packets by a
//! separate table in which every address is local. No other packet uses that table. Rule, table and
//! sysctl stay: other processes of the host may use them, and without marked packets they have no
//! effect.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, connect, getsockname, ipproto, socket_with, sockopt,
};

use crate::netlink::{NLM_F_ACK, ask_with, push_attribute, socket};

/// Mark of packets that return to this host ("RIVT"), number of the table, and priority of its
/// rule.
const MARK: u32 = 0x5249_5654;
const TABLE: u32 = 0x5249;
const PRIORITY: u32 = 100;
/// linux/fib_rules.h
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_TABLE: u16 = 15;
const FR_ACT_TO_TBL: u8 = 1;
/// The index of the loopback device, in every network namespace.
const LOOPBACK: u32 = 1;
/// Source ports of such connections: only privileged programs use them (RFC 6335 section 6), so
/// they do not collide with a client's own connections.
const PORTS: std::ops::RangeInclusive<u16> = 1..=1023;
/// Ports that a connection tries. With nine of ten in use all fail once in 800 times. A client that uses all of its ports then
/// costs 64 system calls a connection, not 1,023, on a thread that all adopted connections share.
const ATTEMPTS: usize = 64;

/// Longest time for a connection to this host itself.
const CHECK: Duration = Duration::from_secs(1);

/// Routes what servers of this host send on such connections back to this host, in the calling
/// thread's network namespace. Needs `CAP_NET_ADMIN` and a writable `/proc/sys`.
///
/// # Errors
/// The system's error, with the failed step.
pub fn prepare(server: IpAddr) -> io::Result<()> {
    let of = |step: &'static str| move |e: io::Error| io::Error::new(e.kind(), format!("{step}: {e}"));
    let accept = "/proc/sys/net/ipv4/tcp_fwmark_accept";
    if std::fs::read_to_string(accept).map_err(of("net.ipv4.tcp_fwmark_accept"))?.trim() != "1" {
        std::fs::write(accept, "1").map_err(of("net.ipv4.tcp_fwmark_accept"))?;
    }
    let family = if server.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8;
    let netlink = socket(SocketFlags::empty(), 0)?;
    let flags = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16 | NLM_F_ACK;
    let add = |kind, body: &[u8]| match ask_with(&netlink, kind, flags, body) {
        Err(e) if e.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        done => done.map(|_| ()),
    };
    // struct rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags.
    let scope = libc::RT_SCOPE_HOST;
    let mut route = vec![family, 0, 0, 0, libc::RT_TABLE_UNSPEC, libc::RTPROT_STATIC, scope, libc::RTN_LOCAL];
    route.extend([0; 4]);
    push_attribute(&mut route, libc::RTA_TABLE, &TABLE.to_ne_bytes());
    push_attribute(&mut route, libc::RTA_OIF, &LOOPBACK.to_ne_bytes());
    add(libc::RTM_NEWROUTE, &route).map_err(of("a local route"))?;
    // struct fib_rule_hdr: family, dst_len, src_len, tos, table, res1, res2, action, flags.
    let mut rule = vec![family, 0, 0, 0, libc::RT_TABLE_UNSPEC, 0, 0, FR_ACT_TO_TBL];
    rule.extend([0; 4]);
    push_attribute(&mut rule, FRA_PRIORITY, &PRIORITY.to_ne_bytes());
    push_attribute(&mut rule, FRA_FWMARK, &MARK.to_ne_bytes());
    push_attribute(&mut rule, FRA_TABLE, &TABLE.to_ne_bytes());
    add(libc::RTM_NEWRULE, &rule).map_err(of("a routing rule"))
}

/// Connects to a server of this host from a client's address; the connection may still be pending.
/// Call [`prepare`] for the server's address first; needs `CAP_NET_ADMIN` and
/// `CAP_NET_BIND_SERVICE`. Closing sends a RST, so that the port is free at once.
///
/// # Errors
/// The system's error; `AddrInUse` while this client's address uses all of the ports, or nearly all: try again later.
pub fn connect_as(client: IpAddr, server: SocketAddr) -> io::Result<TcpStream> {
    let family = if server.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    let (level, option) = match family {
        AddressFamily::INET => (libc::SOL_IP, libc::IP_TRANSPARENT),
        _ => (libc::SOL_IPV6, libc::IPV6_TRANSPARENT),
    };
    set_option(&socket, level, option, 1)?;
    set_option(&socket, libc::SOL_SOCKET, libc::SO_MARK, MARK)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_linger(&socket, Some(std::time::Duration::ZERO))?;
    bind_free(|port| bind(&socket, &SocketAddr::new(client, port)))?;
    match connect(&socket, &server) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket.into()),
        Err(e) => Err(e.into()),
    }
}

/// Binds to a random port that the client's address does not use, by up to [`ATTEMPTS`] calls of `bind`.
fn bind_free(mut bind: impl FnMut(u16) -> Result<(), Errno>) -> io::Result<()> {
    use std::hash::{BuildHasher, RandomState};
    let random = RandomState::new();
    for n in 0..ATTEMPTS {
        let port = PORTS.start() + (random.hash_one(n) % PORTS.len() as u64) as u16;
        match bind(port) {
            Err(Errno::ADDRINUSE) => {}
            done => return Ok(done?),
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

fn set_option(
    socket: &std::os::fd::OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    value: u32,
) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let size = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the descriptor is open, and the option's value is the four bytes that the kernel reads of `value`.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), size) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Checks that this works, by a connection from a documentation address (RFC 5737, RFC 3849) to a
/// listener of this process.
///
/// # Errors
/// The reason, as text for the operator.
pub fn check(server: IpAddr) -> io::Result<()> {
    prepare(server)?;
    let nobody: IpAddr = match server {
        IpAddr::V4(_) => Ipv4Addr::new(192, 0, 2, 1).into(),
        IpAddr::V6(_) => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    };
    let listener = match std::net::TcpListener::bind(SocketAddr::new(server, 0)) {
        // The host does not have the address yet.
        Err(e) if e.kind() == io::ErrorKind::AddrNotAvailable => return Ok(()),
        listener => listener?,
    };
    listener.set_nonblocking(true)?;
    let client = connect_as(nobody, listener.local_addr()?)?;
    let from: SocketAddr = getsockname(&client)?.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
    let (until, mut others) = (Instant::now() + CHECK, false);
    loop {
        // Anybody can connect to the service's address meanwhile: what counts is whether this connection comes.
        match listener.accept() {
            Ok((_, peer)) if peer == from => return Ok(()),
            Ok(_) => others = true,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let left = until.saturating_duration_since(Instant::now());
                let timeout =
                    rustix::event::Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidData)?;
                let mut fds = [rustix::event::PollFd::new(&listener, rustix::event::PollFlags::IN)];
                match rustix::event::poll(&mut fds, Some(&timeout)) {
                    Ok(0) => break,
                    Err(e) if e != Errno::INTR => return Err(e.into()),
                    _ => {}
                }
            }
            Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(e) => return Err(e),
        }
        if Instant::now() >= until {
            break;
        }
    }
    let why = "a server's reply to a client's address does not return to this host";
    let kind = if others { io::ErrorKind::AddrNotAvailable } else { io::ErrorKind::HostUnreachable };
    Err(io::Error::new(kind, why))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;
    use crate::in_netns;
    use crate::testing::Netns;

    #[test]
    fn server_sees_the_clients_address_and_reaches_this_host() {
        let Some(ns) = Netns::new("transp") else { return };
        for (address, client) in [("10.9.0.1", "192.0.2.7"), ("fd00:9::1", "2001:db8::7")] {
            let bits = if address.contains(':') { "/128 nodad" } else { "/32" };
            ns.ip(&format!("addr add {address}{bits} dev lo"));
            let server = SocketAddr::new(address.parse().unwrap(), 80);
            let client: IpAddr = client.parse().unwrap();
            in_netns(Some(ns.name()), || {
                prepare(server.ip()).unwrap();
                prepare(server.ip()).unwrap();
                check(server.ip()).unwrap();
                let listener = TcpListener::bind(server).unwrap();
                // Several connections at a time, and ports that are free again at once.
                for _ in 0..40 {
                    let mut ends = Vec::new();
                    for _ in 0..50 {
                        let mut stream = connect_as(client, server).unwrap();
                        let (mut accepted, from) = listener.accept().unwrap();
                        assert!(from.ip() == client && PORTS.contains(&from.port()), "{from}");
                        accepted.write_all(b"what it sends").unwrap();
                        stream.set_nonblocking(false).unwrap();
                        stream.read_exact(&mut [0; 13]).unwrap();
                        ends.push((stream, accepted));
                    }
                }
            })
            .unwrap();
        }
    }

    #[test]
    fn strangers_connections_fail_no_check() {
        let Some(ns) = Netns::new("transp-st") else { return };
        ns.ip("addr add 10.9.0.1/32 dev lo");
        in_netns(Some(ns.name()), || {
            // The check listens at one of these.
            std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40001").unwrap();
            let done = std::sync::atomic::AtomicBool::new(false);
            let server: IpAddr = "10.9.0.1".parse().unwrap();
            std::thread::scope(|scope| {
                let strangers = scope.spawn(|| {
                    let mut connected = 0;
                    while !done.load(std::sync::atomic::Ordering::Relaxed) {
                        for port in [40000, 40001] {
                            // From a port that leaves those two free.
                            let socket = socket_with(
                                AddressFamily::INET,
                                SocketType::STREAM,
                                SocketFlags::CLOEXEC,
                                None,
                            );
                            let socket = socket.unwrap();
                            sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
                            bind_free(|port| bind(&socket, &SocketAddr::new(server, port))).unwrap();
                            connected += u32::from(connect(&socket, &SocketAddr::new(server, port)).is_ok());
                        }
                    }
                    connected
                });
                let failed = (0..200).filter_map(|_| check(server).err()).count();
                done.store(true, std::sync::atomic::Ordering::Relaxed);
                assert!(strangers.join().unwrap() > 10, "strangers were there");
                assert_eq!(failed, 0);
            });
        })
        .unwrap();
    }

    #[test]
    fn client_that_uses_all_ports_costs_few_attempts() {
        let Some(ns) = Netns::new("transp-all") else { return };
        ns.ip("addr add 10.9.0.1/32 dev lo");
        in_netns(Some(ns.name()), || {
            let client: IpAddr = "10.9.0.1".parse().unwrap();
            let open = || {
                let flags = SocketFlags::CLOEXEC;
                socket_with(AddressFamily::INET, SocketType::STREAM, flags, Some(ipproto::TCP)).unwrap()
            };
            let attempts = std::cell::Cell::new(0);
            let bind_one = |socket: &std::os::fd::OwnedFd| {
                attempts.set(0);
                bind_free(|port| {
                    attempts.set(attempts.get() + 1);
                    bind(socket, &SocketAddr::new(client, port))
                })
            };
            // Nine of ten are in use: a port is found within a few calls.
            let mut held: Vec<_> = PORTS
                .filter(|port| port % 10 != 0)
                .map(|port| {
                    let socket = open();
                    bind(&socket, &SocketAddr::new(client, port)).unwrap();
                    socket
                })
                .collect();
            let found = (0..20).filter(|_| bind_one(&open()).is_ok()).count();
            assert!(found >= 18, "{found}");
            held.extend(PORTS.filter(|port| port % 10 == 0).map(|port| {
                let socket = open();
                bind(&socket, &SocketAddr::new(client, port)).unwrap();
                socket
            }));
            assert_eq!(bind_one(&open()).unwrap_err().kind(), io::ErrorKind::AddrInUse);
            assert_eq!(attempts.get(), 64);
        })
        .unwrap();
    }

    #[test]
    fn without_the_route_nothing_comes_back() {
        let Some(ns) = Netns::new("transp-no") else { return };
        ns.ip("addr add 10.9.0.1/32 dev lo");
        in_netns(Some(ns.name()), || {
            prepare("10.9.0.1".parse().unwrap()).unwrap();
            let table = TABLE.to_string();
            for command in ["route", "rule"] {
                let of = ["-4", command, if command == "rule" { "del" } else { "flush" }, "table", &table];
                assert!(std::process::Command::new("ip").args(of).status().unwrap().success());
            }
            let listener = TcpListener::bind("10.9.0.1:0").unwrap();
            let stream = connect_as("192.0.2.7".parse().unwrap(), listener.local_addr().unwrap()).unwrap();
            assert!(stream.peer_addr().is_err(), "it is established");
        })
        .unwrap();
    }
}
