//! The connections of a replica's protected services. Passes the BPF programs' events to each
//! connection's [`Flow`] and carries out the resulting actions. Only [`Watch::wait`] blocks.

mod closing;
mod hear;
mod parting;
mod terminated;
mod terminator;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rivulet_bpf::trods::{FlowKey, Leases, Phase, Stamped};
use rivulet_plain::MAX_AHEAD;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::connection::Connection;
use super::{Frame, Hold, HoldError};
use crate::flow::{Action, Flow, REQUEST_PATIENCE, Reason, Settings};
use crate::lease::clock;
use crate::record::{Age, Record, Tuple};

/// Events and frames that are processed in one batch.
const BATCH: usize = 256;
const MOST_BATCHES: usize = 512;
/// Idle time after which a connection counts as closed; servers close idle connections long before.
const IDLE: Duration = Duration::from_secs(15 * 60);
/// Delay between an event on a connection and its flow's next tick, milliseconds.
pub(super) const ASK: u64 = REQUEST_PATIENCE + 1;
/// Interval, in milliseconds, of reading an acknowledgement for which a connection waits.
pub(super) const LOOK: u64 = 2;

/// Stores records. No method blocks.
pub trait Keeper {
    /// Stores a record, which replaces the connection's last one.
    fn store(&mut self, key: &FlowKey, ticket: u64, record: &Record);

    /// Deletes the connection's record, and ignores late results: the key may be used again.
    fn forget(&mut self, key: &FlowKey);

    /// Whether the record must be stored again: its server lost it, or its lifetime ends.
    fn is_stale(&self, key: &FlowKey) -> bool;

    /// Continues operations in progress and reports each finished one: stored (`true`) or failed.
    fn turn(&mut self, settled: &mut dyn FnMut(&FlowKey, u64, bool));

    /// Time at which `turn` must be called even if no descriptor is ready.
    fn deadline(&self) -> Option<Instant>;

    /// Appends the descriptors to wait for, each with whether to wait until it is writable.
    fn wait<'k>(&'k self, on: &mut Vec<(BorrowedFd<'k>, bool)>);
}

/// Numbers of this replica's connections, by state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Connections that are watched now.
    pub watched: u64,
    /// Connections of which a record was stored, since the start.
    pub protected: u64,
    /// Connections that were not protected, or not until their end, by reason; since the start.
    pub unprotected: HashMap<Reason, u64>,
}

/// A connection with timestamps of the BPF programs that was about to be closed or reset here.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// The connection.
    pub key: FlowKey,
    /// Whether it ended because its server's process died.
    pub of_dead: bool,
    /// Whether it ended by a RST.
    pub is_reset: bool,
}

/// Connections that the kernel had when this process started. The kernel cannot continue those with
/// timestamps and sequence numbers that BPF programs translate.
#[derive(Debug, Default)]
pub struct Formers {
    /// There are such connections: other replicas have to adopt them first.
    pub any: bool,
    /// Connections that ended without a segment to the client after the former process died, with
    /// the last state of their timestamps.
    pub ended: Vec<(FlowKey, Stamped)>,
}

/// A watched service.
#[derive(Clone, Copy, Debug)]
struct Served {
    lease: u32,
    settings: Settings,
}

impl Served {
    /// Whether its lease is valid.
    fn may_send(&self, lease: &Leases) -> bool {
        lease.get(self.lease).is_ok_and(|lease| clock() < lease.until)
    }
}

/// The connections of a replica's protected services.
#[derive(Debug)]
pub struct Watch<K> {
    hold: Hold,
    leases: Leases,
    keeper: K,
    services: HashMap<SocketAddr, Served>,
    connections: HashMap<FlowKey, Connection>,
    /// Times of ticks; entries that differ from [`Connection::due`] are outdated.
    due: BinaryHeap<Reverse<(u64, FlowKey)>>,
    /// Actions to carry out, with their connections.
    actions: Vec<(FlowKey, Action)>,
    said: Vec<Action>,
    /// Held frames that were read and are not processed yet.
    fresh: Vec<Frame>,
    /// Frames of connections that have ended.
    stale: Vec<Frame>,
    /// Connections that ended, each with whether by a RST.
    over: Vec<(FlowKey, bool)>,
    /// Connections that their server closed too early.
    early: Vec<FlowKey>,
    closing: HashMap<FlowKey, closing::Closing>,
    /// Clients to which a RST of the kernel was held back, with its sequence number.
    refused: Vec<(FlowKey, u32)>,
    /// Issuer of each service ([`Watch::set_issuers`]), with whether unnamed responses are watched.
    issuers: HashMap<SocketAddr, (u32, bool)>,
    terminators: terminated::Terminators,
    /// Connections with BPF-made timestamps: those with a request, and those that ended.
    asked: Vec<FlowKey>,
    ended: Vec<Ended>,
    /// Age of the records that other replicas had of connections when these were handed over.
    elsewhere: HashMap<FlowKey, Age>,
    /// Parked packets that arrived between two turns.
    waiting: Vec<(FlowKey, Vec<u8>)>,
    /// Connections still to be checked in this round.
    swept: Vec<FlowKey>,
    idle: Duration,
    /// The former process adopted no connections, so the kernel's sockets are all the server's.
    succeeds: bool,
    /// No services were set yet, so connections in the kernel are the former process's.
    follows: bool,
    status: Status,
}

impl<K: Keeper> Watch<K> {
    /// Starts without services; [`Watch::set_services`] sets them.
    ///
    /// # Errors
    /// A system call fails.
    pub fn new(hold: Hold, keeper: K) -> Result<Watch<K>, HoldError> {
        Ok(Watch {
            leases: hold.programs.leases()?,
            follows: hold.programs.follows(),
            hold,
            keeper,
            services: HashMap::new(),
            connections: HashMap::new(),
            due: BinaryHeap::new(),
            actions: Vec::new(),
            said: Vec::new(),
            fresh: Vec::with_capacity(BATCH),
            stale: Vec::new(),
            over: Vec::new(),
            early: Vec::new(),
            refused: Vec::new(),
            closing: HashMap::new(),
            issuers: HashMap::new(),
            terminators: terminated::Terminators::default(),
            asked: Vec::new(),
            ended: Vec::new(),
            elsewhere: HashMap::new(),
            waiting: Vec::new(),
            swept: Vec::new(),
            idle: IDLE,
            succeeds: false,
            status: Status::default(),
        })
    }

    /// The BPF programs and the held frames.
    pub fn hold(&self) -> &Hold {
        &self.hold
    }

    /// Like [`hold`](Self::hold), mutable, to attach the BPF programs to a new interface.
    pub fn hold_mut(&mut self) -> &mut Hold {
        &mut self.hold
    }

    /// The store of records.
    pub fn keeper_mut(&mut self) -> &mut K {
        &mut self.keeper
    }

    /// Numbers of the connections, by state.
    pub fn status(&self) -> Status {
        Status { watched: self.connections.len() as u64, ..self.status.clone() }
    }

    /// Sets the idle time after which a connection is over: fifteen minutes by default.
    pub fn set_idle(&mut self, idle: Duration) {
        self.idle = idle;
    }

    /// Declares that the former process had adopted no connections: the connections that the kernel
    /// is closing were closed by their server.
    pub fn succeed(&mut self) {
        self.succeeds = true;
    }

    /// Sets the protected services, each with its lease. Others' connections lose their limits.
    ///
    /// # Errors
    /// There are too many services.
    pub fn set_services(&mut self, services: &[(SocketAddr, u32, Settings)]) -> Result<Formers, HoldError> {
        let mut formers = Formers::default();
        // The first services may have connections of the former process. In later calls,
        // connections of a new service belong to the kernel alone and continue.
        let follows = !services.is_empty() && std::mem::take(&mut self.follows);
        let known = if follows { self.hold.programs.formers() } else { HashMap::new() };
        let gone: Vec<SocketAddr> = self
            .services
            .keys()
            .filter(|s| services.iter().all(|(other, ..)| other != *s))
            .copied()
            .collect();
        for service in gone {
            self.hold.programs.release(service)?;
            self.services.remove(&service);
            let keys: Vec<FlowKey> =
                self.connections.keys().filter(|key| key.service() == service).copied().collect();
            for key in keys {
                self.tell(&key, |flow, out| flow.let_go(Reason::Unseen, out));
            }
        }
        for (service, lease, settings) in services {
            let before = self.services.insert(*service, Served { lease: *lease, settings: *settings });
            let (issuer, records) = self.issuers.get(service).copied().unwrap_or_default();
            self.hold.programs.issue(*service, *lease, issuer, records)?;
            if before.is_none() {
                if !self.succeeds && issuer == 0 {
                    self.keep_closing(*service)?;
                } else if !self.succeeds {
                    self.hold.abort_closing(*service)?;
                }
                // These connections began unprotected, so they break with their server. Connections
                // from this host itself (health checks, digests) do not count.
                let clients = self.hold.clients(*service)?.into_iter();
                let are_formers = issuer > 0 && !self.succeeds;
                for client in clients.filter(|client| client.ip() != service.ip()) {
                    let key = FlowKey::new(client, *service);
                    formers.any |= are_formers;
                    if are_formers && follows {
                        // The kernel would send its own timestamps, and acknowledge unnamed data.
                        tracing::debug!(%client, "left to others: its process died");
                        self.hold.silence(&key)?;
                        formers.ended.extend(known.get(&key).map(|stamped| (key, *stamped)));
                    } else {
                        tracing::debug!(%client, "unprotected: it began before");
                        self.terminators.note_begun(key, &mut self.status.unprotected);
                    }
                }
            }
        }
        self.act()?;
        Ok(formers)
    }

    /// From the next [`Watch::set_services`] on, the BPF programs make the handshakes and
    /// timestamps of these services. For each: its issuer's number, and whether responses that
    /// timestamps cannot name are watched or left unprotected.
    pub fn set_issuers(&mut self, issuers: HashMap<SocketAddr, (u32, bool)>) {
        self.issuers = issuers;
    }

    /// Whether the lease of a service is valid.
    #[must_use]
    pub fn may_send(&self, service: &SocketAddr) -> bool {
        self.services.get(service).is_some_and(|service| service.may_send(&self.leases))
    }

    /// Waits for an event, or until one of `wakes` is readable, for at most `longest`. Returns which of them are.
    pub fn wait(&self, longest: Duration, wakes: &[BorrowedFd<'_>]) -> Vec<bool> {
        let asked =
            self.due.peek().map(|Reverse((due, _))| Duration::from_millis(due.saturating_sub(now_ms())));
        let store = self.keeper.deadline().map(|at| at.saturating_duration_since(Instant::now()));
        let pause = asked.into_iter().chain(store).fold(longest, Duration::min);
        let mut on: Vec<(BorrowedFd<'_>, bool)> = self.hold.readable().map(|fd| (fd, false)).into();
        self.keeper.wait(&mut on);
        on.extend(wakes.iter().map(|wake| (*wake, false)));
        let mut set: Vec<PollFd<'_>> = on
            .iter()
            .map(|(fd, write)| {
                let events = if *write { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
                PollFd::from_borrowed_fd(*fd, events)
            })
            .collect();
        // A signal may end the wait early, which is harmless.
        let _ = poll(&mut set, Timespec::try_from(pause).ok().as_ref());
        set[set.len() - wakes.len()..].iter().map(|fd| !fd.revents().is_empty()).collect()
    }

    /// Processes events and actions; `parked` gets packets of parked connections
    /// ([`What::Parked`]).
    ///
    /// # Errors
    /// A system call fails; the next call continues.
    pub fn turn(&mut self, mut parked: impl FnMut(&FlowKey, &[u8])) -> Result<(), HoldError> {
        // Results of the store come first, because held connections wait for them.
        self.settle()?;
        for (key, packet) in self.waiting.drain(..) {
            parked(&key, &packet);
        }
        // Events that precede a frame are in the ring before it. So the frames are read first, then
        // the events, and the events are processed first.
        while self.fresh.len() < BATCH
            && let Some(frame) = self.hold.take()?
        {
            self.fresh.push(frame);
        }
        self.hear_all(&mut parked)?;
        let mut result = self.act();
        let mut fresh = std::mem::take(&mut self.fresh);
        for frame in fresh.drain(..) {
            result = result.and(self.answer(frame));
        }
        self.fresh = fresh;
        result?;
        self.settle()?;
        self.ask_again()
    }

    /// Takes over another replica's connection; its client has everything below `acked`. The limits
    /// are set before the kernel has the socket, and the record is stored under this replica's name
    /// before any byte is sent.
    ///
    /// # Errors
    /// There is no room for another connection.
    pub fn adopt(&mut self, record: &Record, acked: u32) -> Result<(), HoldError> {
        let Tuple { client, service } = record.tuple;
        let key = FlowKey::new(client, service);
        let settings = self.services.get(&service).map(|s| s.settings).unwrap_or_default();
        let connection = Connection::adopted(record, &settings, now_ms(), &mut self.said);
        self.hold.programs.insert(&key, &connection.limits(acked))?;
        self.connections.insert(key, connection);
        self.actions.extend(self.said.drain(..).map(|action| (key, action)));
        self.act()
    }

    /// Protects a connection, until now named, by records before further data is acknowledged.
    ///
    /// # Errors
    /// A system call fails.
    pub fn record(&mut self, record: &Record, stamped: &Stamped) -> Result<(), HoldError> {
        let Tuple { client, service } = record.tuple;
        let key = FlowKey::new(client, service);
        let settings = self.services.get(&service).map(|s| s.settings).unwrap_or_default();
        let mut connection = Connection::adopted(record, &settings, now_ms(), &mut self.said);
        (connection.named, connection.adopted, connection.awaited) = (true, stamped.adopted, false);
        // Earlier events of the BPF programs that are still queued are older than this state.
        let ahead = u32::from(stamped.index.wrapping_sub(stamped.echo) % 32) < MAX_AHEAD;
        let index = (stamped.index + u8::from(ahead)) % 32;
        let stamped = Stamped { phase: Phase::Recorded, index, ..*stamped };
        if !self.hold.programs.record(&key, &stamped, &connection.limits(stamped.limits.acked))? {
            // The connection ended, or its client has sent newer data.
            self.said.clear();
            return Ok(());
        }
        self.connections.insert(key, connection);
        self.actions.extend(self.said.drain(..).map(|action| (key, action)));
        self.act()
    }

    /// Lets the client's segments reach the new socket of an [adopted](Watch::adopt) connection.
    ///
    /// # Errors
    /// A system call fails.
    pub fn begin(&mut self, key: &FlowKey) -> Result<(), HoldError> {
        let Some(connection) = self.connections.get_mut(key) else { return Ok(()) };
        connection.awaited = false;
        let acked = self.hold.programs.limits(key)?.map_or(connection.first, |l| l.acked);
        self.hold.programs.set_limits(key, &connection.limits(acked))?;
        Ok(())
    }

    /// Passes records to the store and processes its results.
    ///
    /// # Errors
    /// A system call fails.
    pub fn settle(&mut self) -> Result<(), HoldError> {
        let Watch { keeper, connections, actions, said, status, .. } = self;
        keeper.turn(&mut |key, ticket, kept| {
            if let Some(connection) = connections.get_mut(key) {
                if kept && !std::mem::replace(&mut connection.stored, true) && !connection.named {
                    tracing::debug!(client = %key.client(), "protected");
                    status.protected += 1;
                }
                connection.flow.stored(ticket, kept, said);
                actions.extend(said.drain(..).map(|action| (*key, action)));
            }
        });
        self.act()
    }

    /// Runs the timers that are due.
    fn ask_again(&mut self) -> Result<(), HoldError> {
        let now = now_ms();
        while let Some(&Reverse((at, key))) = self.due.peek().filter(|Reverse((at, _))| *at <= now) {
            self.due.pop();
            let Some(connection) = self.connections.get_mut(&key).filter(|c| c.due == at) else { continue };
            connection.due = 0;
            if connection.flow.wants_acknowledgement()
                && let Some(limits) = self.hold.programs.limits(&key)?
            {
                connection.flow.acknowledged(limits.acked);
            }
            connection.tick(now, &mut self.said);
            if connection.flow.wants_acknowledgement() || !connection.held.is_empty() {
                connection.ask_later(&key, now, &mut self.due);
            }
            self.actions.extend(self.said.drain(..).map(|action| (key, action)));
        }
        self.act()
    }

    fn tell(&mut self, key: &FlowKey, what: impl FnOnce(&mut Flow, &mut Vec<Action>)) {
        if let Some(connection) = self.connections.get_mut(key) {
            what(&mut connection.flow, &mut self.said);
            self.actions.extend(self.said.drain(..).map(|action| (*key, action)));
        }
    }

    /// Carries out the actions of the flows.
    fn act(&mut self) -> Result<(), HoldError> {
        let mut actions = std::mem::take(&mut self.actions);
        let mut result = Ok(());
        for (key, action) in actions.drain(..) {
            // A failed action does not prevent the others; its connection stays held.
            result = result.and(self.act_one(&key, action));
        }
        self.actions = actions;
        result
    }

    fn act_one(&mut self, key: &FlowKey, action: Action) -> Result<(), HoldError> {
        match action {
            Action::Store { ticket, record } => self.keeper.store(key, ticket, &record),
            Action::Forget => self.keeper.forget(key),
            Action::Answer(asked, outcome) => self.terminators.answers.push((*key, asked, outcome)),
            Action::Blank(fields) => self.hold.programs.blank(key, &fields)?,
            Action::Limits(limits) => {
                let Some(connection) = self.connections.get_mut(key) else { return Ok(()) };
                // After a new request a limit can be lower than before; no withheld frame can be
                // sent then.
                let before = connection.limits;
                let raised =
                    before.ack != limits.ack || limits.fin_at.is_some() && before.fin_at != limits.fin_at;
                connection.limits = limits;
                let acked = self.hold.programs.limits(key)?.map_or(connection.first, |l| l.acked);
                if !self.hold.programs.set_limits(key, &connection.limits(acked))? {
                    // A later connection with the same key replaced it, and has its own event.
                    return Ok(());
                }
                let sent = connection.release(&mut self.hold);
                if (raised && sent == 0) || connection.fin {
                    self.hold.send_withheld(key)?;
                }
            }
            Action::Unprotected(reason) => {
                tracing::debug!(client = %key.client(), ?reason, "unprotected");
                *self.status.unprotected.entry(reason).or_default() += 1;
                if let Some(connection) = self.connections.remove(key) {
                    match connection.adopted {
                        true => self.hold.programs.free_adopted(key)?,
                        false => self.hold.programs.free(key)?,
                    }
                    if reason == Reason::Inputs {
                        for frame in connection.held {
                            self.hold.forget(frame);
                        }
                        return self.hold.abort(key);
                    }
                    for frame in connection.held {
                        self.hold.send(frame);
                    }
                    self.hold.send_withheld(key)?;
                }
            }
        }
        Ok(())
    }
}

/// The current Unix time, milliseconds.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}
