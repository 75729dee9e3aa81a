//! The event loop: frames in, the transport's step, the application's answers, frames out.
//!
//! One thread, one interface; several of them share an interface's flows ([`Server::open_workers`]). In steady state nothing is allocated and nothing is kept from one packet to
//! the next except soft state that may be dropped at any time.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rivulet_packet::{EthHeader, Segment};
use rivulet_pktio::guard::KernelGuard;
use rivulet_pktio::icmp::TooBig;
use rivulet_pktio::{
    AfPacket, Backend, Checksum, IoChoice, IoError, LinkInfo, OpenError, PacketIo, Stats, TxFrame,
};
use rivulet_transport::Time;
use rivulet_transport::server::{Policy, Refusal, ReplayMemory, Server as Transport, Verdict, step};

use crate::config::{Config, ServerError};
use crate::counters::Counters;
use crate::heartbeat::{Beat, heartbeat_of};
use crate::interface::{Opener, wait};
use crate::minisocket::{EventKind, Minisocket};
use crate::paths::Paths;
use crate::rules::{Filters, segments};
use crate::running::Running;
use crate::service::{Service, check_all};
use crate::tunnel::{self, Content, Tunnels};
use crate::workers::{Place, bit};

/// Uses that the replay defence remembers a horizon, 16 octets each: 65,000 requests a second at 4 s. Beyond it lets
/// repeats pass unjudged.
const REPLAY_USES: usize = 1 << 18;
/// Batches taken before timers are looked at again.
const MAX_BATCHES: usize = 8;
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
    Detached,
}

/// A server on one interface, or one worker of several.
pub struct Server {
    io: Box<dyn PacketIo>,
    link: LinkInfo,
    guard: Option<KernelGuard>,
    pub(crate) running: Vec<Running>,
    incarnation: u16,
    pub(crate) counters: Counters,
    started: Instant,
    /// Requests in the last batch: the load that heartbeats tell.
    load: usize,
    /// Holds the frame being handled.
    frame: Box<[u8]>,
    /// When the interface was last asked what it is, microseconds.
    looked: u64,
    opener: Opener,
    /// The application is not ready; requests are answered all the same.
    held_back: bool,
    /// Continuations travel as differences to what the client predicts.
    delta: bool,
    paths: Paths,
    place: Place,
    filters: Filters,
    tunnels: Tunnels,
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
        let opener = Opener::new(if share.is_some() { IoChoice::AfPacket } else { config.io });
        let io = opener.open(&config.interface, &filters.outer, share)?;
        let link = io.link()?;
        let mut server = Server {
            io,
            link,
            guard: None,
            running: Vec::new(),
            incarnation: config.incarnation,
            counters: Counters::default(),
            started,
            load: 0,
            frame: vec![0; MAX_FRAME].into(),
            looked: 0,
            opener,
            held_back: false,
            delta: true,
            paths: Paths::default(),
            place,
            filters,
            tunnels: Tunnels::default(),
        };
        server.replace(config.services.clone())?;
        Ok(server)
    }

    /// Replaces everything that is served. On an error all is as before.
    pub fn replace(&mut self, services: Vec<Service>) -> Result<(), ServerError> {
        check_all(&services)?;
        let addresses: Vec<IpAddr> = services.iter().flat_map(|s| s.addresses.iter().copied()).collect();
        let rules = segments(&services);
        let tunnels = tunnel::rules(&services);
        let filters = Filters::new(&rules, &addresses, &tunnels)?;
        self.tunnels.replace(&services, self.io.interface(), self.place.leads())?;
        if rules != segments(self.services()) || tunnels != tunnel::rules(self.services()) {
            let (netns, name) = (self.io.interface().netns(), self.io.interface().name());
            match &self.guard {
                _ if addresses.is_empty() || !self.place.leads() => self.guard = None,
                Some(guard) => guard.update(&[name], &rules)?,
                None => self.guard = Some(KernelGuard::install(netns, &[name], &rules)?),
            }
            self.io.set_filter(Some(&filters.outer))?;
            self.filters = filters;
        }
        let now = self.now();
        let payload = self.payload();
        let mut running = Vec::with_capacity(services.len());
        for service in services {
            let policy = Policy {
                payload,
                horizon: service.horizon.as_micros() as u64,
                trust_tor: service.trust_tor,
                delta: self.delta,
                ..Policy::default()
            };
            let same = |r: &&mut Running| r.service.keys.service == service.keys.service;
            let before = self.running.iter_mut().find(same);
            // Behind a ToR that is believed, the ToR refuses what was used before; else this replica does.
            let (beat, replay) = match before {
                Some(r) => {
                    let beat = r.beat.take().filter(|_| r.service.member == service.member);
                    let replay = r.transport.replay.take();
                    (beat, replay.filter(|_| r.service.horizon == service.horizon))
                }
                None => (None, None),
            };
            let beat = beat
                .or_else(|| service.member.map(|member| Beat::new(member, self.incarnation, now)))
                .filter(|_| self.place.leads());
            let mut transport = Transport::new(policy);
            if !service.trust_tor {
                let fresh = || ReplayMemory::new(REPLAY_USES, policy.horizon, secret());
                transport.replay = Some(replay.unwrap_or_else(fresh));
            }
            running.push(Running { keys: service.keys.ring(), service, transport, beat, behind: false });
        }
        self.running = running;
        self.place.has_news();
        Ok(())
    }

    /// TCP payload that a packet on this interface takes.
    fn payload(&self) -> u16 {
        payload(self.link.mtu)
    }

    /// Asks the interface now and then what it is: its MTU or Ethernet address may change, and it may be
    /// down.
    fn look(&mut self) {
        let now = self.now();
        if now - self.looked < LOOK {
            return;
        }
        self.looked = now;
        let Ok(link) = self.io.link() else { return };
        self.link = link;
        let payload = self.payload();
        for running in &mut self.running {
            running.transport.policy.payload = payload;
        }
    }

    /// Ethernet address of the interface.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        self.link.mac
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
            && self.running.iter().all(Running::has_keys)
            && self.place.behind() == 0
            && self.link.up
            && !self.held_back
    }

    /// While held back, heartbeats say that this replica is not ready, so that it gets no share of the
    /// requests; those that come are answered.
    pub fn hold_back(&mut self, held_back: bool) {
        self.held_back = held_back;
    }

    /// Whether continuations travel as differences to what the client predicts (section 5.3), as they do unless this is
    /// called: measurements want to know what that is worth.
    pub fn set_delta(&mut self, delta: bool) {
        self.delta = delta;
        for running in &mut self.running {
            running.transport.policy.delta = delta;
        }
    }

    /// Requests in the last batch, of all workers.
    #[must_use]
    pub fn load(&self) -> usize {
        self.place.load()
    }

    /// Waits until there is something to do, `longest` at most, and does it: heartbeats, then requests,
    /// each handed to `application`.
    pub fn turn(&mut self, application: &mut dyn Application, longest: Duration) {
        self.wait(longest);
        if self.io.pending() > 0 {
            self.flush();
        }
        self.look();
        while let Some((client, mtu)) = self.place.told() {
            self.paths.learn(client, mtu, self.now());
        }
        self.beat();
        self.load = 0;
        for _ in 0..MAX_BATCHES {
            self.place.set_busy(Some(self.now()));
            let count = match self.io.recv() {
                Ok(count) => count,
                Err(e) => {
                    self.trouble(&e);
                    0
                }
            };
            if count == 0 {
                break;
            }
            self.load += count;
            for i in 0..count {
                self.frame(i, application);
            }
            self.flush();
            self.beat();
        }
        self.place.set_load(self.load);
        self.place.set_busy(None);
    }

    /// Microseconds of this server's own clock.
    fn now(&self) -> u64 {
        elapsed(self.started)
    }

    fn wait(&self, longest: Duration) {
        let now = self.now();
        let due =
            self.running.iter().filter_map(|r| r.beat.as_ref()).map(|b| b.due().saturating_sub(now)).min();
        let time = due.map_or(longest, |due| longest.min(Duration::from_micros(due)));
        wait(self.io.as_ref(), time);
    }

    fn beat(&mut self) {
        if !self.place.leads() {
            return;
        }
        let now = self.now();
        self.place.set_load(self.load);
        for (index, running) in self.running.iter_mut().enumerate() {
            let ready = running.has_keys() && !self.held_back && self.place.behind() & bit(index) == 0;
            let Some(beat) = &mut running.beat else { continue };
            // A request is answered within the turn that takes it, or the loop itself has stopped and this
            // is not reached: then the replica is silent, which the ToR takes for the same. Another worker
            // whose loop has stopped is seen by the time that it has been at it.
            let oldest = self.place.oldest(now);
            let Some(frame) = beat.frame(now, self.link.mac, ready, self.place.load(), oldest) else {
                continue;
            };
            if self.io.send(&[TxFrame::new(&frame)]).is_ok_and(|sent| sent == 1) {
                self.counters.heartbeats += 1;
            }
            if !running.service.tunnels.is_empty() {
                let netns = self.io.interface().netns();
                let beat = heartbeat_of(&frame);
                self.counters.heartbeats += self.tunnels.beat(&running.service.tunnels, beat, netns, now);
            }
        }
    }

    pub(crate) fn flush(&mut self) {
        if let Err(e) = self.io.flush() {
            self.trouble(&e);
        }
    }

    fn trouble(&mut self, error: &IoError) {
        match error {
            IoError::Down(_) => self.link.up = false,
            IoError::Gone(_) => {
                let now = self.now();
                self.opener.again(&mut self.io, &self.filters.outer, now);
            }
            IoError::Os { .. } => tracing::warn!(error = %error, "packet I/O"),
        }
    }

    /// One received frame, from its Ethernet header to the responses.
    fn frame(&mut self, index: usize, application: &mut dyn Application) {
        let counters = &mut self.counters;
        counters.frames += 1;
        // Responses are written while the request is read, and both lie in memory of the same object: the
        // request, the shorter of the two, is copied.
        let received = self.io.frame(index);
        let length = received.data.len();
        let Some(copy) = self.frame.get_mut(..length) else {
            counters.damaged += 1;
            return;
        };
        copy.copy_from_slice(received.data);
        let verify = received.checksum == Checksum::Unknown;
        let mut frame = std::mem::take(&mut self.frame);
        let content = match self.tunnels.is_empty() {
            true => Content::Frame,
            false => {
                let (interface, now) = (self.io.interface(), elapsed(self.started));
                self.tunnels.open(&mut frame[..length], &self.filters.inner, interface, now)
            }
        };
        match content {
            Content::Frame => {
                self.handle(&frame[..length], verify, common_clock(), Origin::Wire, application)
            }
            // Nobody verified what is inside.
            Content::Tunnelled(place) => {
                self.handle(&frame[place], true, common_clock(), Origin::Tunnel, application);
            }
            Content::Elsewhere => {}
        }
        self.frame = frame;
    }

    /// Judges a frame and has its event handled. What is new is remembered against replay; an event that
    /// was detached is judged a second time, by the step alone and at the time when it came.
    pub(crate) fn handle(
        &mut self,
        frame: &[u8],
        verify: bool,
        now: Time,
        origin: Origin,
        application: &mut dyn Application,
    ) {
        let counters = &mut self.counters;
        let (ethernet, segment) = match Segment::parse_frame(frame) {
            Ok(parsed) => parsed,
            Err(e) => {
                match TooBig::parse(frame) {
                    Some(error) => {
                        counters.too_big += 1;
                        self.paths.learn(error.destination.ip(), error.mtu, elapsed(self.started));
                        self.place.tell(error.destination.ip(), error.mtu);
                    }
                    None => counters.refuse(&Refusal::Wire(e)),
                }
                return;
            }
        };
        if verify && segment.verify_checksum().is_err() || segment.verify_crc().is_err() {
            counters.damaged += 1;
            return;
        }
        let Some(index) = self.running.iter().position(|r| r.serves(segment.dst)) else {
            counters.not_ours += 1;
            return;
        };
        let running = &mut self.running[index];
        let fresh = origin != Origin::Detached;
        // Between another rack's ToR and here the mark could be anybody's.
        running.transport.policy.trust_checked = origin != Origin::Tunnel;
        let verdict = if fresh {
            running.transport.accept(&segment, &running.keys, now)
        } else {
            step(&segment, &running.keys, now, &running.transport.policy)
        };
        let mut plan = match verdict {
            Ok(Verdict::Respond(plan)) => plan,
            Ok(Verdict::Terminate) => {
                counters.requests += 1;
                counters.terminated += 1;
                return;
            }
            Err(refusal) => {
                tracing::debug!(client = %segment.src, refusal = %refusal, "refused");
                counters.refuse(&refusal);
                if running.learn(&refusal, &segment) {
                    self.place.add_behind(bit(index));
                }
                return;
            }
        };
        counters.requests += u64::from(fresh);
        // The connection began on a path that took more, or this interface did.
        let mtu = self.paths.mtu(segment.src.ip(), elapsed(self.started)).map_or(self.link.mtu, u32::from);
        plan.limit(payload(mtu.min(self.link.mtu)).into());
        let kind = match (plan.is_close(), segment.syn_options) {
            (true, _) => EventKind::Close,
            (false, Some(_)) => EventKind::Open,
            (false, None) => EventKind::Request,
        };
        let ethernet = EthHeader {
            dst: running.service.member.map_or(ethernet.src, |member| member.tor_mac),
            src: self.link.mac,
            vlan: ethernet.vlan,
        };
        let mut msk = Minisocket {
            plan: &plan,
            transport: &mut running.transport,
            keys: &running.keys,
            io: self.io.as_mut(),
            room: self.link.mtu as usize,
            ethernet,
            kind,
            counters,
            next: 0,
            frame,
            now,
            detached: false,
        };
        if (kind == EventKind::Close || plan.is_for_application())
            && let Err(refusal) = application.event(&mut msk)
        {
            tracing::debug!(client = %segment.src, refusal = %refusal, "refused by the application");
            msk.counters.refuse(&refusal);
            return;
        }
        if !msk.detached {
            msk.finish();
        }
    }
}

impl AsFd for Server {
    /// Readable when there is something to do; heartbeats want [`turn`](Server::turn) called in time besides.
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.io.as_fd()
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

/// What keeps others from choosing numbers that collide in the replay defence.
fn secret() -> u64 {
    let mut octets = [0u8; 8];
    // SAFETY: pointer and length are those of the array; so few octets are never cut short.
    unsafe { libc::getrandom(octets.as_mut_ptr().cast(), octets.len(), 0) };
    u64::from_ne_bytes(octets)
}
