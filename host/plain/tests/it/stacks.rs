//! An independent TCP implementation, smoltcp, as the client.

use std::collections::VecDeque;

use rivulet_plain::{Class, Handoff, Replica, Ring, Segment, Verdict};
use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::phy::{self, Device, DeviceCapabilities, Medium};
use smoltcp::socket::tcp;
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};

use crate::losses::Dice;
use crate::support::path::{Node, Server};
use crate::support::{SIZES, bodies, content, get, site, site_of};

/// A link between client and replicas: two queues.
#[derive(Default)]
struct Wire {
    to_client: VecDeque<Vec<u8>>,
    to_server: VecDeque<Vec<u8>>,
}

struct Rx(Vec<u8>);
struct Tx<'a>(&'a mut VecDeque<Vec<u8>>);

impl phy::RxToken for Rx {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl phy::TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut packet = vec![0; len];
        let result = f(&mut packet);
        self.0.push_back(packet);
        result
    }
}

impl Device for Wire {
    type RxToken<'a> = Rx;
    type TxToken<'a> = Tx<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Rx, Tx<'_>)> {
        Some((Rx(self.to_client.pop_front()?), Tx(&mut self.to_server)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Tx<'_>> {
        Some(Tx(&mut self.to_server))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        (capabilities.medium, capabilities.max_transmission_unit) = (Medium::Ip, 1500);
        capabilities
    }
}

/// Two replicas without shared state.
trait Replicas {
    /// The segments that replica `one` sends for a packet at `now`, milliseconds.
    fn take(&mut self, one: usize, packet: &[u8], now: i64) -> Vec<Vec<u8>>;

    /// The segments that both replicas send by timer, and the time of the next ones.
    fn wake(&mut self, now: i64) -> (Vec<Vec<u8>>, Option<i64>);
}

struct Small([Replica; 2]);

impl Small {
    fn new(memory: bool) -> Small {
        Small([0, 1].map(|_| Replica { site: site(), ring: memory.then(|| Ring::new(16)) }))
    }
}

impl Replicas for Small {
    fn take(&mut self, one: usize, packet: &[u8], now: i64) -> Vec<Vec<u8>> {
        let segment = Segment::parse(packet).expect("a segment");
        let mut out = Vec::new();
        match self.0[one].receive(&segment, 1000 + (now / 60_000) as u32, None) {
            Verdict::Drop(_) => {}
            Verdict::Kernel(cause) | Verdict::Adopt(cause, _) => panic!("{cause:?}"),
            Verdict::Begin(asked) => panic!("{asked:?}"),
            Verdict::Say(header) => {
                let mut reply = vec![0; header.length()];
                header.finish(&mut reply, 0).unwrap();
                out.push(reply);
            }
            Verdict::Answer(flight) | Verdict::Continue(Handoff { flight, .. }) => {
                for piece in flight.pieces() {
                    let mut reply = vec![0; flight.length(piece)];
                    flight.write(piece, &mut reply).unwrap();
                    out.push(reply);
                }
            }
        }
        out
    }

    fn wake(&mut self, _: i64) -> (Vec<Vec<u8>>, Option<i64>) {
        (Vec::new(), None)
    }
}

/// Start of a download, microseconds: late enough for each replica to trust that the other one
/// stays alive.
const LATER: u64 = 60_000_000;

/// Replicas for large answers, which have timers.
struct Large([Node; 2]);

impl Replicas for Large {
    fn take(&mut self, one: usize, packet: &[u8], now: i64) -> Vec<Vec<u8>> {
        self.0[one].take(packet, now as u64 * 1000 + LATER)
    }

    fn wake(&mut self, now: i64) -> (Vec<Vec<u8>>, Option<i64>) {
        let out = self.0.iter_mut().flat_map(|node| node.say(now as u64 * 1000 + LATER)).collect();
        (
            out,
            self.0
                .iter()
                .filter_map(|node| node.downloads.deadline())
                .min()
                .map(|at| ((at - LATER) / 1000 + 1) as i64),
        )
    }
}

/// Downloads one object with smoltcp while this many of 100 packets are lost; returns the received
/// bytes.
fn download(
    seed: u64,
    size: usize,
    stamps: bool,
    buffer: usize,
    loss: u64,
    replicas: &mut dyn Replicas,
) -> Vec<u8> {
    let mut wire = Wire::default();
    let mut config = Config::new(HardwareAddress::Ip);
    config.random_seed = seed;
    let mut iface = Interface::new(config, &mut wire, Instant::ZERO);
    iface.update_ip_addrs(|addrs| addrs.push(IpCidr::new(IpAddress::v4(10, 0, 0, 1), 8)).unwrap());
    let mut socket =
        tcp::Socket::new(tcp::SocketBuffer::new(vec![0; buffer]), tcp::SocketBuffer::new(vec![0; 4000]));
    if stamps {
        socket.set_tsval_generator(Some(|| 77));
    }
    socket.set_timeout(None);
    let mut sockets = SocketSet::new(vec![]);
    let handle = sockets.add(socket);
    let port = 20_000 + seed as u16 % 20_000;
    let remote = (IpAddress::v4(10, 9, 0, 1), 80);
    sockets.get_mut::<tcp::Socket<'_>>(handle).connect(iface.context(), remote, port).unwrap();
    let (mut dice, mut stream, mut asked, mut now) = (Dice(seed), Vec::new(), false, 0i64);
    // Ten milliseconds in each direction: a packet arrives two steps later.
    while now < 3_600_000 {
        iface.poll(Instant::from_millis(now), &mut wire, &mut sockets);
        let socket = sockets.get_mut::<tcp::Socket<'_>>(handle);
        if socket.may_send() && !asked {
            socket.send_slice(&get(size, "Connection: close\r\n")).unwrap();
            asked = true;
        }
        while let Ok(data @ 1..) = socket.recv(|data| {
            stream.extend_from_slice(data);
            (data.len(), data.len())
        }) {
            let _ = data;
        }
        if asked && !socket.may_recv() && socket.state() != tcp::State::SynSent {
            socket.close();
            if !socket.is_open() || socket.state() == tcp::State::TimeWait {
                break;
            }
        }
        let (out, wakes) = replicas.wake(now);
        wire.to_client.extend(out.into_iter().filter(|_| dice.below(100) >= loss));
        let at = Instant::from_millis(now);
        let wait =
            iface.poll_delay(at, &sockets).map_or(20, |d| d.min(Duration::from_secs(60)).total_millis());
        let wait = wakes.map_or(wait as i64, |at| (wait as i64).min(at - now));
        now += if wire.to_server.is_empty() && wire.to_client.is_empty() { wait.max(1) } else { 10 };
        for packet in std::mem::take(&mut wire.to_server) {
            if dice.below(100) < loss {
                continue;
            }
            let out = replicas.take(dice.below(2) as usize, &packet, now);
            wire.to_client.extend(out.into_iter().filter(|_| dice.below(100) >= loss));
        }
    }
    stream
}

#[test]
fn smoltcp_is_served() {
    assert!(Class::of(1460).is_some());
    for stamps in [false, true] {
        for memory in [false, true] {
            for (n, size) in SIZES.into_iter().enumerate() {
                let stream = download(n as u64, size, stamps, 30_000, 0, &mut Small::new(memory));
                assert_eq!(bodies(&stream), [content(size)], "{size} {stamps} {memory}");
            }
        }
    }
}

#[test]
fn smoltcp_is_served_through_loss_and_small_windows() {
    for seed in 0..300u64 {
        let size = SIZES[seed as usize % SIZES.len()];
        let buffer = [2048, 4000, 30_000][seed as usize % 3];
        let stream = download(seed, size, seed % 2 == 0, buffer, seed % 15, &mut Small::new(seed % 7 < 3));
        assert_eq!(bodies(&stream), [content(size)], "seed {seed}");
    }
}

#[test]
fn smoltcp_gets_large_answers() {
    for seed in 0..60u64 {
        let size = [15_500, 60_000, 400_000][seed as usize % 3];
        let buffer = [3000, 20_000, 60_000][seed as usize / 3 % 3];
        let mut replicas = Large([0, 1].map(|_| Node::new(site_of(&[size]))));
        // None, one or both replicas know of the other. smoltcp ignores a segment that acknowledges
        // less than an earlier one did.
        for node in replicas.0.iter_mut().take(seed as usize / 9 % 3) {
            node.downloads.know_others(Some(0), 0, 0);
        }
        let stream = download(seed, size, true, buffer, seed % 8, &mut replicas);
        assert_eq!(bodies(&stream), [content(size)], "seed {seed}");
    }
}
