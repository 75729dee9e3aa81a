//! A network in virtual time between one client and several replicas without shared state.

use std::collections::BTreeMap;

use std::cell::RefCell;

use rivulet_plain::{Cause, Flight, Handshake, Replica, Ring, Segment, Site, Verdict};

use super::client::Client;

/// Delay in one direction, milliseconds.
const DELAY: u64 = 10;
/// Time after which a client would have given up, milliseconds.
const LONG: u64 = 400 * 3_600_000;

/// Direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    ToServer,
    ToClient,
}

/// Fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Arrives,
    Lost,
    /// Delayed by this many milliseconds more than the others.
    Late(u64),
    /// Arrives twice, the second time this many milliseconds later.
    Twice(u64),
}

/// The result of a run.
#[derive(Debug, Default)]
pub struct Outcome {
    pub milliseconds: u64,
    pub to_server: usize,
    pub to_client: usize,
    /// Bytes of IP packets in each direction.
    pub octets_in: usize,
    pub octets_out: usize,
    pub kernel: Vec<Cause>,
    pub adopted: Vec<(Cause, Handshake)>,
    /// Connections that the kernel could have taken over in the middle of an answer; in this test
    /// it does not.
    pub handed: Vec<Handshake>,
}

/// Returns the packets with which a server answers a packet at a time (milliseconds).
pub type Server<'f> = dyn FnMut(&[u8], &Net<'_>, u64, &mut Outcome) -> Vec<Vec<u8>> + 'f;

pub struct Net<'s> {
    pub replicas: Vec<&'s Site>,
    /// The replicas' rings, if they have any.
    pub memories: Vec<RefCell<Replica>>,
    /// Length of the longest packet that the path to the client carries.
    pub path: usize,
    /// The path MTU that is reported to the replicas.
    pub told: Option<u16>,
    /// Time at which the stalled application reads again.
    pub resume: Option<u64>,
    /// The minute at the start.
    pub minute: u32,
}

impl<'s> Net<'s> {
    pub fn new(site: &'s Site) -> Net<'s> {
        Net {
            replicas: vec![site],
            memories: Vec::new(),
            path: 1500,
            told: None,
            resume: None,
            minute: 29_000_000,
        }
    }

    /// Runs until the client is done, or no event is left. `fate` is called for each packet, with
    /// its number in its direction; `replica` chooses the replica of a packet.
    pub fn run(
        &self,
        client: &mut Client,
        fate: &mut dyn FnMut(Way, usize) -> Fate,
        replica: &mut dyn FnMut(usize) -> usize,
    ) -> Outcome {
        self.run_with(client, fate, &mut |packet, net, now, outcome| {
            let chosen = replica(outcome.to_server);
            match net.memories.len() {
                0 => net.answer(net.replicas[chosen % net.replicas.len()], packet, now, outcome),
                count => net.remember(&net.memories[chosen % count], packet, now, outcome),
            }
        })
    }

    /// Like [`run`](Self::run), with another server.
    pub fn run_with(
        &self,
        client: &mut Client,
        fate: &mut dyn FnMut(Way, usize) -> Fate,
        server: &mut Server<'_>,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        let mut events: BTreeMap<(u64, usize), (Way, Vec<u8>)> = BTreeMap::new();
        let (mut now, mut count) = (0, 0);
        let mut post = |events: &mut BTreeMap<_, _>,
                        outcome: &mut Outcome,
                        now: u64,
                        way: Way,
                        packets: Vec<Vec<u8>>| {
            for packet in packets {
                let number = match way {
                    Way::ToServer => &mut outcome.to_server,
                    Way::ToClient => &mut outcome.to_client,
                };
                let fate = fate(way, *number);
                *number += 1;
                match way {
                    Way::ToServer => outcome.octets_in += packet.len(),
                    Way::ToClient => outcome.octets_out += packet.len(),
                }
                if way == Way::ToClient && packet.len() > self.path {
                    continue;
                }
                let mut at = |time: u64, packet: Vec<u8>| {
                    count += 1;
                    events.insert((time, count), (way, packet));
                };
                match fate {
                    Fate::Lost => {}
                    Fate::Arrives => at(now + DELAY, packet),
                    Fate::Late(more) => at(now + DELAY + more, packet),
                    Fate::Twice(more) => {
                        at(now + DELAY, packet.clone());
                        at(now + DELAY + more, packet);
                    }
                }
            }
        };
        let first = client.open(now);
        post(&mut events, &mut outcome, now, Way::ToServer, first);
        let mut resume = self.resume;
        while !client.is_done() && now < LONG {
            let next = events.first_key_value().map(|((time, _), _)| *time);
            let Some(time) = [next, client.timer(), resume].into_iter().flatten().min() else { break };
            now = time;
            outcome.milliseconds = now;
            if next == Some(time) {
                let (_, (way, packet)) = events.pop_first().unwrap();
                match way {
                    Way::ToClient => {
                        let said = client.receive(now, &packet);
                        post(&mut events, &mut outcome, now, Way::ToServer, said);
                    }
                    Way::ToServer => {
                        let said = server(&packet, self, now, &mut outcome);
                        post(&mut events, &mut outcome, now, Way::ToClient, said);
                    }
                }
            } else if resume == Some(time) {
                resume = None;
                let said = client.resume(now);
                post(&mut events, &mut outcome, now, Way::ToServer, said);
            } else {
                let said = client.fire(now);
                post(&mut events, &mut outcome, now, Way::ToServer, said);
            }
        }
        outcome
    }

    /// A replica's answer to a packet.
    pub fn answer(&self, site: &Site, packet: &[u8], now: u64, outcome: &mut Outcome) -> Vec<Vec<u8>> {
        let segment = Segment::parse(packet).expect("what clients send is well formed");
        let minute = self.minute + (now / 60_000) as u32;
        carry_out(site.judge(&segment, minute, self.told), packet, outcome)
    }

    /// Like [`answer`](Self::answer), by a replica with a ring.
    pub fn remember(
        &self,
        replica: &RefCell<Replica>,
        packet: &[u8],
        now: u64,
        outcome: &mut Outcome,
    ) -> Vec<Vec<u8>> {
        let segment = Segment::parse(packet).expect("what clients send is well formed");
        let minute = self.minute + (now / 60_000) as u32;
        carry_out(replica.borrow_mut().receive(&segment, minute, self.told), packet, outcome)
    }

    /// Adds `count` replicas with rings.
    pub fn remembering(mut self, count: usize) -> Net<'s> {
        let memory = || RefCell::new(Replica { site: self.replicas[0].clone(), ring: Some(Ring::new(64)) });
        self.memories = (0..count).map(|_| memory()).collect();
        self
    }
}

/// The packets that a verdict sends.
pub fn carry_out(verdict: Verdict<'_>, packet: &[u8], outcome: &mut Outcome) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    match verdict {
        Verdict::Drop(_) => {}
        Verdict::Kernel(cause) => outcome.kernel.push(cause),
        Verdict::Begin(asked) => panic!("{asked:?}"),
        Verdict::Adopt(cause, handshake) => outcome.adopted.push((cause, handshake)),
        Verdict::Say(header) => {
            let mut reply = vec![0; header.length()];
            header.finish(&mut reply, 0).unwrap();
            assert!(reply.len() <= packet.len(), "what is said is never longer than what was heard");
            out.push(reply);
        }
        Verdict::Continue(handoff) => {
            outcome.handed.push(handoff.handshake);
            // The kernel would retransmit the same bytes.
            let unacknowledged = handoff.unacknowledged();
            let sent = send(&handoff.flight, &mut out);
            assert!(unacknowledged.starts_with(&sent), "{} {}", unacknowledged.len(), sent.len());
        }
        Verdict::Answer(flight) => {
            send(&flight, &mut out);
        }
    }
    out
}

/// Adds the packets of a flight; returns the contiguous data from its first byte.
fn send(flight: &Flight<'_>, out: &mut Vec<Vec<u8>>) -> Vec<u8> {
    let (mut data, mut end) = (Vec::new(), None);
    for piece in flight.pieces() {
        let mut reply = vec![0; flight.length(piece)];
        assert_eq!(flight.write(piece, &mut reply), Ok(reply.len()));
        if *end.get_or_insert(piece.from) == piece.from {
            data.extend_from_slice(Segment::parse(&reply).unwrap().payload);
            end = Some(piece.to);
        }
        out.push(reply);
    }
    data
}
