//! An off-path attacker that knows a connection's addresses and ports, but neither its sequence
//! numbers nor its timestamps, forges segments of the client. The connection must stay protected.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use rivulet_packet::segment::TcpFlags;
use rivulet_pktio::in_netns;
use rivulet_pktio::testing::{self, eventually};
use rivulet_plain::{Header, Options, Stamps};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with};

use crate::stamps;
use crate::survive::{Plan, Rig, SERVICE};

/// Sends raw packets with headers made by the test.
struct Forger {
    socket: OwnedFd,
    client: SocketAddr,
    service: SocketAddr,
}

impl Forger {
    /// Opens a raw socket on the router, which is not on the path from the client.
    fn new(rig: &Rig, client: SocketAddr) -> Forger {
        let raw =
            || socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::RAW));
        let socket = in_netns(Some(rig.router.name()), raw).unwrap().unwrap();
        Forger { socket, client, service: SERVICE.parse().unwrap() }
    }

    fn send(&self, flags: u8, seq: u32, ack: u32, data: &[u8]) {
        let options = Options { stamps: Some(Stamps { value: seq, echo: ack }), ..Options::default() };
        let (src, dst, flags) = (self.client, self.service, TcpFlags(flags));
        let header = Header { src, dst, seq, ack, flags, window: 500, options };
        let mut packet = vec![0; header.length()];
        packet.extend_from_slice(data);
        header.finish(&mut packet, data.len()).unwrap();
        sendto(&self.socket, &packet, SendFlags::empty(), &self.service).unwrap();
    }

    /// Sends what such an attacker can: at sequence numbers all over the range, a byte with a RST
    /// after it, acknowledgements, and a FIN.
    fn attack(&self) {
        for n in 0..256u32 {
            let (seq, ack) = (n << 24 | 0x5a_5a5a, n.wrapping_mul(0x9e37_79b9));
            self.send(TcpFlags::ACK, seq, ack, b"x");
            self.send(TcpFlags::RST, seq.wrapping_add(1), 0, b"");
            self.send(TcpFlags::ACK, seq, ack.wrapping_add(1 << 31), b"");
            self.send(TcpFlags::ACK | TcpFlags::FIN, seq, ack, b"");
        }
    }
}

fn outlives(rig: &Rig, content: &[u8], tell: impl Fn()) {
    let service = SERVICE.parse::<SocketAddr>().unwrap();
    let mut stream = in_netns(Some(rig.client.name()), || TcpStream::connect(service)).unwrap().unwrap();
    stream.set_read_timeout(Some(testing::PATIENCE)).unwrap();
    let forger = Forger::new(rig, stream.local_addr().unwrap());
    // Before a request, before its response, and within the response.
    forger.attack();
    stream.write_all(b"GET /large HTTP/1.1\r\nHost: 10.8.9.9:8080\r\nConnection: close\r\n\r\n").unwrap();
    forger.attack();
    let mut got = vec![0; 2_000_000];
    stream.read_exact(&mut got).unwrap();
    forger.attack();
    let first = &rig.hosts[0].replica;
    eventually("it is protected", || first.counts().protected == 1);
    eventually("the forged segments are counted", || first.counts().outside > 0);
    rig.router.ip("link set x1 down");
    rig.steer("replace", 2);
    tell();
    stream.read_to_end(&mut got).unwrap();
    assert!(got.ends_with(content), "{} bytes", got.len());
    let second = &rig.hosts[1].replica;
    eventually("it is counted", || second.counts().adopted == 1);
    assert_eq!((first.counts().unprotected, second.counts().refused), (Default::default(), 0));
}

#[test]
fn blind_segments_do_not_unprotect_recorded_connection() {
    let Some(rig) = Rig::new(&Plan::default()) else { return };
    let content = rig.file("large", 20_000_000);
    outlives(&rig, &content, || rig.tell(1, 1));
}

#[test]
fn blind_segments_do_not_unprotect_named_connection() {
    let Some(rig) = stamps::named(&Plan { stores: 0, ..Plan::default() }, &[("large", 20_000_000)]) else {
        return;
    };
    outlives(&rig, &stamps::content(&rig, "large"), || rig.tell_named(1, 1));
}
