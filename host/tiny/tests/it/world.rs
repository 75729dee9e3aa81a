//! A client and a server with a link of 10 ms between them, in virtual time.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use crate::allocations;
use rivulet_packet::checksum::Sum;
use rivulet_packet::{EthHeader, eth};
use rivulet_tiny::{Counters, Keys, Page, Report, Server, Site};
use rivulet_transport::Time;
use rivulet_transport::client::{Config, Connection, Event, Read};

const CLIENT: &str = "10.9.0.7:40000";
const SERVICE: &str = "10.9.0.1:80";
const MAC: [u8; 6] = [2, 0, 10, 9, 0, 1];
const NEIGHBOUR: [u8; 6] = [2, 0, 10, 9, 0, 7];
/// One direction, microseconds.
const DELAY: u64 = 10_000;
/// The longest transfer, microseconds.
const LONGEST: u64 = 600_000_000;

/// Where the TCP header begins in a frame.
pub const TCP: usize = 14 + 20;

/// 200,000 bytes without short repetitions.
pub const PICTURE: &[u8] = &{
    let (mut bytes, mut state, mut i) = ([0; 200_000], 1u32, 0);
    while i < bytes.len() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bytes[i] = (state >> 24) as u8;
        i += 1;
    }
    bytes
};

const INDEX: Page = Page { path: "/", media_type: "text/html", content: b"<p>" };

pub const SITE: Site = Site {
    pages: &[INDEX, Page { path: "/picture", media_type: "image/png", content: PICTURE }],
    report: Some(Report { path: "/report", make: report }),
};

/// A later version of the site, with another picture of the same size.
pub const OTHER_SITE: Site = Site {
    pages: &[INDEX, Page { path: "/picture", media_type: "image/png", content: &[7; PICTURE.len()] }],
    ..SITE
};

/// 200 equal digits that differ from request to request.
fn report(counters: &Counters) -> arrayvec::ArrayString<{ rivulet_tiny::TEXT_BYTES }> {
    (0..200)
        .map(|_| char::from(b'0' + (counters.frames % 10) as u8))
        .collect::<String>()
        .as_str()
        .try_into()
        .unwrap()
}

pub fn server(site: &Site) -> Server {
    Server::new(MAC, SERVICE.parse().unwrap(), &Keys(std::array::from_fn(|i| i as u8)), 5, *site)
}

/// A request after which the connection closes, with more header fields.
pub fn get(path: &str, fields: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: h\r\n{fields}Connection: close\r\n\r\n")
}

/// Position of `wanted` in `bytes`.
pub fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

/// Head and body of an answer.
pub fn divide(answer: &[u8]) -> (&[u8], &[u8]) {
    let at = find(answer, b"\r\n\r\n").expect("a head") + 4;
    (&answer[..at], &answer[at..])
}

pub struct World {
    pub server: Server,
    /// Each frame with this number loses its way; 0: none.
    pub lose_every: u64,
    /// The server starts again after this many frames; 0: never.
    pub restart_every: u64,
    pub restarts: u64,
    client: Connection,
    now: u64,
    frames: u64,
    /// Packets for the client, with their times.
    down: VecDeque<(u64, Vec<u8>)>,
    received: Vec<u8>,
    ended: bool,
    failed: bool,
}

impl World {
    pub fn new() -> World {
        World::of_client(CLIENT)
    }

    fn of_client(local: &str) -> World {
        let now = 1_700_000_000_000_000;
        let (local, remote): (SocketAddr, SocketAddr) = (local.parse().unwrap(), SERVICE.parse().unwrap());
        World {
            server: server(&SITE),
            lose_every: 0,
            restart_every: 0,
            restarts: 0,
            client: Connection::open(Config::default(), local, remote, Time(now)),
            now,
            frames: 0,
            down: VecDeque::new(),
            received: Vec::new(),
            ended: false,
            failed: false,
        }
    }

    pub fn write(&mut self, data: &[u8]) {
        assert_eq!(self.client.write(0, data, Time(self.now)), data.len());
    }

    /// Writes a request and returns head and body of the whole answer.
    pub fn fetch(&mut self, request: impl AsRef<[u8]>) -> (String, Vec<u8>) {
        self.write(request.as_ref());
        let answer = self.read_to_end();
        let (head, body) = divide(&answer);
        (String::from_utf8(head.to_vec()).unwrap(), body.to_vec())
    }

    /// Runs until the stream ends, and returns all that it carried.
    pub fn read_to_end(&mut self) -> Vec<u8> {
        self.run(self.now + LONGEST);
        assert!(self.ended, "only {} bytes came", self.received.len());
        std::mem::take(&mut self.received)
    }

    /// The bytes received so far.
    pub fn received(&self) -> Vec<u8> {
        self.received.clone()
    }

    /// Whether the connection failed.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    pub fn run_for(&mut self, microseconds: u64) {
        self.run(self.now + microseconds);
    }

    fn run(&mut self, until: u64) {
        loop {
            self.pump();
            let next = self.down.front().map(|(at, _)| *at);
            let timer = self.client.poll_timeout().map(|t| t.0);
            let next = next.into_iter().chain(timer).min().unwrap_or(until).max(self.now);
            if self.ended || next >= until {
                self.now = if self.ended { self.now } else { until };
                return;
            }
            self.now = next;
            while self.down.front().is_some_and(|(at, _)| *at <= next) {
                let (_, packet) = self.down.pop_front().unwrap();
                let _ = self.client.handle_input(Time(next), &packet);
            }
            self.client.handle_timeout(Time(next));
        }
    }

    /// Sends and reads what the client has.
    fn pump(&mut self) {
        let mut packet = [0; 2048];
        while let Some(length) = self.client.poll_transmit(Time(self.now), &mut packet) {
            let frame = framed(&packet[..length]);
            if !self.is_lost() {
                self.deliver(&frame);
            }
        }
        while let Some(event) = self.client.poll() {
            self.failed |= matches!(event, Event::Failed(_));
        }
        loop {
            match self.client.read(0, &mut packet) {
                Read::Bytes(n) => self.received.extend_from_slice(&packet[..n]),
                Read::Blocked => return,
                Read::End => {
                    self.ended = true;
                    return;
                }
            }
        }
    }

    fn is_lost(&mut self) -> bool {
        self.frames += 1;
        self.lose_every > 0 && self.frames.is_multiple_of(self.lose_every)
    }

    /// Passes a frame to the server. The answers reach the client one round trip later.
    pub fn deliver(&mut self, frame: &[u8]) {
        if self.restart_every > 0 && self.frames.is_multiple_of(self.restart_every) {
            self.server = server(&SITE);
            self.restarts += 1;
        }
        let (frames, lose, at) = (&mut self.frames, self.lose_every, self.now + 2 * DELAY);
        let down = &mut self.down;
        let mut send = |frame: &[u8]| {
            allocations::uncounted(|| {
                assert_eq!((&frame[..6], &frame[6..12]), (&NEIGHBOUR[..], &MAC[..]));
                *frames += 1;
                if lose == 0 || !frames.is_multiple_of(lose) {
                    down.push_back((at, frame[14..].to_vec()));
                }
            });
        };
        allocations::counted(|| self.server.receive(frame, Time(self.now + DELAY), &mut send));
    }

    /// Passes a frame to the server and discards the answers.
    pub fn inject(&mut self, frame: &[u8]) {
        let before = self.down.len();
        self.deliver(frame);
        self.down.truncate(before);
    }

    /// The frames of another client that fetches a page: SYN, requests, the end.
    pub fn recorded() -> Vec<Vec<u8>> {
        let mut other = World::of_client("10.9.0.7:40001");
        let mut frames = Vec::new();
        other.write(get("/", "").as_bytes());
        for _ in 0..5 {
            let mut packet = [0; 2048];
            while let Some(length) = other.client.poll_transmit(Time(other.now), &mut packet) {
                frames.push(framed(&packet[..length]));
                other.deliver(frames.last().unwrap());
            }
            other.now += 2 * DELAY;
            while let Some((_, packet)) = other.down.pop_front() {
                let _ = other.client.handle_input(Time(other.now), &packet);
            }
        }
        frames
    }
}

fn framed(packet: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 14];
    assert!(EthHeader { dst: MAC, src: NEIGHBOUR, vlan: None }.fill(&mut frame, eth::IPV4));
    frame.extend_from_slice(packet);
    frame
}

/// Computes the checksum of a changed segment.
pub fn mend(frame: &mut [u8]) {
    let ip = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&frame[at..at + 4]).unwrap());
    let (src, dst) = (ip(26), ip(30));
    frame[TCP + 16..TCP + 18].fill(0);
    let sum = Sum::new().pseudo_header(src, dst, 6, frame.len() - TCP).bytes(&frame[TCP..]).finish();
    frame[TCP + 16..TCP + 18].copy_from_slice(&sum.to_be_bytes());
}
