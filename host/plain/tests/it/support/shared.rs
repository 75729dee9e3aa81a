//! Clients and servers with one connection each, over one bottleneck.

use std::collections::BTreeMap;

use super::client::Client;
use super::path::{Fate, Path, Server, Way};

/// A connection.
pub struct Flow {
    pub client: Client,
    pub server: Box<dyn Server>,
    /// Start of the connection, microseconds.
    pub begins: u64,
    /// Time at which its client was done.
    pub done: Option<u64>,
}

impl Flow {
    pub fn new(client: Client, server: Box<dyn Server>, begins: u64) -> Flow {
        Flow { client, server, begins, done: None }
    }
}

/// Runs until all flows are done or `until` microseconds have passed. `fate` decides on each packet
/// of a connection. Returns the number of packets for which the queue had no room.
pub fn share(path: &Path, flows: &mut [Flow], until: u64, fate: &mut dyn FnMut(usize, Way) -> Fate) -> usize {
    let mut events: BTreeMap<(u64, usize), (usize, Way, Vec<u8>)> = BTreeMap::new();
    let (mut now, mut count, mut free, mut overflowed) = (0u64, 0usize, 0u64, 0);
    let mut waiting = std::collections::VecDeque::<u64>::new();
    let mut said: Vec<(usize, Way, Vec<u8>)> = Vec::new();
    let mut opened = vec![false; flows.len()];
    loop {
        for (n, way, packet) in said.drain(..) {
            let mut at = now + path.delay;
            if way == Way::ToClient
                && let Some(takes) = (packet.len() as u64 * 1_000_000).checked_div(path.rate)
            {
                while waiting.front().is_some_and(|left| *left <= now) {
                    waiting.pop_front();
                }
                if waiting.len() >= path.queue {
                    overflowed += 1;
                    continue;
                }
                free = free.max(now) + takes;
                waiting.push_back(free);
                at = free + path.delay;
            }
            match fate(n, way) {
                Fate::Lost => continue,
                Fate::Arrives => {}
                Fate::Late(more) => at += more,
            }
            count += 1;
            events.insert((at, count), (n, way, packet));
        }
        let arrives = events.first_key_value().map(|((time, _), _)| *time);
        let wakes =
            flows.iter().enumerate().filter(|(_, flow)| flow.done.is_none()).filter_map(|(n, flow)| {
                let begins = (!opened[n]).then_some(flow.begins);
                let speaks = flow.client.timer().filter(|_| opened[n]).map(|ms| ms * 1000);
                let time = [begins, speaks, flow.server.deadline()].into_iter().flatten().min()?;
                Some((time, n))
            });
        let wakes = wakes.min();
        let Some(time) = arrives.into_iter().chain(wakes.map(|(time, _)| time)).min() else { break };
        now = now.max(time);
        if now > until {
            break;
        }
        if arrives == Some(time) {
            let (_, (n, way, packet)) = events.pop_first().unwrap();
            let flow = &mut flows[n];
            if flow.done.is_some() {
                continue;
            }
            match way {
                Way::ToClient => {
                    let out = flow.client.receive(now / 1000, &packet);
                    said.extend(out.into_iter().map(|p| (n, Way::ToServer, p)));
                    flow.done = flow.client.is_done().then_some(now);
                }
                Way::ToServer => {
                    said.extend(flow.server.take(&packet, now).into_iter().map(|p| (n, Way::ToClient, p)));
                }
            }
        } else if let Some((_, n)) = wakes {
            let flow = &mut flows[n];
            if !opened[n] {
                opened[n] = true;
                said.extend(flow.client.open(now / 1000).into_iter().map(|p| (n, Way::ToServer, p)));
            } else if flow.client.timer().is_some_and(|ms| ms * 1000 <= now) {
                said.extend(flow.client.fire(now / 1000).into_iter().map(|p| (n, Way::ToServer, p)));
            } else {
                said.extend(flow.server.say(now).into_iter().map(|p| (n, Way::ToClient, p)));
            }
        }
    }
    overflowed
}
