//! All connections of a replica's protected services: what the programs tell goes to their [`Flow`]s, and what these say is
//! done. Nothing here waits, but for [`Watch::wait`].

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rivulet_bpf::trods::{Event, FlowKey, Leases, Phase, Pin, Stamped, What};
use rivulet_plain::MAX_AHEAD;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::connection::Connection;
use super::{Frame, Hold, HoldError};
use crate::flow::{Action, Flow, REQUEST_PATIENCE, Reason, Settings};
use crate::lease::clock;
use crate::record::{Age, Record, Tuple};
use crate::ts;

/// Events and frames that are taken at once.
const BATCH: usize = 256;
const MOST_BATCHES: usize = 512;
/// A connection on which nobody says anything for so long is over: servers have given up long before.
const IDLE: Duration = Duration::from_secs(15 * 60);
/// Connections of others that are remembered; beyond it all are forgotten, as if they had not been seen.
const MAX_ELSEWHERE: usize = 65_536;
/// Connections that are looked at at once.
const SWEPT: usize = 256;
/// After this time a connection on which something happened is asked whether it still waits, milliseconds.
pub(super) const ASK: u64 = REQUEST_PATIENCE + 1;
/// Between two looks at what a client acknowledged, for a connection that needs to know, milliseconds.
pub(super) const LOOK: u64 = 2;

/// Where records go. Nothing of it blocks.
pub trait Keeper {
    /// Stores a record in place of the connection's last.
    fn store(&mut self, key: &FlowKey, ticket: u64, record: &Record);

    /// Deletes the connection's record. What is under way for it is not told of any more: the next connection may be another
    /// one between the same ports.
    fn forget(&mut self, key: &FlowKey);

    /// Whether the connection's record is to be stored again: what keeps it is lost, or its lifetime runs.
    fn is_stale(&self, key: &FlowKey) -> bool;

    /// Goes on with what is under way, and tells what was kept (`true`) or given up since.
    fn turn(&mut self, settled: &mut dyn FnMut(&FlowKey, u64, bool));

    /// When `turn` is to be called though nothing is readable.
    fn deadline(&self) -> Option<Instant>;

    /// What there is to wait for, and whether for room to write.
    fn wait<'k>(&'k self, on: &mut Vec<(BorrowedFd<'k>, bool)>);
}

/// How the connections of this replica are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Connections that are watched now.
    pub watched: u64,
    /// Connections of which a record was stored, since the start.
    pub protected: u64,
    /// Connections that were not, or not to their end, by reason.
    pub unprotected: HashMap<Reason, u64>,
}

/// A connection whose timestamps the programs make, which was to end here.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// Which.
    pub key: FlowKey,
    /// Since its server's process died.
    pub of_dead: bool,
    /// By a RST.
    pub is_reset: bool,
}

/// A service whose connections are watched.
#[derive(Clone, Copy, Debug)]
struct Served {
    lease: u32,
    settings: Settings,
}

impl Served {
    /// Whether its lease holds.
    fn speaks(&self, lease: &Leases) -> bool {
        lease.get(self.lease).is_ok_and(|lease| clock() < lease.until)
    }
}

/// The connections of a replica.
#[derive(Debug)]
pub struct Watch<K> {
    hold: Hold,
    leases: Leases,
    keeper: K,
    services: HashMap<SocketAddr, Served>,
    connections: HashMap<FlowKey, Connection>,
    /// When connections are to be asked whether they still wait; what does not agree with [`Connection::due`] is outdated.
    due: BinaryHeap<Reverse<(u64, FlowKey)>>,
    /// What is to be done, by whom.
    actions: Vec<(FlowKey, Action)>,
    said: Vec<Action>,
    /// Frames that were read.
    fresh: Vec<Frame>,
    /// Frames that nobody waits for any more.
    stale: Vec<Frame>,
    /// Connections that ended, and whether by a reset.
    over: Vec<(FlowKey, bool)>,
    /// Connections whose server ended them where it should not.
    early: Vec<FlowKey>,
    /// Who makes handshakes of services ([`Watch::set_issuers`]), and whether what they cannot name is watched.
    issuers: HashMap<SocketAddr, (u32, bool)>,
    /// Connections whose timestamps the programs make: for what was asked on one, and which their server ended.
    asked: Vec<FlowKey>,
    ended: Vec<Ended>,
    /// How much others knew of connections that they were seen to hold.
    elsewhere: HashMap<FlowKey, Age>,
    /// Connections that are still to be looked at in this round.
    swept: Vec<FlowKey>,
    idle: Duration,
    /// The process before had no connections of its own.
    succeeds: bool,
    status: Status,
}

impl<K: Keeper> Watch<K> {
    /// Nothing is watched before [`Watch::set_services`].
    ///
    /// # Errors
    /// The system's.
    pub fn new(hold: Hold, keeper: K) -> Result<Watch<K>, HoldError> {
        Ok(Watch {
            leases: hold.programs.leases()?,
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
            issuers: HashMap::new(),
            asked: Vec::new(),
            ended: Vec::new(),
            elsewhere: HashMap::new(),
            swept: Vec::new(),
            idle: IDLE,
            succeeds: false,
            status: Status::default(),
        })
    }

    /// The programs.
    pub fn hold(&self) -> &Hold {
        &self.hold
    }

    /// The programs, to follow the interface.
    pub fn hold_mut(&mut self) -> &mut Hold {
        &mut self.hold
    }

    /// Where records go.
    pub fn keeper_mut(&mut self) -> &mut K {
        &mut self.keeper
    }

    /// How the connections are.
    pub fn status(&self) -> Status {
        Status { watched: self.connections.len() as u64, ..self.status.clone() }
    }

    /// After so long a connection on which nobody says anything is over: fifteen minutes, unless this was called.
    pub fn set_idle(&mut self, idle: Duration) {
        self.idle = idle;
    }

    /// The process before this one had no connections of its own: what its kernel is about to end a server ended.
    pub fn succeed(&mut self) {
        self.succeeds = true;
    }

    /// These services are protected from now on, each under its lease; the connections of others are free. Returns how many connections
    /// there are whose timestamps, and numbers, another process's programs may have made: the kernel alone cannot go on with them.
    ///
    /// # Errors
    /// Too many of them.
    pub fn set_services(&mut self, services: &[(SocketAddr, u32, Settings)]) -> Result<u64, HoldError> {
        let mut formers = 0;
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
                if !self.succeeds {
                    self.hold.abort_closing(*service)?;
                }
                // They began before anybody watched, and end with their server. What this host asks its own server is none.
                let clients = self.hold.clients(*service)?.into_iter();
                for client in clients.filter(|client| client.ip() != service.ip()) {
                    tracing::debug!(%client, "unprotected: it began before");
                    *self.status.unprotected.entry(Reason::Unseen).or_default() += 1;
                    formers += u64::from(issuer > 0 && !self.succeeds);
                }
            }
        }
        self.act()?;
        Ok(formers)
    }

    /// Of these services the programs make handshakes and timestamps, from the next [`Watch::set_services`] on: the issuer's
    /// number, and whether what timestamps cannot name is watched, or free.
    pub fn set_issuers(&mut self, issuers: HashMap<SocketAddr, (u32, bool)>) {
        self.issuers = issuers;
    }

    /// Whether the lease of a service holds.
    #[must_use]
    pub fn speaks(&self, service: &SocketAddr) -> bool {
        self.services.get(service).is_some_and(|service| service.speaks(&self.leases))
    }

    /// Since this was called last, of connections whose timestamps the programs make: those on which something long was asked for, and
    /// those that were ended here where they should not be.
    pub fn stamped(&mut self) -> (Vec<FlowKey>, Vec<Ended>) {
        (std::mem::take(&mut self.asked), std::mem::take(&mut self.ended))
    }

    /// Waits until something happens, or one of `wakes` is readable, for so long at most.
    pub fn wait(&self, longest: Duration, wakes: &[BorrowedFd<'_>]) {
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
        // A signal ends it early, which is as good.
        let _ = poll(&mut set, Timespec::try_from(pause).ok().as_ref());
    }

    /// Does what there is to do; `parked` gets the packets of orphans ([`What::Parked`]).
    ///
    /// # Errors
    /// The system's; the next call goes on.
    pub fn turn(&mut self, mut parked: impl FnMut(&FlowKey, &[u8])) -> Result<(), HoldError> {
        // What waits for the store waits for nothing else.
        self.settle()?;
        // Whatever a frame answers was told before it was made: so what is told is read after the frames, and looked at before.
        while self.fresh.len() < BATCH
            && let Some(frame) = self.hold.take()?
        {
            self.fresh.push(frame);
        }
        // As often as it takes to read a full ring of the shortest events.
        for _ in 0..MOST_BATCHES {
            if self.hear(&mut parked)? < BATCH {
                break;
            }
        }
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

    /// Connections whose server sent FIN or RST where it should not, since this was called last, to be [judged](Watch::judge).
    pub fn ended_early(&mut self) -> Vec<FlowKey> {
        std::mem::take(&mut self.early)
    }

    /// The client of a connection that was adopted is reset.
    ///
    /// # Errors
    /// The system's.
    pub fn refuse(&mut self, key: &FlowKey) -> Result<(), HoldError> {
        self.let_go(key, Reason::Closed)
    }

    /// A connection that was adopted, and on which nothing is said, was closed.
    ///
    /// # Errors
    /// The system's.
    pub fn leave(&mut self, key: &FlowKey) -> Result<(), HoldError> {
        let Some(connection) = self.connections.get_mut(key) else { return Ok(()) };
        connection.leaves = true;
        let acked = self.hold.programs.limits(key)?.map_or(connection.first, |l| l.acked);
        if self.hold.programs.set_limits(key, &connection.limits(acked))? {
            self.hold.send_withheld(key)?;
        }
        Ok(())
    }

    /// Says of a connection that ended early whether its server accepts others. One that lives meant it, and the connection is let
    /// go. If its process died, or it was adopted, and there is a server now, the connection is to be adopted on this host: then this gives its
    /// record. It is parked, and nothing else is left of it here but its place in the store. Elsewhere it waits for whoever
    /// adopts it, or to be told of again.
    ///
    /// # Errors
    /// The system's.
    pub fn judge(&mut self, key: &FlowKey, accepts: bool) -> Result<Option<Record>, HoldError> {
        let Some(connection) = self.connections.get_mut(key) else { return Ok(None) };
        let (died, adopted) = (connection.died, connection.adopted);
        tracing::debug!(client = %key.client(), accepts, died, adopted, "ended early");
        connection.judged = false;
        if !accepts {
            // A server that is started again at once is missed by nobody else.
            connection.note_early(key, &mut self.early);
            return Ok(None);
        }
        if !connection.died && !connection.adopted {
            self.let_go(key, Reason::Closed)?;
            return Ok(None);
        }
        let served = self.services.get(&key.service());
        let Some(record) =
            connection.flow.settled().filter(|_| served.is_some_and(|s| s.speaks(&self.leases)))
        else {
            connection.note_early(key, &mut self.early);
            return Ok(None);
        };
        // It came before the end of the client's was stored, and has left since: only the client's last word is missing.
        if !connection.died && connection.flow.closes() && !connection.flow.ends_early() {
            return Ok(None);
        }
        self.withdraw(key)?;
        Ok(Some(record))
    }

    /// Parks a connection that is to be adopted on this host: nothing else is left of it here but its place in the store.
    ///
    /// # Errors
    /// The system's.
    pub fn withdraw(&mut self, key: &FlowKey) -> Result<(), HoldError> {
        self.hold.programs.park(key)?;
        self.hold.clear(key)?;
        if let Some(connection) = self.connections.remove(key) {
            for frame in connection.held {
                self.hold.forget(frame);
            }
        }
        self.hold.abort(key)
    }

    /// Has a client's packet come in that nobody heard.
    pub fn hear_again(&mut self, key: &FlowKey, packet: &[u8]) {
        self.hold.hear_again(key, packet);
    }

    /// The connections of these services.
    #[must_use]
    pub fn keys(&self, services: &[SocketAddr]) -> Vec<FlowKey> {
        self.connections.keys().filter(|key| services.contains(&key.service())).copied().collect()
    }

    /// The record from which another replica can go on with a connection as it is now, while this one may speak on it.
    ///
    /// # Errors
    /// The system's.
    pub fn movable(&mut self, key: &FlowKey) -> Result<Option<Record>, HoldError> {
        let Some(connection) = self.connections.get_mut(key) else { return Ok(None) };
        let served = self.services.get(&key.service());
        if !served.is_some_and(|s| s.speaks(&self.leases)) {
            return Ok(None);
        }
        if let Some(limits) = self.hold.programs.limits(key)? {
            connection.flow.acknowledged(limits.acked);
        }
        Ok(connection.flow.movable())
    }

    /// A connection is another replica's from now on: nothing is said on it here any more, and nothing is left of it but its
    /// place in the store.
    ///
    /// # Errors
    /// The system's.
    pub fn move_to(&mut self, key: &FlowKey, to: Pin) -> Result<(), HoldError> {
        // First of all it is muted.
        self.hold.programs.pin(key, to)?;
        self.hold.clear(key)?;
        if let Some(connection) = self.connections.remove(key) {
            for frame in connection.held {
                self.hold.forget(frame);
            }
        }
        self.hold.abort(key)
    }

    /// The client of a connection that was to be adopted on this host is gone.
    pub fn forget(&mut self, key: &FlowKey) {
        self.keeper.forget(key);
    }

    fn let_go(&mut self, key: &FlowKey, reason: Reason) -> Result<(), HoldError> {
        self.tell(key, |flow, out| flow.let_go(reason, out));
        self.act()
    }

    /// Another replica has a record of a connection: if this one knows nothing newer, that one went on with it, and nothing is
    /// said on it here any more. False if it does, of its own or of a third one's: what one that died meanwhile had read lies
    /// where it was until somebody deletes it.
    ///
    /// # Errors
    /// The system's.
    pub fn hand_over(&mut self, key: &FlowKey, to: Pin, theirs: &Age) -> Result<bool, HoldError> {
        let is_outdated = self.is_ahead(key, theirs) || self.is_elsewhere(key, theirs);
        tracing::debug!(client = %key.client(), ?theirs, holder = to.holder, is_outdated, "held elsewhere");
        if is_outdated {
            return Ok(false);
        }
        // First of all it is muted.
        self.hold.programs.pin(key, to)?;
        if self.elsewhere.len() >= MAX_ELSEWHERE {
            self.elsewhere.clear();
        }
        self.elsewhere.insert(*key, *theirs);
        self.abandon(key)?;
        Ok(true)
    }

    /// Whether another replica was seen to know more of a connection than a record says that was left behind: that one goes on.
    #[must_use]
    pub fn is_elsewhere(&self, key: &FlowKey, left: &Age) -> bool {
        self.elsewhere.get(key).is_some_and(|theirs| theirs.is_after(left))
    }

    /// Whether a connection is watched.
    #[must_use]
    pub fn has(&self, key: &FlowKey) -> bool {
        self.connections.contains_key(key)
    }

    /// Whether this replica knows more of a connection than a record of another's.
    #[must_use]
    pub fn is_ahead(&self, key: &FlowKey, theirs: &Age) -> bool {
        self.connections.get(key).is_some_and(|connection| !connection.flow.is_behind(theirs))
    }

    /// Gives up what is here of a connection, in the kernel too: it is gone on with at another place of its sequence numbers. What
    /// the kernel says at that does not leave, since the connection is pinned or parked.
    ///
    /// # Errors
    /// The system's.
    pub fn abandon(&mut self, key: &FlowKey) -> Result<(), HoldError> {
        if let Some(connection) = self.connections.remove(key) {
            self.end(key, connection)?;
        }
        self.hold.clear(key)?;
        self.hold.abort(key)
    }

    /// Frees a connection that is no more, and forgets it.
    fn end(&mut self, key: &FlowKey, mut connection: Connection) -> Result<(), HoldError> {
        connection.flow.closed(&mut self.said);
        if self.said.drain(..).any(|action| action == Action::Forget) {
            self.keeper.forget(key);
        }
        self.hold.programs.free(key)?;
        for frame in connection.held {
            self.hold.forget(frame);
        }
        Ok(())
    }

    /// A connection of another replica's goes on here, whose client has everything below `acked`: its limits stand before the
    /// kernel has it, and its record is stored under this replica's name before an octet leaves.
    ///
    /// # Errors
    /// No room for it.
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

    /// A connection whose response timestamps named is recorded from now on, before anything else is acknowledged or leaves.
    ///
    /// # Errors
    /// The system's.
    pub fn record(&mut self, record: &Record, stamped: &Stamped, acked: u32) -> Result<(), HoldError> {
        let Tuple { client, service } = record.tuple;
        let key = FlowKey::new(client, service);
        let settings = self.services.get(&service).map(|s| s.settings).unwrap_or_default();
        let mut connection = Connection::adopted(record, &settings, now_ms(), &mut self.said);
        (connection.named, connection.adopted, connection.awaited) = (true, stamped.adopted, false);
        // What the programs may have said meanwhile is not ahead of this.
        let ahead = u32::from(stamped.index.wrapping_sub(stamped.echo) % 32) < MAX_AHEAD;
        let index = (stamped.index + u8::from(ahead)) % 32;
        self.hold.programs.stamps().put(&key, &Stamped { phase: Phase::Recorded, index, ..*stamped })?;
        self.hold.programs.set_limits(&key, &connection.limits(acked))?;
        self.connections.insert(key, connection);
        self.actions.extend(self.said.drain(..).map(|action| (key, action)));
        self.act()
    }

    /// The kernel has the socket of a connection that was [adopted](Watch::adopt): its client is heard from now on.
    ///
    /// # Errors
    /// The system's.
    pub fn begin(&mut self, key: &FlowKey) -> Result<(), HoldError> {
        let Some(connection) = self.connections.get_mut(key) else { return Ok(()) };
        connection.awaited = false;
        let acked = self.hold.programs.limits(key)?.map_or(connection.first, |l| l.acked);
        self.hold.programs.set_limits(key, &connection.limits(acked))?;
        Ok(())
    }

    /// Looks at some connections, others each time: one on which nothing was said for [so long](Self::set_idle) is over, since
    /// its server, or the server's kernel, has given it up; a record that is [stale](Keeper::is_stale) is stored again. To be
    /// called ten times a second or so.
    ///
    /// # Errors
    /// The system's.
    pub fn sweep(&mut self) -> Result<(), HoldError> {
        let now = now_ms();
        if self.swept.is_empty() {
            self.swept.extend(self.connections.keys());
        }
        for key in self.swept.split_off(self.swept.len().saturating_sub(SWEPT)) {
            let Some(connection) = self.connections.get_mut(&key) else { continue };
            // Without limits the programs have forgotten it, for another one between its ports that never began.
            let limits = self.hold.programs.limits(&key)?;
            let idle = self.idle.as_millis() as u64;
            if limits.is_some_and(|limits| connection.speaks(limits.acked, now) + idle > now) {
                if self.keeper.is_stale(&key) {
                    self.tell(&key, Flow::renew);
                }
                continue;
            }
            if let Some(connection) = self.connections.remove(&key) {
                self.end(&key, connection)?;
            }
        }
        self.act()
    }

    /// Takes events in, and says how many.
    fn hear(&mut self, parked: &mut impl FnMut(&FlowKey, &[u8])) -> Result<usize, HoldError> {
        let now = now_ms();
        let Watch {
            hold,
            leases,
            keeper,
            services,
            connections,
            due,
            actions,
            said,
            stale,
            over,
            early,
            issuers,
            asked,
            ended: ends,
            ..
        } = self;
        let count = hold.events(BATCH, |event| {
            let Event { key, ack, what } = event;
            let mut end =
                |mut connection: Connection, actions: &mut Vec<(FlowKey, Action)>, said: &mut Vec<Action>| {
                    connection.flow.closed(said);
                    if said.drain(..).any(|action| action == Action::Forget) {
                        keeper.forget(&key);
                    }
                    actions.retain(|(other, _)| *other != key);
                    stale.append(&mut connection.held.into());
                };
            match what {
                // Whoever may not speak goes on with nothing: another one does.
                What::Parked { packet } => {
                    let service = services.get(&key.service());
                    if service.is_some_and(|service| service.speaks(leases)) {
                        parked(&key, packet);
                    }
                    return;
                }
                What::Opened { syn, syn_ack } => {
                    let tuple = Tuple { client: key.client(), service: key.service() };
                    // Of a service that went meanwhile: nothing holds it, and it ends like any other.
                    let settings = services.get(&tuple.service).map(|s| s.settings).unwrap_or_default();
                    // The end of the one before between these ports was not seen.
                    if let Some(before) = connections.remove(&key) {
                        end(before, actions, said);
                    }
                    let mut connection = Connection::new(tuple, &settings, syn, syn_ack, now, said);
                    connection.ask_later(&key, now, due);
                    connections.insert(key, connection);
                }
                What::Unnamed { seq, end: next, isn, base, adopted } => {
                    let tuple = Tuple { client: key.client(), service: key.service() };
                    let settings = services.get(&tuple.service).map(|s| s.settings).unwrap_or_default();
                    if let Some(before) = connections.remove(&key) {
                        end(before, actions, said);
                    }
                    // What the programs never write is nobody's, and stays held.
                    let Some(handshake) = ts::handshake(base, isn, seq, now) else { return };
                    let mut connection = Connection::unnamed(tuple, &settings, handshake, seq, next, said);
                    connection.adopted = adopted;
                    connection.ask_later(&key, now, due);
                    connections.insert(key, connection);
                }
                What::Replaced => {
                    if let Some(before) = connections.remove(&key) {
                        end(before, actions, said);
                    }
                    return;
                }
                _ => {
                    let Some(connection) = connections.get_mut(&key) else {
                        match what {
                            // Nobody asks for it.
                            _ if !issuers.contains_key(&key.service()) => {}
                            What::Stamped { .. } => asked.push(key),
                            What::Fin { of_dead, .. } => ends.push(Ended { key, of_dead, is_reset: false }),
                            What::Aborted { of_dead } => ends.push(Ended { key, of_dead, is_reset: true }),
                            _ => {}
                        }
                        return;
                    };
                    if connection.ends(&what) {
                        if let Some(connection) = connections.remove(&key) {
                            end(connection, actions, said);
                        }
                        over.push((key, matches!(what, What::Reset { .. })));
                        return;
                    }
                    connection.flow.tick(now, said);
                    connection.hear(ack, &what, said);
                    let (ended, died) = match what {
                        // An adopted one this process resets, and says so itself.
                        What::Aborted { of_dead } => (!connection.adopted, of_dead),
                        What::Fin { of_dead, .. } => (connection.adopted, of_dead),
                        _ => (false, false),
                    };
                    connection.died |= died;
                    if ended || died || connection.flow.ends_early() {
                        connection.note_early(&key, early);
                    }
                    connection.ask_later(&key, now, due);
                }
            }
            actions.extend(said.drain(..).map(|action| (key, action)));
        })?;
        for (key, is_reset) in over.drain(..) {
            // Another one may have begun since, with limits of its own.
            let stamps = hold.programs.stamps();
            let is_named = issuers.contains_key(&key.service()) && stamps.named(&key)?.is_some();
            if connections.contains_key(&key) || is_named {
                continue;
            }
            hold.programs.free(&key)?;
            // What ends otherwise has a last word of the kernel's to come.
            if is_reset {
                stamps.forget(&key)?;
            }
        }
        for frame in stale.drain(..) {
            hold.forget(frame);
        }
        Ok(count)
    }

    /// A frame that may not leave.
    fn answer(&mut self, frame: Frame) -> Result<(), HoldError> {
        let (key, now) = (*frame.key(), now_ms());
        let Some(connection) = self.connections.get_mut(&key) else {
            self.hold.send(frame);
            return Ok(());
        };
        if let Ok(Some(limits)) = self.hold.programs.limits(&key) {
            connection.flow.acknowledged(limits.acked);
        }
        connection.flow.tick(now, &mut self.said);
        connection.flow.response(frame.seq(), frame.data(), frame.fin(), &mut self.said);
        if connection.flow.ends_early() {
            connection.note_early(&key, &mut self.early);
        }
        connection.ask_later(&key, now, &mut self.due);
        self.actions.extend(self.said.drain(..).map(|action| (key, action)));
        connection.keep(frame, &mut self.hold);
        connection.release(&mut self.hold);
        self.act()
    }

    /// What the store says, and what is said to it.
    ///
    /// # Errors
    /// The system's.
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

    /// Connections whose time has come.
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
            connection.flow.tick(now, &mut self.said);
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

    /// Does what the flows said.
    fn act(&mut self) -> Result<(), HoldError> {
        let mut actions = std::mem::take(&mut self.actions);
        let mut result = Ok(());
        for (key, action) in actions.drain(..) {
            // One that fails leaves the others as they are; its connection stays held.
            result = result.and(self.act_one(&key, action));
        }
        self.actions = actions;
        result
    }

    fn act_one(&mut self, key: &FlowKey, action: Action) -> Result<(), HoldError> {
        match action {
            Action::Store { ticket, record } => self.keeper.store(key, ticket, &record),
            Action::Forget => self.keeper.forget(key),
            Action::Limits(limits) => {
                let Some(connection) = self.connections.get_mut(key) else { return Ok(()) };
                // What stands lower now, as behind a new request, lets nothing go that was withheld.
                let before = connection.limits;
                let raised =
                    before.ack != limits.ack || limits.fin_at.is_some() && before.fin_at != limits.fin_at;
                connection.limits = limits;
                let acked = self.hold.programs.limits(key)?.map_or(connection.first, |l| l.acked);
                if !self.hold.programs.set_limits(key, &connection.limits(acked))? {
                    // Another connection of these ports took its place, and will be told of.
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
                    self.hold.programs.free(key)?;
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

/// The time, milliseconds of Unix time.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}
