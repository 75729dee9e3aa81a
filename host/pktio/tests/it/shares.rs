//! Which connections the guard leaves to the kernel while a port changes hands.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use rivulet_pktio::filter::TcpRule;
use rivulet_pktio::guard::{KernelGuard, Share};
use rivulet_pktio::testing::{Netns, PATIENCE, read_once};
use rivulet_pktio::{AfPacket, Config, PacketIo, TxFrame, in_netns, internet_sum};

use crate::kernel::{PREFIX, SILENCE};

const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// Two hosts with addresses of both families; returns the second one's addresses.
fn hosts() -> Option<(Netns, Netns, [IpAddr; 2])> {
    let (a, b) = (Netns::new(PREFIX)?, Netns::new(PREFIX)?);
    a.veth("va", &b, "vb");
    a.ip("addr add 10.0.0.1/24 dev va");
    b.ip("addr add 10.0.0.2/24 dev vb");
    a.ip("addr add fd00::1/64 dev va nodad");
    b.ip("addr add fd00::2/64 dev vb nodad");
    Some((a, b, ["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()]))
}

/// Port 80 of both addresses.
fn rule(addresses: [IpAddr; 2]) -> TcpRule {
    TcpRule { destinations: addresses.to_vec(), destination_ports: vec![80..=80], ..TcpRule::default() }
}

fn guard(b: &Netns, addresses: [IpAddr; 2], share: Share) -> KernelGuard {
    KernelGuard::install_sharing(Some(b.name()), &["vb"], &[(rule(addresses), share)]).unwrap()
}

/// A segment without data from the first host to the second.
fn segment((a, b): (&Netns, &Netns), from: SocketAddr, to: SocketAddr, flags: u8) -> Vec<u8> {
    let mut tcp = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    tcp.extend([0, 0, 0, 9, 0, 0, 0, 7, 0x50, flags, 0x10, 0, 0, 0, 0, 0]);
    let mut frame = [b.mac("vb"), a.mac("va")].concat();
    let ends = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let ends = [from.octets(), to.octets()].concat();
            let mut ip = vec![0x45, 0, 0, 40, 0, 1, 0x40, 0, 64, 6, 0, 0];
            ip.extend(&ends);
            let sum = !internet_sum(&ip, 0);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            frame.extend([8, 0]);
            frame.extend(ip);
            ends
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let ends = [from.octets(), to.octets()].concat();
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6, 64]);
            frame.extend(&ends);
            ends
        }
        _ => panic!("two families"),
    };
    let sum = !internet_sum(&tcp, internet_sum(&ends, internet_sum(&[0, 6, 0, 20], 0)));
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    frame.extend(tcp);
    frame
}

/// Flags of the next segment that returns to the first host between these ports; `None` if none
/// arrives in time.
fn answered(wire: &mut AfPacket, from: u16, to: u16) -> Option<u8> {
    let deadline = Instant::now() + SILENCE;
    while Instant::now() < deadline {
        for i in 0..wire.recv().unwrap() {
            let frame = wire.frame(i).data;
            let ip = if frame[12..14] == [8, 0] { 20 } else { 40 };
            let ports = [from.to_be_bytes(), to.to_be_bytes()].concat();
            if frame.len() >= 14 + ip + 20 && frame[14 + ip..][..4] == ports {
                return Some(frame[14 + ip + 13]);
            }
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    None
}

#[test]
fn existing_kernel_connections_continue_and_new_ones_fail() {
    let Some((a, b, addresses)) = hosts() else { return };
    let mut streams = Vec::new();
    let mut listeners = Vec::new();
    for ip in addresses {
        let there = SocketAddr::new(ip, 80);
        let listener = in_netns(Some(b.name()), || TcpListener::bind(there).unwrap()).unwrap();
        let connect = || {
            let stream = in_netns(Some(a.name()), || TcpStream::connect(there).unwrap()).unwrap();
            let (server, from) = listener.accept().unwrap();
            server.set_read_timeout(Some(PATIENCE)).unwrap();
            (stream, server, from, there)
        };
        streams.extend([connect(), connect()]);
        listeners.push(listener);
    }
    let _guard = guard(&b, addresses, Share::Present);
    for (stream, server, _, there) in &mut streams {
        stream.write_all(b"more").unwrap();
        let mut got = [0; 4];
        server.read_exact(&mut got).unwrap_or_else(|e| panic!("what the kernel had at {there} is gone: {e}"));
        assert_eq!(&got, b"more");
    }
    for ip in addresses {
        let begun =
            in_netns(Some(a.name()), || TcpStream::connect_timeout(&SocketAddr::new(ip, 80), SILENCE));
        assert_eq!(begun.unwrap().unwrap_err().kind(), ErrorKind::TimedOut, "{ip}: the kernel took it up");
    }
    // A new SYN between the same ports goes to the other stack; other connections continue.
    let mut wire = AfPacket::open(&a.interface("va"), Config::default()).unwrap();
    for pair in streams.chunks_exact_mut(2) {
        let [(renewed, lost, from, there), (stays, kept, ..)] = pair else { panic!("two of a family") };
        wire.send(&[TxFrame::new(&segment((&a, &b), *from, *there, SYN))]).unwrap();
        // Data sent later finds the handover complete.
        stays.write_all(b"more").unwrap();
        let mut got = [0; 4];
        kept.read_exact(&mut got).unwrap();
        renewed.write_all(b"more").unwrap();
        lost.set_read_timeout(Some(SILENCE)).unwrap();
        let error = read_once(lost, &mut got).expect_err("the kernel has it still");
        assert_eq!(error.kind(), ErrorKind::WouldBlock, "{there}");
    }
}

#[test]
fn kernel_sends_no_resets_for_unknown_connections() {
    let Some((a, b, addresses)) = hosts() else { return };
    let mut wire = AfPacket::open(&a.interface("va"), Config::default()).unwrap();
    let mut say = |ip: IpAddr, port: u16, flags: u8| {
        let (from, to) = (if ip.is_ipv4() { "10.0.0.1:4000" } else { "[fd00::1]:4000" }, (ip, port).into());
        wire.send(&[TxFrame::new(&segment((&a, &b), from.parse().unwrap(), to, flags))]).unwrap();
        answered(&mut wire, port, 4000)
    };
    let neighbours =
        [(&a, "va", ["10.0.0.2", "fd00::2"], b.mac("vb")), (&b, "vb", ["10.0.0.1", "fd00::1"], a.mac("va"))];
    for (host, device, others, mac) in neighbours {
        let mac = mac.map(|octet| format!("{octet:02x}")).join(":");
        others.iter().for_each(|ip| host.ip(&format!("neigh replace {ip} lladdr {mac} dev {device}")));
    }
    for ip in addresses {
        assert_eq!(say(ip, 80, ACK), Some(RST), "without a guard");
    }
    let guard = guard(&b, addresses, Share::Silent);
    for ip in addresses {
        assert_eq!(say(ip, 80, ACK), None, "{ip}: it may be a connection that another stack has");
        assert_eq!(say(ip, 81, ACK), Some(RST), "{ip}: another port's is not");
        // The kernel still accepts or refuses new connections.
        assert_eq!(say(ip, 80, SYN), Some(RST | ACK));
    }
    let listener = in_netns(Some(b.name()), || TcpListener::bind((addresses[0], 80)).unwrap()).unwrap();
    assert_eq!(say(addresses[0], 80, SYN), Some(SYN | ACK));
    // This also ends its retransmissions.
    drop(listener);
    guard.share(&["vb"], &[(rule(addresses), Share::None)]).unwrap();
    for ip in addresses {
        assert_eq!((say(ip, 80, ACK), say(ip, 80, SYN)), (None, None), "{ip}: nothing is the kernel's");
    }
}
