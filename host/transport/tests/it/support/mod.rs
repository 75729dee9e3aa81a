//! A client and stateless servers in virtual time, with a network that each test controls.
#![allow(dead_code)]

pub mod laboratory;
pub mod steady;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use rivulet_packet::{Consumed, NonceKey, Segment, Want};
use rivulet_transport::MacKey;
use rivulet_transport::client::{Config, Connection, Event, Read};
use rivulet_transport::server::{Answer, HeadKind, Plan, Policy, Refusal, Reply, Server, Verdict, step};
use rivulet_transport::{KeyRing, NonceKeys, Time};
use rivulet_transport::{MAX_UCONT, UserContinuation};

pub const CLIENT: &str = "192.0.2.1:40000";
pub const SERVICE: &str = "198.51.100.80:80";

pub fn keys() -> KeyRing {
    let mut ring = KeyRing::new(7);
    ring.add_seal(1, &[0x11; 16]);
    ring.add_nonce(1, nonce_keys(1));
    ring.use_seal(1);
    ring.use_nonce(1);
    ring
}

pub fn nonce_keys(epoch: u32) -> NonceKeys {
    NonceKeys {
        original: NonceKey { k0: epoch, k1: 0x1234_5678 },
        retransmitted: NonceKey { k0: epoch, k1: 0x8765_4321 },
        opening: MacKey::new(&[epoch as u8; 16]),
    }
}

/// The byte at an offset of the response of `size` bytes.
pub fn content(size: u64, offset: u64) -> u8 {
    ((offset ^ size).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// A stateless application: each line of input is the size of a response. The next output offset
/// and the incomplete line are sealed into the input continuation.
pub fn answer(plan: &Plan<'_>, keys: &KeyRing, send: impl FnMut(&[u8])) {
    answer_or(plan, keys, |_| None, send);
}

/// As [`answer`], but `instead` may replace the data for a want.
pub fn answer_or(
    plan: &Plan<'_>,
    keys: &KeyRing,
    mut instead: impl FnMut(&Want) -> Option<Answer<'static>>,
    mut send: impl FnMut(&[u8]),
) {
    let input = plan.input(keys).expect("input of an honest client");
    let mut made: Vec<Vec<u8>> = Vec::new();
    let mut first: Option<(u64, u64)> = None;
    let mut consumed = None;
    let seal = |what: UserContinuation<'_>| {
        let mut out = vec![0; MAX_UCONT];
        let n = plan.seal_ucont(keys, &what, &mut out).unwrap();
        out.truncate(n);
        out
    };
    if let Some(input) = input {
        let opaque = input.continuation.map_or(&[][..], |c| c.opaque);
        let mut next = u64::from(input.stream) << 48;
        let mut line = Vec::new();
        if let Some((head, rest)) = opaque.split_first_chunk::<8>() {
            next = u64::from_be_bytes(*head);
            line.extend_from_slice(rest);
        }
        let start = input.continuation.map_or(0, |c| c.valid_start);
        assert_eq!(input.offset, start, "input goes on where its continuation says");
        for &byte in input.data {
            if byte != b'\n' {
                line.push(byte);
                continue;
            }
            let size: u64 = String::from_utf8_lossy(&line).trim().parse().unwrap();
            line.clear();
            made.push(seal(UserContinuation {
                input: false,
                stream: input.stream,
                valid_start: next,
                valid_end: next + size,
                identity: [1; 16],
                opaque: &[next.to_be_bytes(), size.to_be_bytes()].concat(),
            }));
            first.get_or_insert((next, size));
            next += size;
        }
        let end = input.offset + input.data.len() as u64;
        made.push(seal(UserContinuation {
            input: true,
            stream: input.stream,
            valid_start: end,
            valid_end: end,
            identity: [0; 16],
            opaque: &[&next.to_be_bytes()[..], &line].concat(),
        }));
        consumed = Some(Consumed { stream: input.stream, offset: end });
    }
    let uconts: Vec<&[u8]> = made.iter().map(|u| &u[..]).collect();
    let mut packet = vec![0; 2048];
    let speaks = plan.heads().iter().position(|h| h.kind == HeadKind::New);
    for (i, head) in plan.heads().iter().enumerate() {
        let mut reply = Reply::default();
        if Some(i) == speaks && head.is_for_application() {
            (reply.uconts, reply.consumed) = (&uconts, consumed);
        }
        let data: Vec<u8>;
        if let Some(other) = head.want.filter(|_| head.is_for_application()).and_then(|want| instead(&want)) {
            reply.answer = other;
        } else if let Some(want) = head.want.filter(|_| head.is_for_application()) {
            let c = plan.output_continuation(&want, keys).expect("an honest want");
            let (start, size) = range_of(c.opaque);
            let length = (want.length as usize).min(head.room.saturating_sub(reply.overhead()));
            let end = (want.offset + length as u64).min(start + size);
            data = (want.offset..end).map(|at| content(size, at - start)).collect();
            reply.answer = Answer::Data { offset: want.offset, data: &data, end: false };
        } else if let Some((start, size)) = first.filter(|_| Some(i) == speaks && head.is_for_application()) {
            let length = (size as usize).min(head.room.saturating_sub(reply.overhead()));
            data = (0..length as u64).map(|at| content(size, at)).collect();
            reply.answer = Answer::Data { offset: start, data: &data, end: false };
        }
        if reply.overhead() > head.room {
            reply = Reply::default();
        }
        let sent = plan.respond(i, &reply, keys, &mut packet).unwrap();
        send(&packet[..sent.length]);
    }
}

fn range_of(opaque: &[u8]) -> (u64, u64) {
    let word = |at: usize| u64::from_be_bytes(opaque[at..at + 8].try_into().unwrap());
    (word(0), word(8))
}

/// Direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Up,
    Down,
}

/// The fate of a packet: the delays after which copies of it arrive.
pub type Fate = Vec<u64>;

pub struct World {
    pub client: Connection,
    pub keys: KeyRing,
    pub policy: Policy,
    pub now: u64,
    /// All packets, for tests that inspect them in flight.
    pub clock: std::rc::Rc<std::cell::Cell<u64>>,
    queue: BTreeMap<(u64, u64), (Way, Vec<u8>)>,
    serial: u64,
    pub events: Vec<Event>,
    pub received: BTreeMap<u16, Vec<u8>>,
    pub refusals: Vec<Refusal>,
    pub reading: bool,
    /// A stream that the test does not read.
    pub unread: Option<u16>,
    pub sent_packets: u64,
    /// The application's reply to a want in place of its data, by time.
    pub instead: Option<Instead>,
    damage: bool,
    /// A server with soft state in place of the bare step.
    pub server: Option<Server>,
}

/// The application's reply in place of data, by time in microseconds.
pub type Instead = Box<dyn FnMut(u64, &Want) -> Option<Answer<'static>>>;

thread_local! {
    static DAMAGED: std::cell::RefCell<Option<Vec<u8>>> = const { std::cell::RefCell::new(None) };
}

impl World {
    pub fn new(config: Config) -> Self {
        let (local, remote): (SocketAddr, SocketAddr) = (CLIENT.parse().unwrap(), SERVICE.parse().unwrap());
        let now = 1_000_000;
        Self {
            client: Connection::open(config, local, remote, Time(now)),
            keys: keys(),
            policy: Policy::default(),
            now,
            clock: std::rc::Rc::default(),
            queue: BTreeMap::new(),
            serial: 0,
            events: Vec::new(),
            received: BTreeMap::new(),
            refusals: Vec::new(),
            reading: true,
            unread: None,
            sent_packets: 0,
            instead: None,
            damage: false,
            server: None,
        }
    }

    pub fn write(&mut self, stream: u16, data: &[u8]) {
        assert_eq!(self.client.write(stream, data, Time(self.now)), data.len());
    }

    fn send(&mut self, way: Way, packet: &[u8], fate: &mut impl FnMut(Way, &[u8]) -> Fate) {
        self.sent_packets += 1;
        if std::env::var_os("TRACE").is_some() {
            println!("{} {way:?} {}", self.now, Segment::parse_packet(packet).unwrap());
        }
        let delays = fate(way, packet);
        let damaged = if self.damage { DAMAGED.with(|d| d.borrow_mut().take()) } else { None };
        let packet = damaged.as_deref().unwrap_or(packet);
        for delay in delays {
            self.serial += 1;
            self.queue.insert((self.now + delay, self.serial), (way, packet.to_vec()));
        }
    }

    fn pump(&mut self, fate: &mut impl FnMut(Way, &[u8]) -> Fate) {
        self.clock.set(self.now);
        let mut packet = vec![0; 2048];
        loop {
            while let Some(n) = self.client.poll_transmit(Time(self.now), &mut packet) {
                let out = packet[..n].to_vec();
                self.send(Way::Up, &out, fate);
            }
            let mut changed = false;
            while let Some(event) = self.client.poll() {
                if let Event::Readable(stream) = event
                    && self.reading
                    && self.unread != Some(stream)
                {
                    self.read(stream);
                    changed = true;
                }
                self.events.push(event);
            }
            if !changed {
                return;
            }
        }
    }

    pub fn read(&mut self, stream: u16) {
        let mut buf = [0; 4096];
        while let Read::Bytes(n) = self.client.read(stream, &mut buf) {
            self.received.entry(stream).or_default().extend_from_slice(&buf[..n]);
        }
    }

    /// Runs until `done` or until `until` (virtual microseconds). Returns whether it was done.
    pub fn run(
        &mut self,
        until: u64,
        mut fate: impl FnMut(Way, &[u8]) -> Fate,
        mut done: impl FnMut(&Self) -> bool,
    ) -> bool {
        let mut steps = 0u64;
        loop {
            self.pump(&mut fate);
            if done(self) {
                return true;
            }
            steps += 1;
            assert!(steps < 20_000_000, "the world spins");
            let next_packet = self.queue.first_key_value().map(|((at, _), _)| *at);
            if self.client.poll_timeout().is_some_and(|t| t.0 <= self.now) {
                // After its handling a timer must not be due any more, or a real driver would spin.
                self.client.handle_timeout(Time(self.now));
                self.pump(&mut fate);
                let again = self.client.poll_timeout();
                assert!(again.is_none_or(|t| t.0 > self.now), "{again:?} at {}: {:?}", self.now, self.client);
            }
            let timer = self.client.poll_timeout().map(|t| t.0);
            let Some(next) = next_packet.into_iter().chain(timer).min().filter(|t| *t <= until) else {
                self.now = self.now.max(until.min(timer.unwrap_or(until)));
                return false;
            };
            self.now = self.now.max(next);
            if next_packet == Some(next) {
                let (_, (way, packet)) = self.queue.pop_first().unwrap();
                match way {
                    Way::Down => {
                        let _ = self.client.handle_input(Time(self.now), &packet);
                    }
                    Way::Up => self.serve(&packet, &mut fate),
                }
            }
            if timer.is_some_and(|t| t <= self.now) {
                self.client.handle_timeout(Time(self.now));
            }
        }
    }

    /// Stops the client for `length`. Packets wait for it, with their arrival times if `stamped`.
    pub fn freeze(&mut self, length: u64, stamped: bool, mut fate: impl FnMut(Way, &[u8]) -> Fate) {
        let thaw = self.now + length;
        let mut waiting = Vec::new();
        while let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 <= thaw) {
            self.now = self.now.max(entry.key().0);
            match entry.remove() {
                (Way::Down, packet) => waiting.push((self.now, packet)),
                (Way::Up, packet) => self.serve(&packet, &mut fate),
            }
        }
        self.now = thaw;
        for (came, packet) in waiting {
            let _ = self.client.handle_input(Time(if stamped { came } else { thaw }), &packet);
        }
        if self.client.poll_timeout().is_some_and(|due| due.0 <= thaw) {
            self.client.handle_timeout(Time(thaw));
        }
    }

    /// As [`World::run`], but packets may be changed in flight.
    pub fn run_damaging(
        &mut self,
        until: u64,
        mut fate: impl FnMut(Way, &mut Vec<u8>) -> Fate,
        done: impl FnMut(&Self) -> bool,
    ) -> bool {
        self.damage = true;
        let result = self.run(
            until,
            |way, packet| {
                let mut copy = packet.to_vec();
                let out = fate(way, &mut copy);
                DAMAGED.with(|d| *d.borrow_mut() = (copy != packet).then_some(copy));
                out
            },
            done,
        );
        self.damage = false;
        result
    }

    /// Suspends the connection and puts another one in its place.
    pub fn suspend(&mut self) -> Vec<u8> {
        let (here, there) = (CLIENT.parse().unwrap(), SERVICE.parse().unwrap());
        let spare = Connection::open(Config::default(), here, there, Time(self.now));
        std::mem::replace(&mut self.client, spare).suspend().expect("an open connection")
    }

    /// Suspends the connection and resumes it from another address after a pause.
    pub fn resume(&mut self, local: &str, pause: u64) {
        let bytes = self.suspend();
        for cut in 0..bytes.len() {
            let half =
                Connection::resume(&bytes[..cut], Config::default(), local.parse().unwrap(), Time(self.now));
            assert!(half.is_err(), "cut to {cut}");
        }
        self.queue.clear();
        self.now += pause;
        let resumed = Connection::resume(&bytes, Config::default(), local.parse().unwrap(), Time(self.now));
        self.client = resumed.unwrap();
    }

    fn serve(&mut self, packet: &[u8], fate: &mut impl FnMut(Way, &[u8]) -> Fate) {
        let segment = Segment::parse_packet(packet).unwrap();
        if segment.verify().is_err() {
            return;
        }
        let mut out = Vec::new();
        let verdict = match &mut self.server {
            Some(server) => server.accept(&segment, &self.keys, Time(self.now)),
            None => step(&segment, &self.keys, Time(self.now), &self.policy),
        };
        match verdict {
            Err(refusal) => {
                if std::env::var_os("TRACE").is_some() {
                    let request = segment.request().unwrap();
                    println!("{} refused: {refusal}: {request}", self.now);
                    let c = request.continuation.unwrap().fields;
                    for entry in request.proof.ranges() {
                        let Some(nonces) = self.keys.nonce(c.nonce_epoch) else { break };
                        let entry = std::iter::once(entry);
                        let right = rivulet_transport::sums_are_right(nonces, c.tag, c.base, entry.clone());
                        println!("  {:?} {right}", entry.collect::<Vec<_>>());
                    }
                }
                self.refusals.push(refusal);
            }
            Ok(Verdict::Terminate) => {}
            Ok(Verdict::Respond(plan)) => {
                let (now, instead) = (self.now, &mut self.instead);
                let other = |want: &Want| instead.as_mut().and_then(|f| f(now, want));
                answer_or(&plan, &self.keys, other, |p| out.push(p.to_vec()));
            }
        }
        for packet in out {
            self.send(Way::Down, &packet, fate);
        }
    }

    pub fn got(&self, stream: u16) -> &[u8] {
        self.received.get(&stream).map_or(&[], |v| v)
    }
}

pub fn expected(size: u64) -> Vec<u8> {
    (0..size).map(|at| content(size, at)).collect()
}

/// A small deterministic generator (xorshift64*).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn chance(&mut self, p: f64) -> bool {
        ((self.next() >> 11) as f64 / (1u64 << 53) as f64) < p
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
}
