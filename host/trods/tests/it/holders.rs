//! A model of a connection's holders while agents are killed and return, for a model checker:
//! replicas with their incarnations, the store with the records of each, the controller's reports
//! of incarnations, and the replica that gets the client's segments. A connection of a dead replica
//! must be resumed or reset under any order of events.
//!
//! By the former rules ([`Rules::OnDeath`]) the checker finds connections that hang forever: a
//! holder returns as another incarnation before another replica has adopted its connections, and
//! their records are not read again. The present rules are those of
//! `host/rivulet/src/agent/trods.rs` (`Place::answered`) and `hold/rescue.rs`.

use std::collections::BTreeSet;

use stateright::{Checker, Model, Property};

/// Number of replicas. The client's segments go to the first live one that gets connections.
const REPLICAS: usize = 3;
/// Agents that are killed in a run. (Three kills find the same, in 20 s.)
const KILLS: u8 = 2;

/// When a replica reads records, and of which incarnations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rules {
    /// When a death is detected, the records of the incarnation that the controller reported last.
    OnDeath,
    /// Whenever anything changes, and repeatedly for a while, the records of all incarnations that
    /// stored any.
    Always,
}

/// One process of a replica's agent: the replica and its incarnation.
type Process = (usize, u8);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Rack {
    alive: [bool; REPLICAS],
    incarnation: [u8; REPLICAS],
    /// The incarnation of each replica that the controller reported last; 0: none yet.
    told: [u8; REPLICAS],
    /// Whether the replica gets connections.
    takes: [bool; REPLICAS],
    /// The live replicas, as each replica knows them from the ToR's latest answer.
    sees: [[bool; REPLICAS]; REPLICAS],
    /// Records that each replica is about to read.
    reads: [BTreeSet<Process>; REPLICAS],
    /// Replicas that have read a record, and resume the connection when a segment of the client
    /// arrives.
    looks: [bool; REPLICAS],
    /// The processes that have stored a record of the connection.
    records: BTreeSet<Process>,
    holder: Option<Process>,
    is_reset: bool,
    kills: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Event {
    /// The agent of this replica is killed.
    Dies(usize),
    /// The agent of this replica starts again.
    Returns(usize),
    /// The controller reports this replica's incarnation to the others.
    IsTold(usize),
    /// This replica gets the set of live replicas from the ToR.
    Hears(usize),
    /// The controller lets this replica get connections again.
    IsReadmitted(usize),
    /// This replica reads the records that the process stored.
    Reads(usize, Process),
    /// This replica gets the client's segment and resumes the connection.
    GoesOn(usize),
    /// This replica gets the client's segment while no replica has a record, and resets the
    /// connection.
    Resets(usize),
}

struct Racks(Rules);

impl Rack {
    /// The replica that gets the client's segments.
    fn first(&self) -> Option<usize> {
        (0..REPLICAS).find(|n| self.alive[*n] && self.takes[*n])
    }

    /// Whether `reader` considers the process that stored a record as gone. If the replica is
    /// alive, that holds only for incarnations below the one that the controller reported.
    fn is_former(&self, reader: usize, (replica, incarnation): Process) -> bool {
        match self.alive[replica] {
            true if replica == reader => self.incarnation[replica] != incarnation,
            true => incarnation < self.told[replica],
            false => true,
        }
    }
}

impl Model for Racks {
    type State = Rack;
    type Action = Event;

    fn init_states(&self) -> Vec<Rack> {
        let all = [true; REPLICAS];
        vec![Rack {
            alive: all,
            incarnation: [1; REPLICAS],
            told: [1; REPLICAS],
            takes: all,
            sees: [all; REPLICAS],
            reads: Default::default(),
            looks: [false; REPLICAS],
            records: BTreeSet::from([(0, 1)]),
            holder: Some((0, 1)),
            is_reset: false,
            kills: 0,
        }]
    }

    fn actions(&self, rack: &Rack, events: &mut Vec<Event>) {
        if rack.is_reset {
            return;
        }
        for n in 0..REPLICAS {
            if !rack.alive[n] {
                events.push(Event::Returns(n));
                continue;
            }
            if rack.kills < KILLS {
                events.push(Event::Dies(n));
            }
            if rack.told[n] != rack.incarnation[n] {
                events.push(Event::IsTold(n));
            }
            if rack.sees[n] != rack.alive {
                events.push(Event::Hears(n));
            }
            // A replica is ready once it knows the live set and has read all records.
            if !rack.takes[n]
                && rack.sees[n][n]
                && rack.reads[n].is_empty()
                && rack.told[n] == rack.incarnation[n]
            {
                events.push(Event::IsReadmitted(n));
            }
            events.extend(rack.reads[n].iter().map(|of| Event::Reads(n, *of)));
            // It reads records again while the connection may have no holder.
            if self.0 == Rules::Always && !rack.looks[n] && rack.holder.is_none() {
                let formers =
                    rack.records.iter().filter(|of| rack.is_former(n, **of) && !rack.reads[n].contains(*of));
                events.extend(formers.map(|of| Event::Reads(n, *of)));
            }
        }
        if let (Some(first), None) = (rack.first(), rack.holder) {
            if rack.looks[first] {
                events.push(Event::GoesOn(first));
            } else if rack.records.is_empty() {
                events.push(Event::Resets(first));
            }
        }
    }

    fn next_state(&self, before: &Rack, event: Event) -> Option<Rack> {
        let mut rack = before.clone();
        match event {
            Event::Dies(n) => {
                (rack.alive[n], rack.takes[n], rack.looks[n]) = (false, false, false);
                rack.sees[n] = [false; REPLICAS];
                rack.reads[n].clear();
                rack.kills += 1;
                // The replica's web server is alive, but the ToR drops its segments.
                rack.holder = rack.holder.filter(|(holder, _)| *holder != n);
            }
            Event::Returns(n) => {
                rack.alive[n] = true;
                rack.incarnation[n] += 1;
            }
            Event::IsTold(n) => rack.told[n] = rack.incarnation[n],
            Event::Hears(n) => {
                let died = (0..REPLICAS).any(|other| rack.sees[n][other] && !rack.alive[other]);
                let is_first = !rack.sees[n][n];
                rack.sees[n] = rack.alive;
                match self.0 {
                    Rules::OnDeath => {
                        let gone = (0..REPLICAS).filter(|other| died && !rack.alive[*other]);
                        let gone: Vec<_> = gone.map(|other| (other, rack.told[other])).collect();
                        rack.reads[n].extend(gone);
                        if is_first && rack.told[n] != rack.incarnation[n] {
                            rack.reads[n].insert((n, rack.told[n]));
                        }
                    }
                    Rules::Always => {
                        let formers: Vec<_> =
                            rack.records.iter().copied().filter(|of| rack.is_former(n, *of)).collect();
                        rack.reads[n].extend(formers);
                    }
                }
            }
            Event::IsReadmitted(n) => rack.takes[n] = true,
            Event::Reads(n, of) => {
                rack.reads[n].remove(&of);
                // A connection with a holder has a newer record than the one that was read.
                rack.looks[n] |= rack.records.contains(&of) && rack.holder.is_none();
            }
            Event::GoesOn(n) => {
                let process = (n, rack.incarnation[n]);
                rack.holder = Some(process);
                rack.records = BTreeSet::from([process]);
                rack.looks = [false; REPLICAS];
            }
            Event::Resets(_) => rack.is_reset = true,
        }
        Some(rack)
    }

    fn properties(&self) -> Vec<Property<Racks>> {
        vec![
            // The number of kills is limited, so each run ends; then a replica holds the
            // connection, or it was reset.
            Property::eventually("held or reset", |_, rack: &Rack| {
                rack.is_reset || rack.kills == KILLS && rack.holder.is_some()
            }),
            Property::always("a holder is alive", |_, rack: &Rack| {
                rack.holder.is_none_or(|(n, incarnation)| rack.alive[n] && rack.incarnation[n] == incarnation)
            }),
            Property::sometimes("another replica goes on", |_, rack: &Rack| {
                rack.holder.is_some_and(|(n, _)| n != 0)
            }),
        ]
    }
}

#[test]
fn every_connection_is_held_or_reset_in_the_end() {
    let checked = Racks(Rules::Always).checker().spawn_bfs().join();
    checked.assert_properties();
}

/// The failure that was observed: a holder is killed, returns, and dies again before another
/// replica has resumed its connection.
#[test]
fn records_read_on_a_death_alone_leave_connections_hanging() {
    let checked = Racks(Rules::OnDeath).checker().spawn_bfs().join();
    let hangs = checked.assert_any_discovery("held or reset");
    let end = hangs.last_state().clone();
    let events = hangs.into_actions();
    assert!(end.holder.is_none() && !end.records.is_empty(), "{events:?} {end:?}");
    assert!(events.iter().any(|event| matches!(event, Event::Returns(_))), "{events:?}");
}
