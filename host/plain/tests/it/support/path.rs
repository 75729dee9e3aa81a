//! A path with a bottleneck between one client and replicas without shared state, in virtual time;
//! a function chooses the replica of each packet. Large answers have timers, so replicas also get
//! the time.

use std::collections::BTreeMap;

use rivulet_plain::{Downloads, Segment, Site, Verdict, is_under_way};

use super::client::Client;

/// Fate of a packet on the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Arrives,
    Lost,
    /// Delayed by this many microseconds more than the others.
    Late(u64),
}

/// Direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    ToServer,
    ToClient,
}

pub struct Path {
    /// Delay in one direction, microseconds.
    pub delay: u64,
    /// Rate towards the client in bytes a second, and the queue's length; 0: unlimited.
    pub rate: u64,
    pub queue: usize,
    /// Interval in which packets to the replicas are delayed to its end, microseconds.
    pub still: (u64, u64),
    /// Time at which the client gives up, microseconds.
    pub patience: u64,
}

impl Default for Path {
    fn default() -> Self {
        Path { delay: 5_000, rate: 0, queue: usize::MAX, still: (0, 0), patience: 4 * 3_600_000_000 }
    }
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Passed {
    /// Time at which the client was done, microseconds.
    pub time: u64,
    /// Number of packets in each direction.
    pub to_server: usize,
    pub to_client: usize,
    /// Bytes of packets to the client.
    pub octets: usize,
    /// Packets dropped by the queue before the bottleneck.
    pub overflowed: usize,
    /// The longest time in which the client received nothing new.
    pub stall: u64,
}

/// A server under test.
pub trait Server {
    /// Its answer to a packet at `now`, microseconds.
    fn take(&mut self, packet: &[u8], now: u64) -> Vec<Vec<u8>>;

    /// Its segments by timer, and the time of the next ones.
    fn say(&mut self, now: u64) -> Vec<Vec<u8>>;
    fn deadline(&self) -> Option<u64>;
}

/// A replica.
pub struct Node {
    pub site: Site,
    pub downloads: Downloads<()>,
    pub alive: bool,
    /// Time of the ToR's report of another replica's death.
    pub learns: Option<u64>,
    /// Number of replicas that have died so far.
    pub died: u32,
}

impl Node {
    pub fn new(site: Site) -> Node {
        Node {
            site: Site { large: true, ..site },
            downloads: Downloads::new(64),
            alive: true,
            learns: None,
            died: 0,
        }
    }
}

impl Server for Node {
    fn take(&mut self, packet: &[u8], now: u64) -> Vec<Vec<u8>> {
        let segment = Segment::parse(packet).expect("what clients send is well formed");
        let mut out = Vec::new();
        if is_under_way(&segment) {
            let _ = self.downloads.hear(&self.site, &segment, None, (), now);
        } else {
            match self.site.judge(&segment, 29_000_000 + (now / 60_000_000) as u32, None) {
                Verdict::Begin(asked) => self.downloads.begin(&self.site, &segment, &asked, None, (), now),
                Verdict::Say(header) => {
                    let mut reply = vec![0; header.length()];
                    header.finish(&mut reply, 0).unwrap();
                    out.push(reply);
                }
                Verdict::Drop(_) => {}
                // Only a hostile client causes these.
                Verdict::Answer(_) | Verdict::Continue(_) | Verdict::Kernel(_) | Verdict::Adopt(..) => {}
            }
        }
        out.extend(self.say(now));
        out
    }

    fn say(&mut self, now: u64) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        if self.learns.take_if(|time| *time <= now).is_some() {
            self.died += 1;
            self.downloads.know_others(Some(now), self.died, now);
        }
        while let Some(packet) = self.downloads.next(&self.site, now) {
            let mut octets = vec![0; packet.length()];
            assert_eq!(packet.write(&mut octets), Ok(octets.len()));
            out.push(octets);
            assert!(out.len() < 2000, "a replica that sends without end");
        }
        out
    }

    fn deadline(&self) -> Option<u64> {
        self.downloads.deadline().into_iter().chain(self.learns).min()
    }
}

/// Chooses the replica that gets a packet to the service.
pub type Choose<'f> = dyn FnMut(&[u8], &mut [Node], u64) -> Option<usize> + 'f;

impl Path {
    /// Runs until the client is done or its user timeout has passed.
    pub fn run(
        &self,
        client: &mut Client,
        nodes: &mut [Node],
        fate: &mut dyn FnMut(Way, usize) -> Fate,
        choose: &mut Choose<'_>,
    ) -> Passed {
        let mut passed = Passed::default();
        let mut events: BTreeMap<(u64, usize), (Way, Vec<u8>)> = BTreeMap::new();
        let (mut now, mut count, mut free, mut waiting) = (0u64, 0usize, 0u64, BTreeMap::<u64, usize>::new());
        let (mut progress, mut had) = (0, 0);
        let first = client.open(0);
        let mut said: Vec<(Way, Vec<u8>)> = first.into_iter().map(|p| (Way::ToServer, p)).collect();
        loop {
            for (way, packet) in said.drain(..) {
                let number = match way {
                    Way::ToServer => &mut passed.to_server,
                    Way::ToClient => &mut passed.to_client,
                };
                let fate = fate(way, *number);
                *number += 1;
                let mut at = now + self.delay;
                if way == Way::ToClient {
                    passed.octets += packet.len();
                    if let Some(takes) = (packet.len() as u64 * 1_000_000).checked_div(self.rate) {
                        waiting = waiting.split_off(&(now + 1));
                        if waiting.len() >= self.queue {
                            passed.overflowed += 1;
                            continue;
                        }
                        free = free.max(now) + takes;
                        *waiting.entry(free).or_default() += 1;
                        at = free + self.delay;
                    }
                }
                match fate {
                    Fate::Lost => continue,
                    Fate::Arrives => {}
                    Fate::Late(more) => at += more,
                }
                if way == Way::ToServer && (self.still.0..self.still.1).contains(&at) {
                    at = self.still.1;
                }
                count += 1;
                events.insert((at, count), (way, packet));
            }
            if client.is_done() {
                break;
            }
            let arrives = events.first_key_value().map(|((time, _), _)| *time);
            let speaks = client.timer().map(|ms| ms * 1000);
            let wakes = nodes.iter().filter(|n| n.alive).filter_map(|n| n.deadline()).min();
            let Some(time) = [arrives, speaks, wakes].into_iter().flatten().min() else { break };
            now = now.max(time);
            if now > self.patience {
                break;
            }
            if arrives == Some(time) {
                let (_, (way, packet)) = events.pop_first().unwrap();
                match way {
                    // The packet belongs to another client.
                    Way::ToClient if Segment::parse(&packet).unwrap().header.dst != client.addr => {}
                    Way::ToClient => {
                        let out = client.receive(now / 1000, &packet);
                        said.extend(out.into_iter().map(|p| (Way::ToServer, p)));
                        if client.stream.len() > had {
                            passed.stall = passed.stall.max(now - progress);
                            (progress, had) = (now, client.stream.len());
                        }
                    }
                    Way::ToServer => {
                        if let Some(n) = choose(&packet, nodes, now).filter(|n| nodes[*n].alive) {
                            said.extend(nodes[n].take(&packet, now).into_iter().map(|p| (Way::ToClient, p)));
                        }
                    }
                }
            } else if wakes == Some(time) {
                for node in nodes.iter_mut().filter(|n| n.alive) {
                    said.extend(node.say(now).into_iter().map(|p| (Way::ToClient, p)));
                }
            } else {
                let out = client.fire(now / 1000);
                said.extend(out.into_iter().map(|p| (Way::ToServer, p)));
            }
        }
        passed.time = now;
        passed
    }
}
