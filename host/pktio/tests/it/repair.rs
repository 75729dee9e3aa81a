//! Sets up connections on both ends without a packet, in a namespace. Needs root; skipped where
//! namespaces cannot be created.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use rivulet_pktio::in_netns;
use rivulet_pktio::repair::{Connection, check, restore, restore_with, set_timestamp, unacknowledged};
use rivulet_pktio::testing::{Netns, eventually};

const A: &str = "127.0.0.1:8000";
const B: &str = "127.0.0.2:9000";

fn ends(timestamp: Option<u32>, scaled: bool) -> [Connection; 2] {
    let (a, b): (SocketAddr, SocketAddr) = (A.parse().unwrap(), B.parse().unwrap());
    let one = Connection {
        local: a,
        remote: b,
        send_next: u32::MAX - 50,
        receive_next: 7_000,
        send_window: 60_000,
        receive_window: 60_000,
        mss: 1460,
        scales: scaled.then_some((2, 0)),
        sack: true,
        timestamp,
    };
    let scales = scaled.then_some((0, 2));
    let other = Connection {
        local: b,
        remote: a,
        send_next: one.receive_next,
        receive_next: one.send_next,
        scales,
        ..one
    };
    [one, other]
}

fn option(stream: &TcpStream, name: i32) -> u32 {
    let (mut value, mut length) = (0u32, 4 as libc::socklen_t);
    let (fd, at) = (stream.as_raw_fd(), (&raw mut value).cast());
    // SAFETY: a local of four bytes, as the length says.
    let done = unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, name, at, &raw mut length) };
    assert_eq!((done, length), (0, 4));
    value
}

/// Sends this many bytes each way and compares them.
fn talk(one: &TcpStream, other: &TcpStream, octets: usize) {
    for (mut from, mut to) in [(one, other), (other, one)] {
        let data: Vec<u8> = (0..octets).map(|n| (n * 7 + n / 251) as u8).collect();
        let mut read = vec![0; octets];
        std::thread::scope(|scope| {
            scope.spawn(|| from.write_all(&data).unwrap());
            to.read_exact(&mut read).unwrap();
        });
        assert!(read == data);
    }
}

#[test]
fn restored_connection_continues_at_its_sequence_numbers() {
    let Some(ns) = Netns::new("rep-") else { return };
    check().unwrap();
    for (timestamp, scaled) in
        [(Some(0x1c0_0001), true), (Some(0x1c0_0000), false), (None, true), (None, false)]
    {
        let ends = ends(timestamp, scaled);
        let [mut one, mut other] = ends.map(|end| restore(&end, Some(ns.name())).unwrap());
        assert_eq!(
            (one.local_addr().unwrap().to_string(), one.peer_addr().unwrap().to_string()),
            (A.into(), B.into())
        );
        // Not the 536 of a socket without information about its peer. (Without timestamps the
        // kernel has room for 12 more when it sends.)
        assert_eq!(option(&one, libc::TCP_MAXSEG), 1448);
        talk(&one, &other, 300_000);
        eventually("all is acknowledged", || unacknowledged(&one).unwrap() == 0);
        if let Some(value) = timestamp {
            let now = option(&one, libc::TCP_TIMESTAMP);
            // Milliseconds, not microseconds.
            assert!((value..value + 600_000).contains(&now), "{now:#x}");
            for next in [0x2c0_0000, 0x3c0_0000, 0x4c0_0000] {
                set_timestamp(&one, next).unwrap();
                let now = option(&one, libc::TCP_TIMESTAMP);
                assert!((next..next + 600_000).contains(&now), "{now:#x}");
                talk(&one, &other, 100_000);
            }
        }
        // A second connection between the same addresses and ports.
        let error = restore(&ends[0], Some(ns.name())).unwrap_err();
        assert_eq!(
            (error.step, error.source.raw_os_error()),
            ("connect", Some(libc::EADDRNOTAVAIL)),
            "{error}"
        );
        one.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(other.read(&mut [0]).unwrap(), 0);
        drop(other);
        assert_eq!(one.read(&mut [0]).unwrap(), 0);
        drop(one);
        // The end that closed first keeps the connection in TIME_WAIT for a minute.
        ns.run("ss --kill state time-wait");
    }
    assert_eq!(ns.counter("TcpOutRsts"), 0);
    assert_eq!((ns.counter("TcpActiveOpens"), ns.counter("TcpPassiveOpens")), (0, 0), "no handshake");
}

/// A server can restart beside connections that were transferred earlier.
#[test]
fn a_listener_gets_the_port_beside_it() {
    let Some(ns) = Netns::new("rep-") else { return };
    let listens = || in_netns(Some(ns.name()), || TcpListener::bind(A).is_ok()).unwrap();
    let one = restore(&ends(Some(0x1c0_0001), true)[0], Some(ns.name())).unwrap();
    assert!(listens());
    set_timestamp(&one, 0x2c0_0000).unwrap();
    assert!(listens(), "another clock");
}

#[test]
fn an_address_that_is_not_here_is_an_error() {
    let Some(ns) = Netns::new("rep-") else { return };
    let away = Connection { local: "10.9.0.1:80".parse().unwrap(), ..ends(None, true)[0] };
    let error = restore(&away, Some(ns.name())).unwrap_err();
    assert_eq!((error.step, error.source.raw_os_error()), ("bind", Some(libc::EADDRNOTAVAIL)), "{error}");
}

/// The kernel retransmits bytes that were sent, and lost, before it took the connection over. They
/// precede the bytes that are written afterwards.
#[test]
fn kernel_retransmits_bytes_unacknowledged_before_the_repair() {
    let Some(ns) = Netns::new("rep-") else { return };
    for timestamp in [Some(0x1c0_0000), None] {
        let [one, other] = ends(timestamp, true);
        let mut other = restore(&other, Some(ns.name())).unwrap();
        let sent: Vec<u8> = (0..15_360).map(|n| (n % 251) as u8).collect();
        let mut one = restore_with(&one, &sent, Some(ns.name())).unwrap();
        assert_eq!(unacknowledged(&one).unwrap() as usize, sent.len());
        one.write_all(b"behind it").unwrap();
        let mut got = vec![0; sent.len() + 9];
        other.read_exact(&mut got).unwrap();
        assert!(got == [&sent[..], b"behind it"].concat());
        eventually("all is acknowledged", || unacknowledged(&one).unwrap() == 0);
    }
}
