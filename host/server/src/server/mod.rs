//! The event loop: frames in, the transport's step, the application's answers, frames out.
//!
//! One thread, one interface; several of them share an interface's flows ([`Server::open_workers`]). In steady state nothing is allocated and nothing is kept from one packet to
//! the next except soft state that may be dropped at any time.

mod downloads;
mod kernel;
mod plain;
mod turn;
mod way;

pub(crate) use plain::Door;

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rivulet_pktio::guard::KernelGuard;
use rivulet_pktio::{AfPacket, Backend, IoChoice, LinkInfo, OpenError, PacketIo, Stats};
use rivulet_plain::{Protocol, Table};
use rivulet_transport::Time;
use rivulet_transport::server::{MinisocketCache, Policy, Refusal, ReplayMemory, Server as Transport};

use crate::adopt::{Adopter, Doorway};
use crate::back_end::{BackEnd, Exchanges};
use crate::config::{Config, ServerError};
use crate::counters::Counters;
use crate::interface::{Opener, awaited};
use crate::minisocket::Minisocket;
use crate::paths::Paths;
use crate::pulse::{PoolView, Pulse};
use crate::rules::{Filters, segments, shares};
use crate::running::Running;
use crate::service::{Plain, Service, check_all};
use crate::service_set::ServiceSet;
use crate::tunnel::{self, Tunnels};
use crate::workers::Place;

/// Uses that the replay defence remembers a horizon, 16 octets each, of all services: 65,000 requests a second at 4 s for each
/// of up to 16 services. With more services each has a share, but this many at least. Beyond it repeats pass unjudged.
const REPLAY_USES: usize = 1 << 22;
const REPLAY_USES_OF_ONE: (usize, usize) = (1 << 12, 1 << 18);
/// How long a replica that leaves answers what is under way to it, and how long it waits for its heartbeats to have left.
const LEAVING: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(1);
/// A turn of one that leaves waits for so long.
const TURN: Duration = Duration::from_millis(2);
/// Continuations in the minisocket caches of all services, and least and most of one: a round trip of 20 ms at 400,000 packets
/// a second, in a megabyte.
const MINISOCKETS: usize = 1 << 17;
const MINISOCKETS_OF_ONE: (usize, usize) = (1 << 9, 1 << 13);
/// The interface is asked again after this time, microseconds.
const LOOK: u64 = 200_000;
/// IP and TCP headers of ours at most (IPv6, 28 octets of TCP), taken from the MTU.
const HEADERS: u32 = 68;

/// A server application: what `msk_*` programs are in Rust. It keeps nothing of a connection between two
/// calls; whatever it needs again it puts into user continuations.
pub trait Application {
    /// An event. REQUEST events come at least once and unordered. An error refuses the request: nothing
    /// is answered, the refusal is counted.
    fn event(&mut self, msk: &mut Minisocket<'_, '_>) -> Result<(), Refusal>;
}

/// Where a frame comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// From the interface, as it is.
    Wire,
    /// From another rack's ToR.
    Tunnel,
    /// Judged before, and set aside by the application.
    Detached {
        /// Its ToR block was believed.
        trusted: bool,
    },
}

/// A server on one interface, or one worker of several.
pub struct Server {
    io: Box<dyn PacketIo>,
    link: LinkInfo,
    guard: Option<KernelGuard>,
    pub(crate) running: Vec<Running>,
    pub(crate) sockets: Sockets,
    pub(crate) counters: Counters,
    started: Instant,
    /// Requests in the last batch: the load that heartbeats tell.
    load: usize,
    /// Connections of the kernel's TCP, which heartbeats tell besides.
    open_connections: usize,
    /// Frames of the last batch that are not dealt with.
    waiting: Range<usize>,
    /// When there was last no room to answer a request, microseconds; since then frames say when they came.
    full: Option<u64>,
    /// The request being handled waited long.
    late: bool,
    /// The leader's: it sends the heartbeats of all.
    pulse: Option<Pulse>,
    /// Holds the frame being handled.
    frame: Box<[u8]>,
    /// When the interface was last asked what it is, microseconds.
    looked: u64,
    opener: Opener,
    reopened: u64,
    /// The application is not ready; requests are answered all the same.
    held_back: bool,
    /// Numbers of the services for which it is not.
    held_services: Vec<u16>,
    /// A turn was taken: before that nobody answers.
    turned: bool,
    /// Clients of large answers were heard, and not answered yet.
    heard: bool,
    /// Continuations travel as differences to what the client predicts.
    delta: bool,
    paths: Paths,
    place: Place,
    filters: Filters,
    tunnels: Tunnels,
    /// What plain clients are served without state.
    content: Option<Content>,
    /// What the back end is asked.
    exchanges: Option<Exchanges>,
    /// Connections of plain clients that the kernel's TCP has taken over.
    adopter: Adopter,
    kernel: kernel::Kernel,
    /// What is remembered of plain clients' answers.
    memory: plain::Memory,
}

/// Where answers to plain clients come from.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// A table.
    Objects(Arc<Table>),
    /// A program that is asked by UDP.
    BackEnd(BackEnd),
}

impl Content {
    /// Tells contents apart; never 0.
    fn version(&self) -> u32 {
        match self {
            Content::Objects(table) => table.version(),
            // What it answers is not known here; that nobody answers from files beside it is.
            Content::BackEnd(back_end) => {
                1 + u32::from(back_end.deterministic) + 2 * u32::from(back_end.protocol == Protocol::Dns)
            }
        }
    }
}

impl Server {
    /// Opens the interface and takes the services up.
    pub fn open(config: &Config) -> Result<Server, ServerError> {
        Self::open_place(config, Place::alone(), None, Instant::now())
    }

    /// Opens `count` servers (1 at least), each for a thread of its own, which are one replica together: every flow is
    /// given to one of them, by a hash of its addresses and ports. The first sends the heartbeats, for all, and keeps
    /// the kernel from answering; it must be the last to go. What [`Server::replace`] is given, each must be given.
    pub fn open_workers(config: &Config, count: usize) -> Result<Vec<Server>, ServerError> {
        if count > 1 && config.io == IoChoice::AfXdp {
            let why = format!(
                "AF_XDP gives the interface's one queue to one socket, so {count} workers cannot share it: one worker \
                 (--workers 1), or AF_PACKET (--io af_packet)"
            );
            return Err(OpenError::Unsupported(config.interface.to_string(), why).into());
        }
        let share = if count > 1 { Some(AfPacket::unused_share(&config.interface)?) } else { None };
        let started = Instant::now();
        let open = |place| Self::open_place(config, place, share, started);
        Place::all(count.max(1)).into_iter().map(open).collect()
    }

    fn open_place(
        config: &Config,
        place: Place,
        share: Option<u16>,
        started: Instant,
    ) -> Result<Server, ServerError> {
        let filters = Filters::new(&[], &[], &[])?;
        let choice = if share.is_some() { IoChoice::AfPacket } else { config.io };
        let opener = Opener::new(choice, place.count());
        let io = opener.open(&config.interface, &filters.outer, share)?;
        let link = io.link()?;
        let pulse =
            || Pulse::new(config.interface.clone(), place.seats().clone(), started, config.incarnation);
        let mut server = Server {
            io,
            link,
            guard: None,
            running: Vec::new(),
            sockets: Sockets::default(),
            counters: Counters::default(),
            started,
            load: 0,
            open_connections: 0,
            waiting: 0..0,
            full: None,
            late: false,
            pulse: place.leads().then(pulse),
            frame: vec![0; MAX_FRAME].into(),
            looked: 0,
            opener,
            reopened: 0,
            held_back: false,
            held_services: Vec::new(),
            turned: false,
            heard: false,
            delta: true,
            paths: Paths::default(),
            place,
            filters,
            tunnels: Tunnels::default(),
            content: None,
            exchanges: None,
            adopter: Adopter::default(),
            kernel: kernel::Kernel::default(),
            memory: plain::Memory { ring: true, large: false },
        };
        server.replace(config.services.clone())?;
        Ok(server)
    }

    /// Replaces everything that is served. On an error what was served before still is, and the same can be tried again:
    /// an interface may be gone for a moment.
    pub fn replace(&mut self, services: Vec<Service>) -> Result<(), ServerError> {
        check_all(&services)?;
        let addresses: Vec<IpAddr> = services.iter().flat_map(|s| s.addresses.iter().copied()).collect();
        let (rules, shares) = (segments(&services), shares(&services));
        let tunnels = tunnel::rules(&services);
        let filters = Filters::new(&rules, &addresses, &tunnels)?;
        self.tunnels.replace(&services, self.io.interface(), self.place.leads())?;
        if shares != crate::rules::shares(self.services()) || tunnels != tunnel::rules(self.services()) {
            let (netns, name) = (self.io.interface().netns(), self.io.interface().name());
            match &self.guard {
                _ if addresses.is_empty() || !self.place.leads() => self.guard = None,
                Some(guard) => guard.share(&[name], &shares)?,
                None => self.guard = Some(KernelGuard::install_sharing(netns, &[name], &shares)?),
            }
            self.io.set_filter(Some(&filters.outer))?;
            self.filters = filters;
        }
        if let Some(pulse) = &mut self.pulse {
            pulse.replace(&services).map_err(ServerError::Thread)?;
        }
        let payload = self.payload();
        let count = services.len();
        let mut running = Vec::with_capacity(count);
        for service in services {
            let policy = Policy {
                payload,
                horizon: service.horizon.as_micros() as u64,
                delta: self.delta,
                ..Policy::default()
            };
            let same = |r: &&mut Running| r.service.keys.service == service.keys.service;
            let mut before = self.running.iter_mut().find(same);
            let remembered = before.as_mut().and_then(|r| r.plain.take());
            let replay = before.and_then(|r| {
                let replay = r.transport.replay.take();
                replay.filter(|_| r.service.horizon == service.horizon)
            });
            let transport = transport(policy, replay, count);
            let mut served = Running::new(service, transport);
            served.plain = plain::door(&served.service, self.content.as_ref(), self.link.mtu, self.memory);
            if let (Some(door), Some(before)) = (&mut served.plain, remembered) {
                door.inherit(before);
            }
            running.push(served);
        }
        self.running = running;
        self.sockets = Sockets::of(&self.running);
        self.prepare_to_adopt();
        self.place.has_news();
        self.tell();
        Ok(())
    }

    /// What heartbeats say from now on.
    fn tell(&self) {
        let Some(pulse) = &self.pulse else { return };
        let is_ready = self.link.up && self.turned && !self.held_back && !self.back_end_is_dead();
        let lacking = || self.running.iter().enumerate().filter(|(_, running)| !self.is_complete(running));
        let unready = if is_ready { lacking().map(|(index, _)| index).collect() } else { ServiceSet::ALL };
        pulse.tell(self.link.mac, unready);
    }

    /// TCP payload that a packet on this interface takes.
    fn payload(&self) -> u16 {
        payload(self.link.mtu)
    }

    /// What the ToRs said of the pools in their last answers to heartbeats; the leader of several workers knows it.
    #[must_use]
    pub fn pools(&self) -> Vec<PoolView> {
        self.pulse.as_ref().map(Pulse::views).unwrap_or_default()
    }

    /// Asks the interface now and then what it is: its MTU or Ethernet address may change, and it may be
    /// down.
    fn look(&mut self) {
        let now = self.now();
        if now - self.looked < LOOK {
            return;
        }
        self.looked = now;
        match self.io.link() {
            Ok(link) => self.take_link(link),
            // Not every socket says by itself that its interface was deleted, and none says that there is a new one.
            Err(e) => self.trouble(&e),
        }
    }

    fn take_link(&mut self, link: LinkInfo) {
        self.link = link;
        let payload = self.payload();
        for running in &mut self.running {
            running.transport.policy.payload = payload;
            if let Some(plain) = &mut running.plain {
                plain.set_mtu(plain::mtu(link.mtu));
            }
        }
    }

    /// Serves plain clients these objects, where a service answers them without state. All replicas are to have the same.
    pub fn set_objects(&mut self, table: Arc<Table>) {
        self.exchanges = None;
        self.set_content(Content::Objects(table));
    }

    /// Has plain clients answered by a back end, where a service answers them without state. All replicas are to have the same
    /// program behind them.
    ///
    /// # Errors
    /// There are no descriptors or threads for it.
    pub fn set_back_end(&mut self, back_end: BackEnd) -> std::io::Result<()> {
        let mut exchanges = Exchanges::new(back_end)?;
        // For all workers, as heartbeats are.
        if self.place.leads() {
            exchanges.probe()?;
        }
        self.exchanges = Some(exchanges);
        self.set_content(Content::BackEnd(back_end));
        Ok(())
    }

    fn set_content(&mut self, content: Content) {
        for running in &mut self.running {
            running.plain = plain::door(&running.service, Some(&content), self.link.mtu, self.memory);
        }
        self.content = Some(content);
    }

    /// Version of what plain clients are answered from without state, never 0; none before there is anything. Replicas that have the
    /// same give the same octets.
    #[must_use]
    pub fn content(&self) -> Option<u32> {
        self.content.as_ref().map(Content::version)
    }

    /// The first service whose plain clients are not answered here, because what is here is not the content in force.
    #[must_use]
    pub fn without_content(&self) -> Option<&Service> {
        let other = |service: &&Service| {
            let wanted = service.content.filter(|_| service.plain == Plain::Stateless);
            wanted.is_some_and(|wanted| Some(wanted.version) != self.content())
        };
        self.services().find(other)
    }

    /// Has the kernel's TCP take over what plain clients want and is not answered without state. All workers of a replica are
    /// given clones of one doorway. Where the system does not let it, a warning says so.
    pub fn set_doorway(&mut self, doorway: Doorway) {
        self.adopter.set_doorway(doorway);
        self.prepare_to_adopt();
    }

    fn prepare_to_adopt(&mut self) {
        let changes = self.services().any(Service::changes_hands);
        self.kernel.prepare(changes, self.io.interface().netns());
        if self.services().any(Service::answers_plain) {
            self.adopter.prepare(self.io.interface().netns());
        }
    }

    /// Connections that the kernel took over and that are held, of all workers.
    #[must_use]
    pub fn adopted(&self) -> usize {
        self.adopter.held()
    }

    /// Whether the answers to plain clients that are under way are remembered, as they are unless this is called:
    /// measurements want to know what that is worth.
    pub fn set_ring(&mut self, ring: bool) {
        self.memory.ring = ring;
        self.set_memory();
    }

    /// Whether large objects are answered without state too, which they are not unless this is called.
    pub fn set_large(&mut self, large: bool) {
        self.memory.large = large;
        self.set_memory();
    }

    fn set_memory(&mut self) {
        for running in &mut self.running {
            if let Some(plain) = &mut running.plain {
                plain.set_memory(self.memory);
            }
        }
    }

    /// Ethernet address of the interface.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        self.link.mac
    }

    /// How often the interface was taken up again after it was deleted: what others set up on it may be gone.
    #[must_use]
    pub fn reopened(&self) -> u64 {
        self.reopened
    }

    /// Counters since the start.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What moves the packets.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.io.backend()
    }

    /// Counters of the interface.
    pub fn io_stats(&mut self) -> Stats {
        self.io.stats()
    }

    /// What is served.
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.running.iter().map(|r| &r.service)
    }

    /// True while there is something to serve, with usable keys, and the interface is up.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !self.running.is_empty()
            && self.running.iter().all(|running| self.is_complete(running))
            && self.place.seats().behind().is_empty()
            && self.link.up
            && !self.held_back
            && !self.back_end_is_dead()
    }

    /// The back end, if there is one, does not answer, or has not answered yet. Not ready until it does.
    #[must_use]
    pub fn back_end_is_dead(&self) -> bool {
        self.exchanges.as_ref().is_some_and(Exchanges::is_dead)
    }

    /// While held back, heartbeats say that this replica is not ready, so that it gets no share of the
    /// requests; those that come are answered.
    pub fn hold_back(&mut self, held_back: bool) {
        self.held_back = held_back;
        self.tell();
    }

    /// The same for some services alone, by their numbers: those of which the application cannot serve a part, such as plain clients.
    /// A pool is ready while one of its services is. Services that are served later may be among them.
    pub fn hold_back_services(&mut self, services: Vec<u16>) {
        if self.held_services != services {
            self.held_services = services;
            self.tell();
        }
    }

    fn is_complete(&self, running: &Running) -> bool {
        running.is_complete(self.adopter.held() > 0)
            && !self.held_services.contains(&running.service.keys.service)
    }

    /// To be called before this is dropped while others of the process still serve: heartbeats say that this replica is not ready,
    /// so that its ToRs send nothing more here, and what is under way is answered. Takes 50 ms, up to a second where heartbeats
    /// are slow to leave.
    pub fn leave(&mut self, application: &mut dyn Application) {
        self.hold_back(true);
        let said = |server: &Server| server.pulse.as_ref().map_or(0, Pulse::sent);
        // One may have been made before, of each place.
        let places = self.services().filter(|service| service.member.is_some()).count() as u64;
        let (began, before) = (Instant::now(), said(self));
        while began.elapsed() < LEAVING || said(self) - before < 2 * places && began.elapsed() < PATIENCE {
            self.turn(application, TURN);
        }
    }

    /// Whether continuations travel as differences to what the client predicts (section 5.3), as they do unless this is
    /// called: measurements want to know what that is worth.
    pub fn set_delta(&mut self, delta: bool) {
        self.delta = delta;
        for running in &mut self.running {
            running.transport.policy.delta = delta;
        }
    }

    /// How many connections the kernel's TCP has: they are load that heartbeats tell. For one of several workers.
    pub fn set_open_connections(&mut self, open: usize) {
        self.open_connections = open;
    }

    /// Requests in the last batch, of all workers, and open connections.
    #[must_use]
    pub fn load(&self) -> usize {
        self.place.seats().load()
    }

    /// What to wait for before the next [`turn`](Server::turn): a descriptor, and the events of poll(2). Both may be others
    /// after each turn and each response; a back end's answers are found in a turn, and not told of here. A server behind a ToR wants turns within its liveness bound besides: one that takes
    /// none is not ready.
    #[must_use]
    pub fn awaited(&self) -> (BorrowedFd<'_>, i16) {
        let (fd, events) = awaited(self.io.as_ref(), !self.waiting.is_empty());
        (fd, events.bits() as i16)
    }

    /// Microseconds of this server's own clock.
    fn now(&self) -> u64 {
        elapsed(self.started)
    }
}

/// Place in the list of services of each address and port, in order.
#[derive(Default)]
pub(crate) struct Sockets(Vec<(SocketAddr, usize)>);

impl Sockets {
    fn of(running: &[Running]) -> Sockets {
        let places = running.iter().enumerate();
        let mut sockets: Vec<_> =
            places.flat_map(|(index, r)| r.service.sockets().map(move |socket| (socket, index))).collect();
        sockets.sort_unstable();
        Sockets(sockets)
    }

    /// The place of the service at this address and port.
    pub(crate) fn place(&self, address: SocketAddr) -> Option<usize> {
        let at = self.0.binary_search_by_key(&address, |(socket, _)| *socket).ok()?;
        Some(self.0[at].1)
    }
}

/// Longest frame taken, octets: a jumbo frame of 9000 with its tag.
const MAX_FRAME: usize = 9216;

fn elapsed(since: Instant) -> u64 {
    since.elapsed().as_micros() as u64
}

/// TCP payload of a packet of `mtu` octets.
fn payload(mtu: u32) -> u16 {
    mtu.saturating_sub(HEADERS).clamp(300, 8952) as u16
}

/// The clock of replicas that no ToR stamps for: real time, which NTP keeps together.
pub(crate) fn common_clock() -> Time {
    Time(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64)
}

/// The transport of a service. Also behind a ToR that is believed it has a memory against replay: what the ToR could not judge, this
/// replica does.
fn transport(policy: Policy, replay: Option<ReplayMemory>, services: usize) -> Transport {
    let share = |all: usize, (least, most): (usize, usize)| {
        (all / services.max(1).next_power_of_two()).clamp(least, most)
    };
    // It is whole a horizon from now, not from the first request.
    let fresh = || {
        ReplayMemory::new(share(REPLAY_USES, REPLAY_USES_OF_ONE), policy.horizon, secret())
            .since(common_clock())
    };
    Transport {
        policy,
        replay: Some(replay.unwrap_or_else(fresh)),
        cache: Some(MinisocketCache::new(share(MINISOCKETS, MINISOCKETS_OF_ONE))),
    }
}

/// What keeps others from choosing numbers that collide in the replay defence.
fn secret() -> u64 {
    // Without the kernel's randomness it is guessable, and the defence lets some repeats pass.
    getrandom::u64().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_trusts_its_tor_has_a_memory_of_its_own() {
        let transport = transport(Policy { trust_tor: true, ..Policy::default() }, None, 1);
        assert!(transport.replay.is_some() && transport.cache.is_some());
    }
}
