//! The event loop: frames in, the transport's step, the application's answers, frames out.
//!
//! One thread and one interface; several servers can share an interface's flows
//! ([`Server::open_workers`]). In the steady state nothing is allocated, and nothing is kept from
//! one packet to the next except soft state that may be dropped at any time.

mod application;
mod content;
mod door;
mod downloads;
mod event_loop;
mod kernel;
mod origin;
mod plain;
mod return_path;
mod sockets;
mod transport;

pub use application::Application;
pub(crate) use door::Door;
pub(crate) use origin::Origin;
pub(crate) use transport::common_clock;

use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rivulet_pktio::guard::KernelGuard;
use rivulet_pktio::{AfPacket, Backend, IoChoice, LinkInfo, OpenError, PacketIo, Stats};
use rivulet_transport::server::{Congestion, Policy};

use crate::adopt::Adopter;
use crate::back_end::Exchanges;
use crate::config::{Config, ServerError};
use crate::counters::Counters;
use crate::interface::{Opener, awaited};
use crate::paths::Paths;
use crate::pulse::{PoolView, Pulse};
use crate::rules::{Filters, segments, shares};
use crate::running::Running;
use crate::service::{Service, check_all};
use crate::service_set::ServiceSet;
use crate::tunnel::{self, Tunnels};
use crate::workers::Place;
use door::{Content, Memory};
use sockets::Sockets;
use transport::transport;

/// How long a departing replica serves packets already in flight, and how long it waits for its
/// heartbeats to be sent.
const LEAVING: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(1);
/// Maximum wait in one iteration of a departing replica.
const TURN: Duration = Duration::from_millis(2);
/// Interval between reads of the interface's state, microseconds.
const LINK_CHECK_US: u64 = 200_000;
/// Maximum length of our IP and TCP headers in bytes (IPv6, TCP with 28 bytes), subtracted from the
/// MTU.
const HEADERS: u32 = 68;

/// A server on one interface, or one of several workers.
pub struct Server {
    io: Box<dyn PacketIo>,
    link: LinkInfo,
    guard: Option<KernelGuard>,
    pub(crate) running: Vec<Running>,
    pub(crate) sockets: Sockets,
    pub(crate) counters: Counters,
    started: Instant,
    /// Requests in the last batch: the load that heartbeats report.
    load: usize,
    /// Connections of the kernel's TCP; heartbeats add them to the load.
    open_connections: usize,
    /// Frames of the last batch not handled yet.
    waiting: Range<usize>,
    /// When room for a response was last missing, microseconds. Since then frames are stamped on
    /// arrival.
    full: Option<u64>,
    /// The request being handled waited long.
    late: bool,
    /// The heartbeat thread; only the leader has it.
    pulse: Option<Pulse>,
    /// Copy of the frame being handled.
    frame: Box<[u8]>,
    /// When the interface's state was last read, microseconds.
    link_checked: u64,
    opener: Opener,
    reopened: u64,
    /// The application is not ready; requests are answered nevertheless.
    held_back: bool,
    /// Indices of the services for which it is not ready.
    held_services: Vec<u16>,
    /// A first iteration is done; before that no request is answered.
    turned: bool,
    /// Segments of large answers arrived, and may allow more to be sent.
    acknowledged: bool,
    /// Continuations are sent as differences to the client's prediction.
    delta: bool,
    congestion: Congestion,
    paths: Paths,
    place: Place,
    filters: Filters,
    tunnels: Tunnels,
    /// Content that plain clients are served without state.
    content: Option<Content>,
    /// Requests in progress at the back end.
    exchanges: Option<Exchanges>,
    /// Connections of plain clients that the kernel's TCP has taken over.
    adopter: Adopter,
    kernel: kernel::Kernel,
    /// Which answers to plain clients are remembered.
    memory: Memory,
}

impl Server {
    /// Opens the interface and starts the services.
    pub fn open(config: &Config) -> Result<Server, ServerError> {
        Self::open_place(config, Place::alone(), None, Instant::now())
    }

    /// Opens `count` servers (at least 1), each for a separate thread, which together are one
    /// replica. The kernel assigns each flow to one of them by a hash of its addresses and ports.
    /// The first one is the leader: it sends the heartbeats and keeps the kernel from answering, so
    /// it must be dropped last. Every [`Server::replace`] must be called on each of them.
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
            link_checked: 0,
            opener,
            reopened: 0,
            held_back: false,
            held_services: Vec::new(),
            turned: false,
            acknowledged: false,
            delta: true,
            congestion: Congestion::Reno,
            paths: Paths::default(),
            place,
            filters,
            tunnels: Tunnels::default(),
            content: None,
            exchanges: None,
            adopter: Adopter::default(),
            kernel: kernel::Kernel::default(),
            memory: Memory { ring: true, large: false },
        };
        server.replace(config.services.clone())?;
        Ok(server)
    }

    /// Replaces all services. On an error the old services remain, and the call can be retried: an
    /// interface may be missing for a moment.
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
                congestion: self.congestion,
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
            served.plain = door::door(&served.service, self.content.as_ref(), self.link.mtu, self.memory);
            if let (Some(door), Some(before)) = (&mut served.plain, remembered) {
                door.inherit(before);
            }
            running.push(served);
        }
        self.running = running;
        self.sockets = Sockets::of(&self.running);
        self.prepare_to_adopt();
        self.place.has_news();
        self.report_state();
        Ok(())
    }

    /// Updates what heartbeats report.
    fn report_state(&self) {
        let Some(pulse) = &self.pulse else { return };
        let is_ready = self.link.up && self.turned && !self.held_back && !self.back_end_is_dead();
        let lacking = || self.running.iter().enumerate().filter(|(_, running)| !self.is_complete(running));
        let unready = if is_ready { lacking().map(|(index, _)| index).collect() } else { ServiceSet::ALL };
        pulse.update(self.link.mac, unready);
    }

    /// Maximum TCP payload of a packet on this interface.
    fn payload(&self) -> u16 {
        payload(self.link.mtu)
    }

    /// The last answers of the ToRs to heartbeats, by pool; only the leader has them.
    #[must_use]
    pub fn pools(&self) -> Vec<PoolView> {
        self.pulse.as_ref().map(Pulse::views).unwrap_or_default()
    }

    /// Reads the interface's state at intervals: its MTU and Ethernet address may change, and it
    /// may be down.
    fn check_link(&mut self) {
        let now = self.now();
        if now - self.link_checked < LINK_CHECK_US {
            return;
        }
        self.link_checked = now;
        match self.io.link() {
            Ok(link) => self.take_link(link),
            // Not every socket reports the deletion of its interface, and none reports that a new
            // one appeared.
            Err(e) => self.handle_io_error(&e),
        }
    }

    fn take_link(&mut self, link: LinkInfo) {
        self.link = link;
        let payload = self.payload();
        for running in &mut self.running {
            running.transport.policy.payload = payload;
            if let Some(plain) = &mut running.plain {
                plain.set_mtu(door::mtu(link.mtu));
            }
        }
    }

    /// Ethernet address of the interface.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        self.link.mac
    }

    /// How often the interface was opened again after a deletion: settings that others made on it
    /// may be lost.
    #[must_use]
    pub fn reopened(&self) -> u64 {
        self.reopened
    }

    /// Counters since the start.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The packet I/O.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.io.backend()
    }

    /// Counters of the interface.
    pub fn io_stats(&mut self) -> Stats {
        self.io.stats()
    }

    /// The services.
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.running.iter().map(|r| &r.service)
    }

    /// Whether there is a service, with usable keys, and the interface is up.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !self.running.is_empty()
            && self.running.iter().all(|running| self.is_complete(running))
            && self.place.seats().behind().is_empty()
            && self.link.up
            && !self.held_back
            && !self.back_end_is_dead()
    }

    /// Whether the back end, if there is one, is not answering. The replica is not ready until it
    /// does.
    #[must_use]
    pub fn back_end_is_dead(&self) -> bool {
        self.exchanges.as_ref().is_some_and(Exchanges::is_dead)
    }

    /// Holds the replica back or releases it. While it is held back, heartbeats report that it is
    /// not ready, so it gets no requests; those that arrive are answered.
    pub fn hold_back(&mut self, held_back: bool) {
        self.held_back = held_back;
        self.report_state();
    }

    /// The same for individual services, by number, of which the application cannot serve a part,
    /// such as plain clients. A pool is ready while one of its services is. Services that are added
    /// later may be included.
    pub fn hold_back_services(&mut self, services: Vec<u16>) {
        if self.held_services != services {
            self.held_services = services;
            self.report_state();
        }
    }

    fn is_complete(&self, running: &Running) -> bool {
        running.is_complete(self.adopter.held() > 0)
            && !self.held_services.contains(&running.service.keys.service)
    }

    /// Must be called before this is dropped while other parts of the process still serve.
    /// Heartbeats report that this replica is not ready, so its ToRs send nothing more, and
    /// requests in flight are answered. Takes 50 ms, up to a second if heartbeats leave slowly.
    pub fn leave(&mut self, application: &mut dyn Application) {
        self.hold_back(true);
        let said = |server: &Server| server.pulse.as_ref().map_or(0, Pulse::sent);
        // One heartbeat of each member may have been made before.
        let places = self.services().filter(|service| service.member.is_some()).count() as u64;
        let (began, before) = (Instant::now(), said(self));
        while began.elapsed() < LEAVING || said(self) - before < 2 * places && began.elapsed() < PATIENCE {
            self.turn(application, TURN);
        }
    }

    /// Sets whether continuations are sent as differences to the client's prediction (section 5.3;
    /// default: yes). For measurements of their benefit.
    pub fn set_delta(&mut self, delta: bool) {
        self.delta = delta;
        for running in &mut self.running {
            running.transport.policy.delta = delta;
        }
    }

    /// Sets the congestion control of the protocol's connections (default: Reno).
    pub fn set_congestion(&mut self, congestion: Congestion) {
        self.congestion = congestion;
        for running in &mut self.running {
            running.transport.policy.congestion = congestion;
        }
    }

    /// Sets the number of connections of the kernel's TCP, which heartbeats add to the load. To be
    /// called on one of several workers.
    pub fn set_open_connections(&mut self, open: usize) {
        self.open_connections = open;
    }

    /// Requests in the last batch of all workers, plus open connections.
    #[must_use]
    pub fn load(&self) -> usize {
        self.place.seats().load()
    }

    /// What to wait for before the next [`turn`](Server::turn): a descriptor, and the events of
    /// poll(2). Both may change with each turn and each response. A back end's answers are found in
    /// a turn and not reported here. Behind a ToR, a server also needs a turn within its liveness
    /// bound, or it is not ready.
    #[must_use]
    pub fn awaited(&self) -> (BorrowedFd<'_>, i16) {
        let (fd, events) = awaited(self.io.as_ref(), !self.waiting.is_empty());
        (fd, events.bits() as i16)
    }

    /// Microseconds of this server's clock.
    fn now(&self) -> u64 {
        elapsed(self.started)
    }
}

/// Maximum frame length in bytes: a jumbo frame of 9000 with its tag.
const MAX_FRAME: usize = 9216;

fn elapsed(since: Instant) -> u64 {
    since.elapsed().as_micros() as u64
}

/// TCP payload of a packet of `mtu` bytes.
fn payload(mtu: u32) -> u16 {
    mtu.saturating_sub(HEADERS).clamp(300, 8952) as u16
}
