//! Losses excused because they coincide with the death of a replica: what it gains and what it costs the neighbours.

use crate::client::{Client, Plan};
use crate::dumbbell::{Dumbbell, TcpFlow, queue_for};
use crate::life::{Life, State};
use crate::link;
use crate::net::Network;
use crate::service::{Config, Place, Service};
use crate::tcp;
use crate::{MILLISECOND, Nanos, SECOND};
use rivulet_transport::client::Config as ClientConfig;
use rivulet_transport::excuse::ExcusePolicy;

/// What happens to the first of two replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Nothing.
    Lives,
    /// It dies and stays dead.
    Dies,
    /// It is up and down for 50 ms each.
    Flaps,
}

/// What followed.
#[derive(Debug, Clone, Copy)]
pub struct Effect {
    /// Share of packets that the full link dropped.
    pub dropped: f64,
    /// Bytes of our flow over the mean of its neighbours'.
    pub share: f64,
    /// Bits per second of our flow.
    pub rate: f64,
}

const FATE_AT: Nanos = 15 * SECOND;

/// One flow of ours from two replicas and four Reno flows fill a link; looked at for `time` from the fate on.
pub fn run(seed: u64, fate: Fate, excused: bool, time: Nanos) -> Effect {
    let mut net = Network::new(seed);
    let (rate, delay) = (10_000_000, 25 * MILLISECOND);
    let queue = queue_for(rate, 2 * delay);
    let discipline = link::Discipline::RandomDrop;
    let down = link::Config { rate, delay, queue, discipline, ..link::Config::default() };
    let up = link::Config { delay, ..link::Config::default() };
    let d = Dumbbell::new(&mut net, down, up.clone());
    let mut rng = net.rng();
    let mut start = || rng.below(SECOND);
    let neighbours: Vec<_> =
        (0..4).map(|_| d.tcp(&mut net, TcpFlow { start: start(), ..TcpFlow::default() }).0).collect();
    let mut changes = vec![];
    match fate {
        Fate::Lives => {}
        Fate::Dies => changes.push((FATE_AT, State::Dead)),
        Fate::Flaps => {
            for at in (FATE_AT..FATE_AT + time).step_by(100 * MILLISECOND as usize) {
                changes.extend([(at, State::Dead), (at + 50 * MILLISECOND, State::Up)]);
            }
        }
    }
    let excuse = excused.then_some(ExcusePolicy { replicas: 2, detection: 25_000 });
    let mut c = Config::default();
    c.policy.excuse = excuse;
    let places = [Place { life: Life::new(changes), ..Place::default() }, Place::default()];
    let service = Service::on(&mut net, d.down, up, &places, c.tor, c.tor_checks, c.policy);
    let config = ClientConfig { seed, excuse, ..ClientConfig::default() };
    let ours = service.client(&mut net, Plan { start: start(), size: 1 << 46, config, ..Plan::default() });
    let read = |net: &Network| -> [u64; 4] {
        let sum = neighbours.iter().map(|n| net.node::<tcp::Client>(*n).received_bytes()).sum();
        let counters = net.link(d.down).counters;
        [net.node::<Client>(ours).wire_bytes(), sum, counters.dropped, counters.sent]
    };
    net.run_until(FATE_AT);
    let before = read(&net);
    net.run_until(FATE_AT + time);
    let after = read(&net);
    let grown = |i: usize| (after[i] - before[i]) as f64;
    Effect {
        dropped: grown(2) / (grown(2) + grown(3)),
        share: grown(0) / (grown(1) / neighbours.len() as f64),
        rate: grown(0) * 8.0 * SECOND as f64 / time as f64,
    }
}
