//! The event loop of a [`Replica`](super::Replica)'s thread.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use rivulet_bpf::trods::{FlowKey, Unnamed};

use super::terminators::Terminators;
use super::{Command, Counts, Gone, Protected, Shared};
use crate::adopt::{AdoptConfig, Adopters, Outcome};
use crate::digest::Digests;
use crate::digest::share::{Peers, Sharing};
use crate::flow::{AdoptAs, Settings, Unknown};
use crate::hold::{
    Absence, Followers, Heard, HoldError, Leaving, Pins, Refusals, Rescue, Stores, Watch, now_ms,
};
use crate::record::{Handshake, Record, Tuple};
use crate::store::{Store, StoreConfig};
use crate::ts::{self, Absences, Found, Names};

/// Interval at which states without a descriptor to wait for are checked.
const LOOK: Duration = Duration::from_millis(100);
/// Interval of attempts to register the terminators' connections, which wait for the lease.
const REGISTRATION_LOOK: Duration = Duration::from_millis(2);
/// Delay between an unexpected end of a connection and the probe of its server: the time in which a
/// killed process exits.
pub(super) const DEATH: Duration = Duration::from_millis(20);
/// Time limit for the local server to accept a connection.
pub(super) const ACCEPT: Duration = Duration::from_millis(20);
/// For how long requests for the rest of a response are repeated.
const PATIENCE: Duration = Duration::from_secs(3);
/// Delay after which a connection that could not be adopted is searched for again.
const AGAIN: Duration = Duration::from_millis(250);
/// Idle time after which an adopted connection is closed, as in nginx.
const IDLE: Duration = Duration::from_secs(75);

/// State of the thread.
pub(super) struct Body {
    /// Services with connections that timestamps name.
    names: Option<Names>,
    /// Dead replicas with named connections to search for once their records are read.
    gone: Vec<Gone>,
    netns: Option<String>,
    absences: Absences,
    pub(super) watch: Watch<Stores>,
    pub(super) rescue: Rescue,
    pins: Pins,
    pub(super) refusals: Refusals,
    pub(super) digests: Digests,
    /// The threads that exchange lists of objects, one for each store.
    sharing: Vec<Sharing>,
    /// Protection settings of each service.
    settings: HashMap<SocketAddr, Settings>,
    /// Threads that serve adopted connections, by service and settings.
    adopters: HashMap<(SocketAddr, AdoptAs, Unknown), Adopters>,
    /// Receives how each adopted connection ended.
    ended: Sender<(Tuple, Outcome)>,
    ends: Receiver<(Tuple, Outcome)>,
    /// Connections that their server closed too early, and when.
    pub(super) early: VecDeque<(Instant, FlowKey)>,
    leaving: Leaving,
    followers: Followers,
    terminators: Terminators,
    commands: Receiver<Command>,
    shared: Arc<Shared>,
}

impl Body {
    /// Starts without protected services.
    pub(super) fn new(
        netns: Option<String>,
        watch: Watch<Stores>,
        rescue: Rescue,
        digests: Digests,
        commands: Receiver<Command>,
        shared: Arc<Shared>,
    ) -> Body {
        let (ended, ends) = channel();
        Body {
            names: None,
            gone: Vec::new(),
            netns,
            absences: Absences::new(Instant::now()),
            watch,
            rescue,
            pins: Pins::default(),
            refusals: Refusals::default(),
            settings: HashMap::new(),
            digests,
            sharing: Vec::new(),
            adopters: HashMap::new(),
            ended,
            ends,
            early: VecDeque::new(),
            leaving: Leaving::default(),
            followers: Followers::default(),
            terminators: Terminators::default(),
            commands,
            shared,
        }
    }

    /// Runs until the replica is stopped.
    pub(super) fn run(&mut self) {
        let mut looked = Instant::now();
        while !self.shared.stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            let due = self.rescue.deadline().into_iter().chain(self.early.front().map(|(at, _)| *at + DEATH));
            let due = due.chain(self.leaving.deadline()).chain(self.refusals.deadline());
            let longest = if self.terminators.has_registrations() { REGISTRATION_LOOK } else { LOOK };
            let pause = due.map(|at| at.saturating_duration_since(now)).fold(longest, Duration::min);
            let mut wakes = vec![self.shared.wake.as_fd()];
            wakes.extend(self.terminators.descriptors());
            let of_terminators = 1..wakes.len();
            let ready = match self.names.as_ref().map(Names::wait) {
                Some((told, longest)) => {
                    wakes.push(told);
                    self.watch.wait(pause.min(longest), &wakes)
                }
                None => self.watch.wait(pause, &wakes),
            };
            self.terminators.note_ready(ready[of_terminators].contains(&true));
            // Empties the eventfd. The number of wake-ups in it is irrelevant.
            let _ = rustix::io::read(&self.shared.wake, &mut [0; 8]);
            if let Err(e) = self.turn() {
                tracing::warn!(error = %e, "protected connections");
                std::thread::sleep(LOOK);
            }
            if looked.elapsed() > LOOK {
                looked = Instant::now();
                self.look();
            }
        }
    }

    fn turn(&mut self) -> Result<(), HoldError> {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Services(services) => self.replace(&services)?,
                Command::Departed(departed) => {
                    let shared = Arc::clone(&self.shared);
                    self.rescue.depart(departed, move || shared.wake())?;
                }
                Command::Gone(gone) => self.gone.push(gone),
                Command::Succeed => self.watch.succeed(),
                Command::Terminators(door) => self.terminators.open(door),
                Command::Leave(all, named) => {
                    self.leaving.set(all)?;
                    if let Some(names) = &mut self.names {
                        names.set_leaves(named, Instant::now());
                    }
                }
                Command::Follow(all) => {
                    let shared = Arc::clone(&self.shared);
                    self.followers.set(all, &self.rescue, move || shared.wake())?;
                }
                Command::Away(absence) if absence.named.is_empty() => self.ask_others(absence)?,
                Command::Away(absence) => self.absences.push(absence, Instant::now()),
            }
        }
        let now = Instant::now();
        // Announcements are read first, because a new adopter may have announced the connection.
        if let Some(names) = &mut self.names {
            names.hear(now, &mut self.watch)?;
        }
        self.absences.listen(now);
        while let Some(absence) = self.absences.due(now) {
            if let Some(names) = &mut self.names {
                names.yield_to(&absence, &mut self.watch)?;
            }
            match absence.servers.is_empty() {
                true => self.back(absence.number),
                false => self.ask_others(absence)?,
            }
        }
        while let Some(known) = self.pins.known() {
            for (key, pin, age) in &known.held {
                self.rescue.hand_over(key, *pin, age, &mut self.watch)?;
            }
            self.back(known.number);
        }
        self.terminators.register(&mut self.watch, &mut self.rescue)?;
        let (mut found, rescue, now) = (Vec::new(), &mut self.rescue, now_ms());
        let (mut named, names) = (Vec::new(), &mut self.names);
        let mut spoke = Vec::new();
        self.watch.turn(|key, packet| {
            spoke.push(*key);
            // A connection with a record is resumed by the record, whatever its timestamp names;
            // its client retransmits.
            let is_recorded = rescue.is_loading() || rescue.looks_for(key);
            let heard = rescue.take_packet(key, packet, now);
            if let Some(names) = names {
                if heard.is_some() {
                    names.is_found(key);
                } else if !is_recorded || names.looks_for(key) {
                    named.extend(
                        names.take_packet(key, packet, now).map(|found| (*key, found, packet.to_vec())),
                    );
                }
            }
            found.extend(heard);
        })?;
        self.terminators
            .turn(|service| self.settings.get(service).is_some_and(|s| s.closed), &mut self.watch)?;
        for (key, found, packet) in named {
            if let Err(e) = self.adopt_named(&key, &found) {
                tracing::warn!(error = %e, client = %key.client(), "not adopted");
                if let Some(names) = &mut self.names {
                    names.look_again(&key, &found, &mut self.watch)?;
                }
            } else if found.record.responses.is_empty() {
                // Without this the client would repeat its request only after twice the last
                // interval.
                self.watch.hear_again(&key, &packet);
            }
        }
        for heard in found {
            let key = FlowKey::new(heard.record.tuple.client, heard.record.tuple.service);
            if let Err(e) = self.adopt_here(&key, &heard) {
                tracing::warn!(error = %e, client = %key.client(), "not adopted");
                if let Err(e) = self.watch.withdraw(&key) {
                    tracing::warn!(error = %e, client = %key.client(), "nor parked");
                }
                self.rescue.here(key, heard.record, Instant::now() + AGAIN);
            }
        }
        // Drops packets from before the adoption, and reports of other replicas since then.
        spoke.retain(|key| self.watch.has(key));
        for key in &spoke {
            for packet in self.rescue.take_copies(key) {
                self.watch.hear_again(key, &packet);
            }
        }
        let is_loading = self.rescue.is_loading();
        self.rescue.turn(Instant::now(), now, &mut self.watch)?;
        if !is_loading {
            self.look_for_named()?;
        }
        self.leaving.turn(Instant::now(), &mut self.watch)?;
        self.ask_refused(Instant::now());
        self.early.extend(self.watch.ended_early().into_iter().map(|key| (Instant::now(), key)));
        while let Ok((Tuple { client, service }, outcome)) = self.ends.try_recv() {
            let key = FlowKey::new(client, service);
            match outcome {
                // The watch sees that end on the interface.
                Outcome::Over => continue,
                Outcome::Idle => self.watch.leave(&key)?,
                Outcome::Refused(_) => self.watch.refuse(&key)?,
            }
            if let Some(names) = &mut self.names {
                names.give_up(&key, &mut self.watch)?;
            }
        }
        if let Some(names) = &mut self.names {
            names.turn(Instant::now(), &mut self.watch)?;
        }
        self.judge()
    }

    /// Adopts a connection after its client has answered.
    fn adopt_here(&mut self, key: &FlowKey, heard: &Heard) -> Result<(), HoldError> {
        let Heard { record, connection, sent, stamped } = heard;
        // The connection is parked, so the kernel's segments are held while it is dropped.
        self.watch.abandon(key)?;
        if let Some(stamped) = stamped {
            self.watch.hold().programs().stamps().put(key, stamped)?;
        }
        if let Some(names) = &mut self.names {
            names.resume_recorded(key, self.watch.hold().programs())?;
        }
        self.watch.adopt(record, connection.send_next)?;
        // The store can confirm the record while the kernel creates the socket.
        self.watch.settle()?;
        // The new socket uses the kernel's timestamps, which the BPF programs translate.
        let handshake = Handshake { stamps: None, ..record.handshake };
        let record = Record { handshake, ..record.clone() };
        if record.tls.is_some() {
            self.terminators.adopt(&record, connection, *sent)?;
        } else {
            self.adopters(record.tuple.service)?.adopt(record, connection, *sent)?;
        }
        self.watch.begin(key)?;
        tracing::debug!(client = %key.client(), "adopted");
        self.watch.hold().programs().unpark(key)?;
        self.watch.hold().programs().unpin(key)?;
        Ok(())
    }

    /// Adopts a connection by the response that its client's timestamp named.
    fn adopt_named(&mut self, key: &FlowKey, found: &Found) -> Result<(), HoldError> {
        self.watch.abandon(key)?;
        let Some(names) = &mut self.names else { return Ok(()) };
        names.adopt(key, found, self.watch.hold().programs())?;
        let adopters = self.adopters(found.record.tuple.service)?;
        adopters.adopt(found.record.clone(), &found.connection, found.sent)?;
        tracing::debug!(client = %key.client(), object = found.stamped.object, "adopted");
        self.watch.hold().programs().unpark(key)?;
        self.watch.hold().programs().unpin(key)?;
        Ok(())
    }

    /// Searches for the announced connections of dead replicas, except those that are searched for
    /// by records.
    fn look_for_named(&mut self) -> Result<(), HoldError> {
        let Some(names) = &mut self.names else {
            self.gone.clear();
            return Ok(());
        };
        let (rescue, watch) = (&self.rescue, &self.watch);
        for gone in self.gone.drain(..) {
            let is_known = |key: &FlowKey, next| watch.has(key) || rescue.looks_for_near(key, next);
            for service in &gone.services {
                names.depart(*service, &gone, is_known, watch.hold().programs())?;
            }
        }
        Ok(())
    }

    fn ask_others(&mut self, absence: Absence) -> Result<(), HoldError> {
        let shared = Arc::clone(&self.shared);
        self.pins.ask(absence, move || shared.wake())
    }

    /// Notes that the pins are complete after an absence.
    fn back(&self, absence: (u32, u64)) {
        self.shared.back.lock().unwrap_or_else(PoisonError::into_inner).push(absence);
    }

    fn replace(&mut self, services: &[Protected]) -> Result<(), HoldError> {
        let mut named = Vec::new();
        self.share(services)?;
        for Protected { sockets, store, keys, named: how, .. } in services {
            named.extend(how.iter().map(|how| (sockets.clone(), how.clone())));
            let keeper = self.watch.keeper_mut();
            let Some(config) = store else { continue };
            if sockets.iter().all(|s| keeper.has(s, config)) {
                sockets.iter().for_each(|s| keeper.set_keys(s, keys));
                continue;
            }
            match Store::new(config, keys, Instant::now()) {
                Ok(store) => keeper.add(store, config, sockets.iter().copied()),
                Err(e) => tracing::error!(error = %e, "no store for {sockets:?}"),
            }
        }
        if self.names.is_none() && !named.is_empty() {
            self.names = Some(Names::open(self.netns.as_deref(), &self.digests)?);
        }
        if let Some(names) = &mut self.names {
            names.set_services(&named, self.watch.hold().programs())?;
        }
        let sockets =
            services.iter().flat_map(|s| s.sockets.iter().map(|socket| (*socket, s.store.is_some())));
        let mut issuers = HashMap::new();
        for (socket, records) in sockets {
            let records = records && self.watch.keeper_mut().serves(&socket);
            let number = self.names.as_ref().and_then(|names| names.issuer(&socket));
            issuers.extend(number.map(|number| (socket, (number, records))));
        }
        self.watch.set_issuers(issuers.clone());
        let all = services.iter().flat_map(|s| s.sockets.iter().map(|socket| (*socket, s.lease, s.settings)));
        let can =
            |keeper: &Stores, socket: &SocketAddr| keeper.serves(socket) || issuers.contains_key(socket);
        let all: Vec<_> = all.filter(|(socket, ..)| can(self.watch.keeper_mut(), socket)).collect();
        let settings: HashMap<_, _> = all.iter().map(|(socket, _, settings)| (*socket, *settings)).collect();
        self.settings = settings;
        let formers = self.watch.set_services(&all)?;
        if formers.any {
            let mut settles = self.shared.settles.lock().unwrap_or_else(PoisonError::into_inner);
            *settles = Some(Instant::now() + ts::HUNT);
        }
        if let Some(names) = &mut self.names {
            names.leave_formers(formers.ended, Instant::now());
        }
        Ok(())
    }

    /// Exchanges lists of objects with the other replicas of these services.
    fn share(&mut self, services: &[Protected]) -> Result<(), HoldError> {
        let mut before = std::mem::take(&mut self.sharing);
        for Protected { sockets, store, keys, others, .. } in services {
            let Some(StoreConfig { servers, prefix, .. }) = store else { continue };
            let (servers, own, others) = (servers.clone(), prefix.clone(), others.clone());
            let epochs = keys.epochs();
            let with = Peers { servers, epochs, own, others, services: sockets.clone() };
            let kept = before.iter().position(|sharing| sharing.with == with);
            self.sharing.push(match kept {
                Some(at) => before.swap_remove(at),
                None => Sharing::start(&self.digests, self.netns.clone(), keys, with)?,
            });
        }
        Ok(())
    }

    /// Adopted connections keep their settings, so each combination has a separate thread.
    fn adopters(&mut self, service: SocketAddr) -> Result<&Adopters, HoldError> {
        let Settings { adopt_as, unknown, .. } = self.settings.get(&service).copied().unwrap_or_default();
        Ok(match self.adopters.entry((service, adopt_as, unknown)) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(place) => {
                let (patience, idle) = (PATIENCE, IDLE);
                let digests = self.digests.clone();
                let config = AdoptConfig {
                    origin: service,
                    patience,
                    idle,
                    adopt_as,
                    carries: true,
                    digests,
                    unknown,
                };
                place.insert(Adopters::start(config, self.ended.clone())?)
            }
        })
    }

    /// Updates the counters, and checks whether the interface was replaced.
    fn look(&mut self) {
        if let Err(e) = self.watch.hold_mut().follow() {
            tracing::debug!(error = %e, "the interface");
        }
        if let Err(e) = self.watch.sweep() {
            tracing::warn!(error = %e, "idle connections");
        }
        let rescue = &self.rescue;
        if let Err(e) = self.watch.reset_closing(Instant::now(), |key| rescue.looks_for(key)) {
            tracing::warn!(error = %e, "connections that the kernel was closing could not be reset");
        }
        let leaves = self.leaving.services();
        if let Some(names) = self.names.as_ref().filter(|_| !leaves.is_empty())
            && let Err(e) = names.record(&leaves, &mut self.watch)
        {
            tracing::warn!(error = %e, "named connections could not be moved");
        }
        let status = self.watch.status();
        let (protected, watched, moved) = (status.protected, status.watched, self.leaving.moved());
        let digests = self.digests.made();
        let mut counts = Counts { protected, watched, moved, digests, ..Counts::default() };
        counts.unprotected =
            status.unprotected.iter().map(|(reason, count)| (reason.name(), *count)).collect();
        let said = self.watch.hold().counters();
        if let Ok(said) = &said {
            let lost = [("handshake", said.handshake), ("full", said.full)];
            counts.unprotected.extend(lost.into_iter().filter(|(_, count)| *count > 0));
            counts.outside = said.outside;
        }
        if let (Some(names), Ok(said)) = (&self.names, said) {
            counts.protected += said.named;
            let (left, named) = names.moves();
            counts.moved += left;
            counts.named = named;
            let unnamed = causes(&said.unnamed).into_iter().filter(|(_, count)| *count > 0);
            counts.unprotected.extend(unnamed);
            *self.shared.tables.lock().unwrap_or_else(PoisonError::into_inner) = names.versions();
        }
        let (adopted, refused) = self.terminators.counts();
        (counts.adopted, counts.refused) = (adopted, refused);
        if refused > 0 {
            counts.refusals.insert("tls", refused);
        }
        for adopters in self.adopters.values() {
            let of = adopters.counts();
            counts.adopted += of.adopted;
            counts.refused += of.refused;
            counts.trusted += of.trusted;
            counts.read_through += of.read_through;
            for (why, count) in adopters.refusals() {
                *counts.refusals.entry(why).or_default() += count;
            }
        }
        *self.shared.counts.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }
}

/// Number of connections that no timestamp names, by cause as in the metrics.
fn causes(of: &Unnamed) -> [(&'static str, u64); 8] {
    let Unnamed { options, ports, asking, fields, unlisted, head, second, full } = *of;
    [
        ("ts_options", options),
        ("ts_ports", ports),
        ("ts_asking", asking),
        ("ts_fields", fields),
        ("ts_unlisted", unlisted),
        ("ts_head", head),
        ("ts_second", second),
        ("ts_full", full),
    ]
}
