//! A replica's part in TRODS as one thread: it protects connections of the services that it is given, and goes on with those of
//! replicas that it hears are gone.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rivulet_bpf::trods::{FlowKey, Lease, Leases, Pin, Unnamed};
use rivulet_pktio::repair;
use rivulet_pktio::{Interface, in_netns};
use rustix::event::{EventfdFlags, eventfd};

use crate::adopt::{AdoptConfig, Adopters, Outcome};
use crate::flow::{Settings, Wake};
use crate::hold::{
    Absence, Departed, Followers, Heard, Hold, HoldError, Leave, Leaving, Pins, Rescue, Stores, Watch, now_ms,
};
use crate::record::{Handshake, Record, Tuple};
use crate::store::{Store, StoreConfig};
use crate::ts::{self, Absences, Found, LeaveNamed, Named, Names};

/// Between two looks at everything that does not make itself heard.
const LOOK: Duration = Duration::from_millis(100);
/// After the end of a connection where there should be none its server is asked whether it lives: as long as a process takes
/// that is killed.
const DEATH: Duration = Duration::from_millis(20);
/// And has so long to accept.
const ACCEPT: Duration = Duration::from_millis(20);
/// For how long a server that should serve the rest of a response is asked again.
const PATIENCE: Duration = Duration::from_secs(3);
/// A connection that could not be adopted is looked for again after this time: what stood in its way may be gone then.
const AGAIN: Duration = Duration::from_millis(250);
/// An adopted connection on which nothing happens is closed, as nginx does.
const IDLE: Duration = Duration::from_secs(75);

/// What is protected.
#[derive(Clone, Debug)]
pub struct Protected {
    /// Addresses and port of the service.
    pub sockets: Vec<SocketAddr>,
    /// Under which lease, of [`Replica::set_lease`].
    pub lease: u32,
    /// How.
    pub settings: Settings,
    /// Where records are of what is needed to go on, of all connections or of those that timestamps do not name.
    pub store: Option<StoreConfig>,
    /// How timestamps name it.
    pub named: Option<Named>,
}

/// A replica that is dead, or was excluded, of whose connections others told.
pub struct Gone {
    /// Its number.
    pub replica: u8,
    /// The services.
    pub services: Vec<SocketAddr>,
    /// Who is expected to get what the client sends to the service; `None` is this replica itself.
    pub other: Box<dyn Fn(SocketAddr, SocketAddr) -> Option<Pin> + Send>,
    /// Whether this replica gets no connections for now.
    pub waits: bool,
}

/// What became of connections since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections of which a record was stored.
    pub protected: u64,
    /// Connections that were not protected to their end, by [reason](Reason::name).
    pub unprotected: BTreeMap<&'static str, u64>,
    /// Connections of other replicas that go on here.
    pub adopted: u64,
    /// Of these, those whose clients were reset.
    pub refused: u64,
    /// Connections that were left to other replicas.
    pub moved: u64,
    /// Connections that are watched now: a record of each is in the store, or will be.
    pub watched: u64,
    /// Connections that timestamps name now, and those of them that have left and that nobody has gone on with yet.
    pub named: u64,
}

enum Command {
    Services(Vec<Protected>),
    Departed(Departed),
    Gone(Gone),
    Away(Absence),
    Leave(Vec<Leave>, Vec<LeaveNamed>),
    Follow(Vec<(u8, Departed)>),
    Succeed,
}

/// The thread. It ends with this.
#[derive(Debug)]
pub struct Replica {
    commands: Sender<Command>,
    leases: Leases,
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    wake: OwnedFd,
    stop: AtomicBool,
    counts: Mutex<Counts>,
    /// Versions of the tables of services whose connections are named.
    tables: Mutex<HashMap<SocketAddr, u32>>,
    /// Absences that are over.
    back: Mutex<Vec<(u32, u64)>>,
    /// Until when others go on with what there was here before this process.
    settles: Mutex<Option<Instant>>,
}

impl Replica {
    /// Loads the programs onto an interface; nothing is protected yet. `wake`: of connections of others; of its own the
    /// [`Settings`] say it; `issues`: there may be services that are [named](Protected::named). Needs root, or `CAP_BPF`, `CAP_NET_ADMIN` and `CAP_NET_RAW`.
    ///
    /// # Errors
    /// What the kernel lacks, in words for the operator.
    pub fn start(interface: &Interface, wake: Wake, issues: bool) -> Result<Replica, HoldError> {
        in_netns(interface.netns(), repair::check)??;
        let hold = if issues { Hold::open_issuing(interface) } else { Hold::open(interface) }?;
        let leases = hold.programs().leases()?;
        let rescue = Rescue::new(interface.netns(), wake)?;
        let watch = Watch::new(hold, Stores::default())?;
        let wake =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(std::io::Error::from)?;
        let shared = Arc::new(Shared {
            wake,
            stop: AtomicBool::new(false),
            counts: Mutex::default(),
            tables: Mutex::default(),
            back: Mutex::default(),
            settles: Mutex::default(),
        });
        let (commands, receive) = channel();
        let (netns, of_thread) = (interface.netns().map(str::to_owned), Arc::clone(&shared));
        let thread = std::thread::Builder::new().name("trods".into()).spawn(move || {
            let (adopters, early, absences) =
                (HashMap::new(), VecDeque::new(), Absences::new(Instant::now()));
            let (ended, ends) = channel();
            let pins = Pins::default();
            let mut body = Body {
                names: None,
                gone: Vec::new(),
                netns: netns.clone(),
                absences,
                watch,
                rescue,
                pins,
                adopters,
                early,
                leaving: Leaving::default(),
                followers: Followers::default(),
                ended,
                ends,
                commands: receive,
                shared: of_thread,
            };
            if let Err(e) = in_netns(netns.as_deref(), || body.run()) {
                tracing::error!(error = %e, "connections are not protected any more");
            }
        })?;
        Ok(Replica { commands, leases, shared, thread: Some(thread) })
    }

    /// These services are protected from now on, and no others.
    pub fn protect(&self, services: Vec<Protected>) {
        self.command(Command::Services(services));
    }

    /// The process before this one had left all connections, and its replica was never excluded: what the kernel still has of
    /// others is their servers'.
    pub fn succeed(&self) {
        self.command(Command::Succeed);
    }

    /// A replica is gone: its connections are looked for.
    pub fn departed(&self, departed: Departed) {
        self.command(Command::Departed(departed));
    }

    /// A replica is gone of whose connections others told: they are looked for.
    pub fn gone(&self, gone: Gone) {
        self.command(Command::Gone(gone));
    }

    /// The version of the table of what a service's server has; 0: none yet.
    #[must_use]
    pub fn table(&self, service: &SocketAddr) -> u32 {
        let tables = self.shared.tables.lock().unwrap_or_else(PoisonError::into_inner);
        tables.get(service).copied().unwrap_or(0)
    }

    /// This replica was away, and others may have gone on with its connections: these are handed on from now on, and given up
    /// where they are still here. [`Replica::back`] tells when that is done.
    pub fn away(&self, absence: Absence) {
        self.command(Command::Away(absence));
    }

    /// Connections of these services go on elsewhere, as soon as another replica [follows](Replica::follow), and of no others;
    /// those that timestamps name without it, where there is no store.
    pub fn leave(&self, all: Vec<Leave>, named: Vec<LeaveNamed>) {
        self.command(Command::Leave(all, named));
    }

    /// These replicas live and are left by their connections: who is named beside each (this replica's index in the pool) goes
    /// on with those that it is expected to get.
    pub fn follow(&self, all: Vec<(u8, Departed)>) {
        self.command(Command::Follow(all));
    }

    /// Absences after which it is known who holds what, since this was called last.
    #[must_use]
    pub fn back(&self) -> Vec<(u32, u64)> {
        std::mem::take(&mut *self.shared.back.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether others have to go on first with connections whose timestamps the process before this one made: from here its clients would
    /// hear of the kernel, which knows nothing of those. They ask again within seconds.
    #[must_use]
    pub fn is_settling(&self) -> bool {
        let settles = self.shared.settles.lock().unwrap_or_else(PoisonError::into_inner);
        settles.is_some_and(|until| Instant::now() < until)
    }

    /// Sets a lease: until when what stands under it may speak.
    pub fn set_lease(&self, number: u32, lease: Lease) {
        if let Err(e) = self.leases.set(number, lease) {
            tracing::error!(error = %e, "a lease cannot be set");
        }
    }

    /// What became of connections.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn command(&self, command: Command) {
        // A thread that is gone has said so.
        let _ = self.commands.send(command);
        self.shared.wake();
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of protected connections panicked");
        }
    }
}

impl Shared {
    fn wake(&self) {
        // One that cannot be counted any further is awake.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

struct Body {
    /// Services whose connections are named by timestamps.
    names: Option<Names>,
    /// Replicas whose named connections are not looked for yet: records come first.
    gone: Vec<Gone>,
    netns: Option<String>,
    absences: Absences,
    watch: Watch<Stores>,
    rescue: Rescue,
    pins: Pins,
    /// Who goes on with connections, by service.
    adopters: HashMap<SocketAddr, Adopters>,
    /// What became of adopted connections.
    ended: Sender<(Tuple, Outcome)>,
    ends: Receiver<(Tuple, Outcome)>,
    /// Connections whose server ended them, and since when.
    early: VecDeque<(Instant, FlowKey)>,
    leaving: Leaving,
    followers: Followers,
    commands: Receiver<Command>,
    shared: Arc<Shared>,
}

impl Body {
    fn run(&mut self) {
        let mut looked = Instant::now();
        while !self.shared.stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            let due = self.rescue.deadline().into_iter().chain(self.early.front().map(|(at, _)| *at + DEATH));
            let due = due.chain(self.leaving.deadline());
            let pause = due.map(|at| at.saturating_duration_since(now)).fold(LOOK, Duration::min);
            let wake = self.shared.wake.as_fd();
            match self.names.as_ref().map(Names::wait) {
                Some((told, longest)) => self.watch.wait(pause.min(longest), &[wake, told]),
                None => self.watch.wait(pause, &[wake]),
            }
            // How often it was woken does not matter.
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
        // Before anything is made of it: whoever has just gone on with a connection has told of it.
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
        let (mut found, rescue, now) = (Vec::new(), &mut self.rescue, now_ms());
        let (mut named, names) = (Vec::new(), &mut self.names);
        let mut spoke = Vec::new();
        self.watch.turn(|key, packet| {
            spoke.push(*key);
            // What there is a record of is gone on with by that, or may be; its client says it again.
            let is_recorded = rescue.is_loading() || rescue.looks_for(key);
            let heard = rescue.heard(key, packet, now);
            if let Some(names) = names {
                if heard.is_some() {
                    names.is_found(key);
                } else if !is_recorded || names.looks_for(key) {
                    named.extend(names.heard(key, packet, now).map(|found| (*key, found)));
                }
            }
            found.extend(heard);
        })?;
        for (key, found) in named {
            if let Err(e) = self.go_on_named(&key, &found) {
                tracing::warn!(error = %e, client = %key.client(), "not adopted");
                if let Some(names) = &mut self.names {
                    names.look_again(&key, &found, &mut self.watch)?;
                }
            }
        }
        for heard in found {
            let key = FlowKey::new(heard.record.tuple.client, heard.record.tuple.service);
            if let Err(e) = self.go_on(&key, &heard) {
                tracing::warn!(error = %e, client = %key.client(), "not adopted");
                if let Err(e) = self.watch.withdraw(&key) {
                    tracing::warn!(error = %e, client = %key.client(), "nor parked");
                }
                self.rescue.here(key, heard.record, Instant::now() + AGAIN);
            }
        }
        // What came before they went on here, and what was told of since.
        spoke.retain(|key| self.watch.has(key));
        for key in &spoke {
            for packet in self.rescue.said(key) {
                self.watch.hear_again(key, &packet);
            }
        }
        let is_loading = self.rescue.is_loading();
        self.rescue.turn(Instant::now(), now, &mut self.watch)?;
        if !is_loading {
            self.look_for_named()?;
        }
        self.leaving.turn(Instant::now(), &mut self.watch)?;
        self.early.extend(self.watch.ended_early().into_iter().map(|key| (Instant::now(), key)));
        while let Ok((Tuple { client, service }, outcome)) = self.ends.try_recv() {
            let key = FlowKey::new(client, service);
            match outcome {
                // That is seen on the interface.
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

    /// A connection goes on here, whose client said where it is.
    fn go_on(&mut self, key: &FlowKey, heard: &Heard) -> Result<(), HoldError> {
        let Heard { record, connection, sacked, stamped } = heard;
        // Parked as it is, what the kernel says at this does not leave.
        self.watch.abandon(key)?;
        if let Some(stamped) = stamped {
            self.watch.hold().programs().stamps().put(key, stamped)?;
        }
        if let Some(names) = &mut self.names {
            names.go_on_recorded(key, self.watch.hold().programs())?;
        }
        self.watch.adopt(record, connection.send_next)?;
        // The store answers while the kernel makes the socket.
        self.watch.settle()?;
        // What it says has the kernel's timestamps, as all that the programs translate.
        let handshake = Handshake { stamps: None, ..record.handshake };
        let record = Record { handshake, ..record.clone() };
        self.adopters(record.tuple.service)?.adopt(record, connection, *sacked)?;
        self.watch.begin(key)?;
        tracing::debug!(client = %key.client(), "adopted");
        self.watch.hold().programs().unpark(key)?;
        self.watch.hold().programs().unpin(key)?;
        Ok(())
    }

    /// The same of one that its client named.
    fn go_on_named(&mut self, key: &FlowKey, found: &Found) -> Result<(), HoldError> {
        self.watch.abandon(key)?;
        let Some(names) = &mut self.names else { return Ok(()) };
        names.adopt(key, found, self.watch.hold().programs())?;
        let adopters = self.adopters(found.record.tuple.service)?;
        adopters.adopt(found.record.clone(), &found.connection, found.sacked)?;
        tracing::debug!(client = %key.client(), object = found.stamped.object, "adopted");
        self.watch.hold().programs().unpark(key)?;
        self.watch.hold().programs().unpin(key)?;
        Ok(())
    }

    /// Connections of replicas that are gone, of which others told; what there are records of is looked for by these.
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

    /// It is known what others hold since an absence.
    fn back(&self, absence: (u32, u64)) {
        self.shared.back.lock().unwrap_or_else(PoisonError::into_inner).push(absence);
    }

    /// Whose server ended a connection where it should not: whether it lives.
    fn judge(&mut self) -> Result<(), HoldError> {
        let mut lives: HashMap<SocketAddr, bool> = HashMap::new();
        while self.early.front().is_some_and(|(at, _)| at.elapsed() >= DEATH)
            && let Some((_, key)) = self.early.pop_front()
        {
            let service = key.service();
            let accepts = || TcpStream::connect_timeout(&service, ACCEPT).is_ok();
            let lives = *lives.entry(service).or_insert_with(accepts);
            if let Some(record) = self.watch.judge(&key, lives)? {
                self.rescue.here(key, record, Instant::now());
            }
        }
        Ok(())
    }

    fn replace(&mut self, services: &[Protected]) -> Result<(), HoldError> {
        let mut named = Vec::new();
        for Protected { sockets, store, named: how, .. } in services {
            named.extend(how.iter().map(|how| (sockets.clone(), how.clone())));
            let keeper = self.watch.keeper_mut();
            let Some(config) = store else { continue };
            if sockets.iter().all(|s| keeper.has(s, config)) {
                continue;
            }
            match Store::new(config, Instant::now()) {
                Ok(store) => keeper.add(store, config, sockets.iter().copied()),
                Err(e) => tracing::error!(error = %e, "no store for {sockets:?}"),
            }
        }
        if self.names.is_none() && !named.is_empty() {
            self.names = Some(Names::open(self.netns.as_deref())?);
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
        if self.watch.set_services(&all)? > 0 {
            let mut settles = self.shared.settles.lock().unwrap_or_else(PoisonError::into_inner);
            *settles = Some(Instant::now() + ts::HUNT);
        }
        Ok(())
    }

    fn adopters(&mut self, service: SocketAddr) -> Result<&Adopters, HoldError> {
        Ok(match self.adopters.entry(service) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(place) => {
                let config = AdoptConfig { origin: service, patience: PATIENCE, idle: IDLE };
                place.insert(Adopters::start(config, self.ended.clone())?)
            }
        })
    }

    /// Counts, and whether the interface is another one.
    fn look(&mut self) {
        if let Err(e) = self.watch.hold_mut().follow() {
            tracing::debug!(error = %e, "the interface");
        }
        if let Err(e) = self.watch.sweep() {
            tracing::warn!(error = %e, "idle connections");
        }
        let leaves = self.leaving.services();
        if let Some(names) = self.names.as_ref().filter(|_| !leaves.is_empty())
            && let Err(e) = names.record(&leaves, &mut self.watch)
        {
            tracing::warn!(error = %e, "named connections do not move");
        }
        let status = self.watch.status();
        let (protected, watched, moved) = (status.protected, status.watched, self.leaving.moved());
        let mut counts = Counts { protected, watched, moved, ..Counts::default() };
        counts.unprotected =
            status.unprotected.iter().map(|(reason, count)| (reason.name(), *count)).collect();
        if let (Some(names), Ok(said)) = (&self.names, self.watch.hold().counters()) {
            counts.protected += said.named;
            let (left, named) = names.moves();
            counts.moved += left;
            counts.named = named;
            let unnamed = causes(&said.unnamed).into_iter().filter(|(_, count)| *count > 0);
            counts.unprotected.extend(unnamed);
            *self.shared.tables.lock().unwrap_or_else(PoisonError::into_inner) = names.versions();
        }
        for adopters in self.adopters.values() {
            let of = adopters.counts();
            counts.adopted += of.adopted;
            counts.refused += of.refused;
        }
        *self.shared.counts.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }
}

/// Why connections go on that no timestamp names, as in metrics.
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
