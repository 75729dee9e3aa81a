//! The agent's part in TRODS (`docs/trods.md`): the protected services and their leases, what
//! follows from the ToR's answers to heartbeats, and the searches for connections.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;
use rivulet_agent::TrodsCounts;
use rivulet_bpf::trods::{Lease, Pin};
use rivulet_pktio::{Interface, in_netns, repair, transparent};
use rivulet_plain::CookieKey;
use rivulet_server::heartbeat::Live;
use rivulet_server::service::{Failure, Member, PoolMember, Service, Trods};
use rivulet_trods::hold::{Absence, Departed, Reads};
use rivulet_trods::lease::{Term, clock};
use rivulet_trods::replica::{Gone, Protected, Replica};
use rivulet_trods::store::{self, RecordKeys, StoreConfig, StoreError};
use rivulet_trods::terminator::Door;
use rivulet_trods::ts::Named;
use rivulet_trods::ts::hints::{self, Peers};
use rivulet_trods::{AdoptAs, Settings, Unknown, Wake};

use super::incarnation::Incarnation;
use super::moves;

/// Nanoseconds after which every connection is stored that began before the ToR sent its client
/// elsewhere: a new one is stored after `HANDSHAKE_PATIENCE`, and the store takes some time.
const LATE_NS: u64 = 150_000_000;

/// Nanoseconds from a change of the live set to the searches for connections without a holder.
const LOOKS_NS: [u64; 5] = [100_000_000, 1_000_000_000, 2_000_000_000, 4_000_000_000, 8_000_000_000];

/// MSS that the BPF programs announce in handshakes (Ethernet), for IPv4 and IPv6.
const MSS: [u16; 2] = [1460, 1440];

/// The replica's membership in one pool, and its protected services there.
#[derive(Debug)]
pub(super) struct Place {
    pub member: Member,
    term: Term,
    /// The last absence for which pins were read.
    asked: u64,
    /// Bit set of the members that got plain TCP at that time.
    plain: u64,
    /// Bit set of the members that get plain TCP now; determines a connection's replica.
    pub takers: Arc<AtomicU64>,
    /// Bit set of the drained members.
    drained: u64,
    /// When the pins are read once more after a change, by [`clock`].
    look_at: Option<u64>,
    /// Times ([`clock`]) of the next searches, and the members with records to read.
    looks: VecDeque<u64>,
    unheld: Vec<Departed>,
    /// Dead members with named connections, still to be reported to the replica's thread.
    gone: Vec<u8>,
    /// Bit set of the members that got plain TCP at the last report.
    told: u64,
    pub services: Vec<Service>,
}

/// Protects this host's connections: the replica's thread, and its services by pool.
#[derive(Debug)]
pub(super) struct Guard {
    interface: Interface,
    /// Folder with the sockets by which the next agent finds this agent's BPF programs.
    programs: PathBuf,
    /// Socket for TLS terminators, and the user who may open it besides root and this process's.
    pub door: Option<(PathBuf, Option<u32>)>,
    wake: Wake,
    incarnation: u32,
    /// Incarnations of earlier processes of this agent.
    formers: Vec<u32>,
    replica: Option<Replica>,
    /// Whether its BPF programs answer handshakes.
    issues: bool,
    /// Another process of this replica still sends heartbeats, and protects nothing. Until the ToR
    /// answers this process, it protects nothing and mutes nothing either.
    waits: bool,
    /// One entry for each pool of this replica; the index is that of its lease.
    places: Vec<Place>,
    /// Why nothing is protected although services are configured for it.
    pub trouble: Option<String>,
    /// Services that cannot be protected here, by number, each with the reason.
    pub lacking: BTreeMap<u16, String>,
    /// The table version that was passed to the services last.
    told: Option<u32>,
}

impl Guard {
    /// Starts without protection; queries no kernel feature before a service needs it.
    pub(super) fn new(
        interface: &Interface,
        programs: PathBuf,
        incarnation: Incarnation,
        wake: Wake,
        waits: bool,
    ) -> Guard {
        let Incarnation { own: incarnation, formers } = incarnation;
        let interface = interface.clone();
        Guard {
            interface,
            programs,
            door: None,
            wake,
            incarnation,
            formers,
            replica: None,
            issues: false,
            waits,
            places: Vec::new(),
            trouble: None,
            lacking: BTreeMap::new(),
            told: None,
        }
    }

    /// Sets the services.
    pub(super) fn replace(&mut self, services: &[Service]) {
        let mut before = std::mem::take(&mut self.places);
        for service in services.iter().filter(|s| s.has_trods()) {
            let Some(member) = service.member else { continue };
            let of =
                |place: &Place| (place.member.pool, place.member.replica) == (member.pool, member.replica);
            if let Some(place) = self.places.iter_mut().find(|place| of(place)) {
                place.services.push(service.clone());
                continue;
            }
            let place = match before.iter().position(|place| place.member == member) {
                Some(at) => Place { services: vec![service.clone()], ..before.swap_remove(at) },
                // The number is below 64, which `Service::check` has checked.
                None => Place::new(member, Term::new(member.replica as u8, member.bound), service.clone()),
            };
            self.places.push(place);
        }
        if self.places.is_empty() {
            (self.replica, self.trouble, self.told) = (None, None, None);
            self.lacking.clear();
            return;
        }
        self.trouble = self.protect().err().map(|e| format!("TRODS: {e:#}"));
        if let Some(trouble) = &self.trouble {
            tracing::error!("connections cannot be protected: {trouble}");
        }
    }

    fn protect(&mut self) -> anyhow::Result<()> {
        let lacking = self.places.iter().flat_map(|place| &place.services).filter_map(|service| {
            let checked = repair::check_port(service.port).context("TCP_REPAIR");
            let why = checked.and_then(|()| self.check_address(service)).err()?;
            Some((service.keys.service, format!("TRODS: {why:#}")))
        });
        let lacking: BTreeMap<u16, String> = lacking.collect();
        for (service, why) in &lacking {
            if self.lacking.get(service) != Some(why) {
                tracing::error!(service, "connections of one service cannot be protected: {why}");
            }
        }
        self.lacking = lacking;
        // BPF programs that do not answer handshakes can still protect services with a store.
        let wants = self.places.iter().flat_map(|place| &place.services).any(|s| objects(s).is_some());
        let lacks = wants.then(rivulet_bpf::trods::can_issue).and_then(Result::err);
        let issues = wants && lacks.is_none();
        if issues && !self.issues {
            // Existing connections continue unprotected.
            self.replica = None;
        }
        let replica = match &mut self.replica {
            Some(replica) => replica,
            none => {
                self.issues = issues;
                let replica = Replica::start_in(&self.programs, &self.interface, self.wake, issues)?;
                if let Some((path, owner)) = &self.door {
                    let door = Door::open(path, *owner);
                    replica.open_door(door.with_context(|| format!("the socket {}", path.display()))?);
                }
                none.insert(replica)
            }
        };
        if self.waits {
            replica.succeed();
            return Ok(());
        }
        let mut all = Vec::new();
        for (number, place) in (0u32..).zip(&self.places) {
            for service in place.services.iter().filter(|s| !self.lacking.contains_key(&s.keys.service)) {
                let table = service.sockets().next().map_or(0, |socket| replica.table(&socket));
                let named = named(service, &place.member, table).filter(|_| issues);
                let mut protected = protected(service, &place.member, number, self.incarnation, self.wake)?;
                let formers = self.formers.iter().map(|former| u64::from(*former));
                protected.store.iter_mut().for_each(|store| store.formers = formers.clone().collect());
                let is_protected = protected.store.is_some() || named.is_some();
                all.extend(is_protected.then_some(Protected { named, ..protected }));
            }
            // Without a key for heartbeats the ToR sends no answers, and excludes no member.
            let answered = place.services.iter().any(|s| s.keys.beat_key().is_some());
            let silent = Lease { until: u64::MAX, settling: 0, ..Lease::default() };
            replica.set_lease(number, if answered { place.lease() } else { silent });
        }
        replica.protect(all);
        self.moves();
        lacks.map_or(Ok(()), |lacks| Err(lacks.into()))
    }

    /// Checks that the local server accepts requests from clients' addresses, if configured.
    fn check_address(&self, service: &Service) -> anyhow::Result<()> {
        if service.trods.as_ref().is_none_or(|trods| trods.as_server) {
            return Ok(());
        }
        for socket in service.sockets() {
            let check = in_netns(self.interface.netns(), || transparent::check(socket.ip()))?;
            check.context(
                "the web server cannot be asked from clients' addresses after an adoption (`adopt_as: server` does without)",
            )?;
        }
        Ok(())
    }

    /// Sets the connections that leave this replica, and the drained members that it follows.
    fn moves(&mut self) {
        let Some(replica) = &self.replica else { return };
        for place in &mut self.places {
            let drained = moves::drained(place);
            // The adopter must have the pins before the first segment arrives.
            if std::mem::replace(&mut place.drained, drained) != drained {
                place.look_at = Some(0);
            }
        }
        // The paper's variant (`--wake client`), for comparison, does not move connections.
        let places = || self.places.iter().filter(|_| self.wake == Wake::Server);
        let of = |place| moves::of(place, self.incarnation);
        let (leave, follow): (Vec<_>, Vec<_>) = places().map(of).unzip();
        let named = places().flat_map(moves::named).collect();
        replica.leave(leave.into_iter().flatten().collect(), named);
        replica.follow(follow.into_iter().flatten().collect());
    }

    /// Checks whether the local server's table, and so the named objects, have changed.
    pub(super) fn look(&mut self) {
        let table = self.table();
        if table.is_some() && table != self.told {
            self.told = table;
            self.trouble = self.protect().err().map(|e| format!("TRODS: {e:#}"));
        }
    }

    /// The version of the local server's table; the controller makes the replicas agree on one.
    pub(super) fn table(&self) -> Option<u32> {
        let replica = self.replica.as_ref()?;
        let mut named =
            self.places.iter().flat_map(|p| &p.services).filter(|s| objects(s).is_some()).peekable();
        named.peek()?;
        // With a single service the version can be compared with the one in force.
        let socket = named.next()?.sockets().next()?;
        Some(replica.table(&socket))
    }

    /// Processes the ToR's answer to a heartbeat of this pool; `sent`: when that heartbeat was
    /// sent, by the agent's clock, nanoseconds.
    pub(super) fn answered(&mut self, member: &Member, live: &Live, sent: u64) {
        if std::mem::take(&mut self.waits)
            && let Err(e) = self.protect()
        {
            self.trouble = Some(format!("TRODS: {e:#}"));
        }
        let Some(replica) = &self.replica else { return };
        let (back, mut others) = (replica.back(), false);
        for (number, place) in (0u32..).zip(&mut self.places) {
            for (_, absence) in back.iter().filter(|(of, _)| *of == number) {
                place.term.back(*absence);
            }
            if (place.member.pool, place.member.replica) != (member.pool, member.replica) {
                continue;
            }
            let (absence, departed) =
                place.answered(number, self.incarnation, sent, live.alive, live.plain, clock());
            others |= place.takers.swap(live.plain, Ordering::Relaxed) != live.plain;
            replica.set_lease(number, place.lease());
            absence.into_iter().for_each(|absence| replica.away(absence));
            departed.into_iter().for_each(|departed| replica.departed(departed));
            place.unheld.drain(..).for_each(|departed| replica.departed(departed));
            let gone = std::mem::take(&mut place.gone);
            let gone = gone.into_iter().filter_map(|dead| place.announced_by(dead, live.plain));
            gone.for_each(|gone| replica.departed_named(gone));
        }
        if others {
            self.moves();
        }
    }

    /// Stops without detaching the BPF programs, as after a kill: they stay attached for a moment,
    /// while others adopt the connections. If they were detached first, the segments that the
    /// kernel sends at the end would reach the clients.
    pub(super) fn leave(mut self) {
        std::mem::forget(self.replica.take());
    }

    /// Whether clients must not be sent here yet: pins are being read (they are read once more if
    /// clients arrive meanwhile, which then wait), other replicas must first adopt the former
    /// process's named connections, or nothing is protected because another process sends
    /// heartbeats.
    pub(super) fn is_asking(&self) -> bool {
        if self.replica.as_ref().is_some_and(|replica| self.waits || replica.is_settling()) {
            return true;
        }
        let asking = |place: &Place| place.term.away().is_some_and(|absence| absence == place.asked);
        self.places.iter().any(|place| asking(place) && !place.term.is_taking())
    }

    /// The counters in the report to the controller.
    pub(super) fn counts(&self) -> Option<TrodsCounts> {
        let counts = self.replica.as_ref()?.counts();
        Some(TrodsCounts {
            incarnation: self.incarnation,
            protected: counts.protected,
            unprotected: counts.unprotected,
            adopted: counts.adopted,
            refused: counts.refused,
            refusals: counts.refusals,
            trusted: counts.trusted,
            outside: counts.outside,
            moved: counts.moved,
            watched: counts.watched + counts.named,
            asks: self.is_asking(),
        })
    }
}

/// Whether a replica may get a connection's segments, given client and service.
type Gets = Box<dyn Fn(SocketAddr, SocketAddr) -> bool + Send>;

impl Place {
    pub(super) fn new(member: Member, term: Term, service: Service) -> Place {
        let (asked, plain, takers, drained) = (0, 0, Arc::default(), 0);
        Place {
            member,
            term,
            asked,
            plain,
            takers,
            drained,
            look_at: None,
            looks: VecDeque::new(),
            unheld: Vec::new(),
            gone: Vec::new(),
            told: 0,
            services: vec![service],
        }
    }

    fn lease(&self) -> Lease {
        Lease { tor: self.member.tor_mac, ..self.term.lease() }
    }

    /// Processes the ToR's answer to a heartbeat that was sent at `sent`: decides whether to read
    /// pins, and which members' records to read.
    fn answered(
        &mut self,
        number: u32,
        incarnation: u32,
        sent: u64,
        alive: u64,
        plain: u64,
        now: u64,
    ) -> (Option<Absence>, Vec<Departed>) {
        let gone = self.term.answered(sent, alive, plain, now);
        let mut looked_for = Vec::new();
        let absence = match self.term.away() {
            Some(absence) if absence > self.asked => {
                self.asked = absence;
                // Connections of the former agent here: the replica that gets a client's answer
                // adopts them.
                let former = |service| former(service, &self.member, incarnation, plain);
                looked_for.extend(self.services.iter().filter_map(former));
                Some(self.absence((number, absence), alive, Box::new(|_, _| true)))
            }
            // If both candidates of a connection are dead, any change of the live set moves it,
            // although neither this replica nor the holder was excluded: the pins are read again. A
            // change during such a query waits, because the result may be older than the change.
            None if plain != self.plain || self.look_at.is_some_and(|at| at <= now) => {
                Some(self.absence((number, 0), alive, self.gets(plain)))
            }
            _ => None,
        };
        if absence.is_some() {
            self.look_at = (plain != self.plain).then_some(now + LATE_NS);
            self.plain = plain;
        }
        // Earlier deaths are included: the expected adopter of their connections may have died now.
        let dead = || (0..64).filter(|dead| alive >> dead & 1 == 0);
        for dead in dead().filter(|_| gone != 0) {
            let departed = |service| departed(service, &self.member, dead, plain);
            looked_for.extend(self.services.iter().filter_map(departed));
        }
        // Also when clients' answers to probes go to another replica now; checking the
        // announcements again costs little.
        let is_moved = std::mem::replace(&mut self.told, plain) != plain;
        if gone != 0 || is_moved {
            self.gone = dead().collect();
        }
        if gone != 0 || is_moved || absence.is_some() {
            self.looks = LOOKS_NS.iter().map(|after| now + after).collect();
        }
        if self.looks.front().is_some_and(|at| *at <= now) {
            self.looks.pop_front();
            self.unheld = self.unheld(incarnation, alive, plain);
        }
        (absence, looked_for)
    }

    /// Records that may belong to connections without a process: those of dead members, and those
    /// of live members (this one included) under other incarnations. The expected adopter may have
    /// died, or may have returned without knowing of them.
    fn unheld(&self, incarnation: u32, alive: u64, plain: u64) -> Vec<Departed> {
        let mut all = Vec::new();
        for (service, trods) in self.services.iter().filter_map(kept) {
            for member in &trods.members {
                let (reads, told) = match member.replica {
                    own if u16::from(own) == self.member.replica => (Reads::OwnFormers, incarnation),
                    other if alive >> other & 1 == 1 => (Reads::LivingFormers, member.incarnation),
                    _ => (Reads::All, member.incarnation),
                };
                all.extend(looked_for(service, &self.member, member.replica, told, plain, reads));
            }
        }
        all
    }

    /// A dead member with announced connections; `plain`: the members that get clients' segments.
    fn announced_by(&self, dead: u8, plain: u64) -> Option<Gone> {
        let named = self.services.iter().filter(|s| objects(s).is_some());
        let services: Vec<SocketAddr> = named.clone().flat_map(Service::sockets).collect();
        let (own, tor) = (self.member.replica, self.member.tor_mac);
        let is_member = |s: &Service| s.trods.as_ref().is_some_and(|trods| trods.member(dead).is_some());
        if !named.clone().any(is_member) {
            return None;
        }
        let slots: Vec<_> =
            named.filter_map(|s| Some((s.sockets().collect::<Vec<_>>(), s.slots.clone()?))).collect();
        let other = move |client, service| {
            let (_, slots) = slots.iter().find(|(sockets, _)| sockets.contains(&service))?;
            match slots.owner(client, service, plain) {
                Some(owner) if u16::from(owner) == own => None,
                owner => Some(Pin { tor, holder: owner.unwrap_or(dead) }),
            }
        };
        let waits = plain >> (own & 63) & 1 == 0;
        (!services.is_empty()).then(|| Gone { replica: dead, services, other: Box::new(other), waits })
    }

    /// Which connections the slots give to this replica while the members in `plain` get plain TCP.
    fn gets(&self, plain: u64) -> Gets {
        let (own, slots) = (self.member.replica, self.services.iter().map(|s| s.slots.clone()));
        let slots: Vec<_> = slots.flatten().collect();
        Box::new(move |client, service| {
            slots.iter().any(|s| s.owner(client, service, plain).is_some_and(|owner| u16::from(owner) == own))
        })
    }

    /// An absence of this replica, with the live members that may have adopted its connections.
    fn absence(&self, number: (u32, u64), alive: u64, gets: Gets) -> Absence {
        let tor = self.member.tor_mac;
        let named =
            self.services.iter().filter(|s| objects(s).is_some()).flat_map(Service::sockets).collect();
        let (others, servers) = (Vec::new(), Vec::new());
        let mut absence = Absence { number, others, servers, named, alive, tor, gets };
        for (service, trods) in self.services.iter().filter_map(kept) {
            let others = trods.members.iter().filter(|m| u16::from(m.replica) != self.member.replica);
            for other in others.filter(|m| alive >> m.replica & 1 == 1 && m.incarnation != 0) {
                if let Ok(prefix) = prefix(service, self.member.pool, other.replica.into(), other.incarnation)
                {
                    absence.others.push((other.replica, prefix, record_keys(service)));
                }
            }
            let fresh = trods.store.iter().filter(|server| !absence.servers.contains(server));
            let fresh: Vec<_> = fresh.copied().collect();
            absence.servers.extend(fresh);
        }
        absence
    }
}

/// Path of the list of objects that timestamps name; `None`: no connection is named.
pub(super) fn objects(service: &Service) -> Option<&String> {
    service.trods.as_ref()?.objects.as_ref()
}

/// The service with its TRODS settings, if it has a store.
pub(super) fn kept(service: &Service) -> Option<(&Service, &Trods)> {
    service.trods.as_ref().filter(|trods| !trods.store.is_empty()).map(|trods| (service, trods))
}

/// How timestamps name a service's connections; `table`: version of the local server's table.
fn named(service: &Service, member: &Member, table: u32) -> Option<Named> {
    let (list, trods) = (objects(service)?.clone(), service.trods.as_ref()?);
    // Connections under earlier keys belong to earlier content.
    let since = service.content.map_or(0, |content| content.epoch);
    let keys = service.keys.cookie.iter().filter(|key| key.epoch >= since);
    let is_usable = |epoch| epoch == service.keys.usable_cookie;
    let mut keys: Vec<_> = keys.map(|key| (is_usable(key.epoch), key)).collect();
    keys.sort_by_key(|(usable, _)| !usable);
    let is_made = keys.first().is_some_and(|(usable, _)| *usable);
    let in_force = service.content.map_or(0, |content| content.version);
    let slots = service.slots.as_ref()?;
    let secret = [b"hint".as_slice(), &service.keys.service.to_be_bytes()].concat();
    let peer = |m: &PoolMember| (m.replica, SocketAddr::new(m.address, hints::PORT));
    let others = trods.members.iter().filter(|m| u16::from(m.replica) != member.replica).map(peer).collect();
    Some(Named {
        list,
        keys: keys.into_iter().map(|(_, key)| (CookieKey::new(key.key.0), key.epoch & 1 != 0)).collect(),
        // Nothing is named unless all replicas have the same version and a common key.
        in_force: Some(if is_made && in_force == table { table } else { 0 })
            .filter(|v| *v != 0)
            .or(Some(u32::MAX)),
        peers: Peers { own: member.replica as u8, others, secret: slots.key.secret(&secret) },
        tor: member.tor_mac,
        mss: MSS,
    })
}

/// The keys that seal a service's records, derived from its ring of seals, which only the
/// controller and the service's replicas have.
pub(super) fn record_keys(service: &Service) -> RecordKeys {
    let keys = &service.keys;
    let masters: Vec<_> = keys.seal.iter().map(|key| (key.epoch, key.master.0)).collect();
    RecordKeys::new(keys.service, keys.usable_seal, &masters)
}

/// Prefix of the keys under which a replica's records of a service are stored.
pub(super) fn prefix(
    service: &Service,
    pool: u16,
    replica: u16,
    incarnation: u32,
) -> Result<String, StoreError> {
    store::prefix(&format!("{pool}-{}", service.keys.service), &replica.to_string(), incarnation.into())
}

/// How a service is protected, except by timestamps.
fn protected(
    service: &Service,
    member: &Member,
    lease: u32,
    incarnation: u32,
    wake: Wake,
) -> Result<Protected, StoreError> {
    let (sockets, keys) = (service.sockets().collect(), record_keys(service));
    let Some(trods) = &service.trods else {
        let (settings, others) = (Settings::default(), Vec::new());
        return Ok(Protected { sockets, lease, settings, store: None, keys, others, named: None });
    };
    let settings = Settings {
        closed: trods.failure == Failure::Closed,
        deterministic: trods.deterministic,
        wake,
        adopt_as: if trods.as_server { AdoptAs::Server } else { AdoptAs::Client },
        unknown: if trods.trust_unknown { Unknown::Trust } else { Unknown::Reset },
    };
    if kept(service).is_none() {
        let others = Vec::new();
        return Ok(Protected { sockets, lease, settings, store: None, keys, others, named: None });
    }
    let other = |m: &&PoolMember| u16::from(m.replica) != member.replica && m.incarnation != 0;
    let others = trods.members.iter().filter(other);
    let others = others.map(|m| prefix(service, member.pool, m.replica.into(), m.incarnation));
    let others = others.collect::<Result<_, _>>()?;
    let own = trods.members.iter().filter(|m| u16::from(m.replica) == member.replica).map(|m| m.address);
    let store = StoreConfig {
        servers: trods.store.clone(),
        own: own.collect(),
        copies: trods.copies,
        prefix: prefix(service, member.pool, member.replica, incarnation)?,
        formers: Vec::new(),
        patience: store::PATIENCE,
        renewal: store::RENEWAL,
    };
    Ok(Protected { sockets, lease, settings, store: Some(store), keys, others, named: None })
}

/// This replica under its former incarnation, if the controller has reported one.
fn former(service: &Service, member: &Member, incarnation: u32, plain: u64) -> Option<Departed> {
    let own = u8::try_from(member.replica).ok()?;
    let told = service.trods.as_ref()?.member(own)?.incarnation;
    (told != incarnation).then(|| departed(service, member, own, plain)).flatten()
}

/// A dead member with a known incarnation; `plain`: the members that get clients' segments.
fn departed(service: &Service, member: &Member, dead: u8, plain: u64) -> Option<Departed> {
    let (_, trods) = kept(service)?;
    let incarnation = trods.member(dead).map(|m| m.incarnation).filter(|incarnation| *incarnation != 0)?;
    looked_for(service, member, dead, incarnation, plain, Reads::Told)
}

/// A member's records to read, for a given incarnation and selection of records.
fn looked_for(
    service: &Service,
    member: &Member,
    dead: u8,
    incarnation: u32,
    plain: u64,
    reads: Reads,
) -> Option<Departed> {
    let (_, trods) = kept(service)?;
    let slots = service.slots.clone()?;
    let prefix = prefix(service, member.pool, dead.into(), incarnation).ok()?;
    let (own, tor) = (member.replica, member.tor_mac);
    // A connection without an expected adopter is probed by no replica; one that gets a segment of
    // its client adopts it.
    let other = move |client, service| match slots.owner(client, service, plain) {
        Some(owner) if u16::from(owner) == own => None,
        owner => Some(Pin { tor, holder: owner.unwrap_or(dead) }),
    };
    let waits = plain >> (own & 63) & 1 == 0;
    let (servers, keys) = (trods.store.clone(), record_keys(service));
    Some(Departed { prefix, servers, keys, other: Box::new(other), waits, reads })
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use rivulet_packet::slot::{Affinity, Slot, SlotHash, SlotKey};
    use rivulet_server::keys::KeySet;
    use rivulet_server::service::{Plain, Slots};

    use super::*;

    pub fn service() -> Service {
        let member = |replica: u8, incarnation| PoolMember {
            replica,
            name: format!("r{replica}"),
            address: [10, 0, 2, replica].into(),
            incarnation,
        };
        Service {
            member: Some(Member {
                pool: 3,
                replica: 1,
                tor_mac: [2, 0, 0, 0, 0, 0xfe],
                heartbeat: Duration::from_millis(2),
                bound: Duration::from_millis(20),
            }),
            trust_tor: true,
            slots: Some(Slots {
                key: SlotKey::new([1; 8], SlotHash::HalfSipHash),
                affinity: Affinity::Flow,
                pairs: Arc::new([Slot { first: 0, second: 1 }, Slot { first: 0, second: 2 }]),
            }),
            trods: Some(Trods {
                store: vec!["10.0.2.9:11211".parse().unwrap()],
                copies: 1,
                failure: Failure::Closed,
                deterministic: true,
                as_server: true,
                trust_unknown: false,
                objects: None,
                members: vec![member(0, 7), member(1, 8), member(2, 0)],
            }),
            ..Service::standalone(
                "www",
                vec!["10.9.0.1".parse().unwrap(), "fd00:9::1".parse().unwrap()],
                80,
                KeySet::generate(5).unwrap(),
                Plain::Trods,
            )
        }
    }

    const ALL: u64 = 0b111;

    /// This host is replica 1 of three, under its incarnation 9. Replica 2 is second candidate of
    /// every other slot, and never first.
    fn place() -> Place {
        let mut service = service();
        // All members have reported under which incarnation their records are.
        service.trods.as_mut().unwrap().members[2].incarnation = 6;
        service.trods.as_mut().unwrap().members[1].incarnation = 9;
        Place::new(service.member.unwrap(), Term::new(1, Duration::from_millis(20)), service)
    }

    /// An answer's results: the absence for which pins are read, and members with records to read.
    fn outcome(place: &mut Place, alive: u64, plain: u64) -> (Option<u64>, Vec<String>) {
        let (absence, departed) = place.answered(4, 9, 1, alive, plain, 1);
        let of = |departed: Departed| departed.prefix.trim_start_matches("3-5.").to_owned();
        (absence.map(|a| a.number.1), departed.into_iter().map(of).collect())
    }

    /// A pool after the two absences of every start: before the first answer, and before plain TCP.
    fn settled() -> Place {
        let mut place = place();
        for (absence, plain) in [(2, ALL & !0b10), (3, ALL)] {
            assert_eq!(outcome(&mut place, ALL, plain), (Some(absence), vec![]));
            assert_eq!(outcome(&mut place, ALL, plain), (None, vec![]), "that is asked once");
            place.term.back(absence);
        }
        place
    }

    #[test]
    fn each_death_reads_the_records_of_all_dead_members() {
        let mut place = settled();
        assert_eq!(outcome(&mut place, ALL, ALL).1, [""; 0]);
        assert_eq!(outcome(&mut place, 0b110, 0b110).1, ["0.7"]);
        assert_eq!(outcome(&mut place, 0b110, 0b110).1, [""; 0], "once");
        // The second dead member may have been the expected adopter of the first one's connections.
        assert_eq!(outcome(&mut place, 0b010, 0b010).1, ["0.7", "2.6"]);
        assert_eq!(outcome(&mut place, 0b111, 0b010).1, [""; 0]);
    }

    /// The former adopter may get no client's answer any more, and no other replica would probe.
    #[test]
    fn changed_takers_report_all_dead_members_again() {
        let mut place = settled();
        let mut gone = |alive, plain| {
            let records = outcome(&mut place, alive, plain).1.len();
            let gone = std::mem::take(&mut place.gone);
            (gone.into_iter().filter(|dead| *dead < 3).collect::<Vec<_>>(), records)
        };
        assert_eq!(gone(0b110, 0b110), (vec![0], 1));
        assert_eq!(gone(0b110, 0b110), (vec![], 0), "once");
        assert_eq!(gone(0b110, 0b010), (vec![0], 0), "no records are read for that");
        assert_eq!(gone(0b110, 0b110), (vec![0], 0));
        assert_eq!(gone(ALL, ALL), (vec![], 0));
    }

    #[test]
    fn changed_takers_start_a_query_for_holders() {
        let mut place = settled();
        assert_eq!(outcome(&mut place, ALL, ALL).0, None);
        let gets = |place: &mut Place, plain: u64| {
            let service = place.services[0].clone();
            let (absence, _) = place.answered(4, 9, 1, ALL, plain, 1);
            let absence = absence.expect("the set is another one");
            assert_eq!((absence.number, absence.others.len()), ((4, 0), 2));
            let to = service.sockets().next().unwrap();
            let clients = (1..1000).map(|port| SocketAddr::from(([192, 0, 2, 7], port)));
            let owner = |client| service.slots.as_ref().unwrap().owner(client, to, plain).unwrap();
            let (ours, theirs): (Vec<_>, Vec<_>) = clients.partition(|client| owner(*client) == 1);
            assert!(ours.iter().all(|client| (absence.gets)(*client, to)));
            assert!(!theirs.iter().any(|client| (absence.gets)(*client, to)));
            (ours.len(), theirs.len())
        };
        // This replica gets half of the dead member's connections, then half of those with two dead
        // candidates, and none when both are back.
        let half = 300..700;
        assert!(half.contains(&gets(&mut place, 0b110).0));
        assert_eq!(outcome(&mut place, ALL, 0b110).0, None, "that is asked once");
        assert_eq!(gets(&mut place, 0b010), (999, 0));
        assert_eq!(gets(&mut place, ALL), (0, 999));
        // A change waits while the pins are read, because they may be older than the change.
        assert_eq!(outcome(&mut place, ALL, 0b101).0, Some(4));
        assert_eq!(outcome(&mut place, ALL, ALL).0, Some(5));
        assert_eq!(outcome(&mut place, ALL, 0b110).0, None);
        place.term.back(5);
        assert!(half.contains(&gets(&mut place, 0b110).0));
    }

    #[test]
    fn holders_are_queried_again_for_late_records() {
        let mut place = settled();
        let mut asks = |now, plain| place.answered(4, 9, 1, ALL, plain, now).0.map(|a| a.number.1);
        assert_eq!(
            [asks(LATE_NS, ALL), asks(LATE_NS + 1, ALL)],
            [None, Some(0)],
            "since it takes connections"
        );
        assert_eq!([asks(4 * LATE_NS, ALL), asks(5 * LATE_NS, 0b110)], [None, Some(0)], "another set");
        assert_eq!([asks(6 * LATE_NS - 1, 0b110), asks(6 * LATE_NS, 0b110)], [None, Some(0)]);
        assert_eq!(asks(9 * LATE_NS, 0b110), None, "once");
    }

    #[test]
    fn records_of_the_previous_incarnation_are_read() {
        let mut place = place();
        let members = |place: &mut Place, incarnation| {
            place.services[0].trods.as_mut().unwrap().members[1].incarnation = incarnation;
        };
        // The controller reports the former incarnation, and not yet this one.
        members(&mut place, 8);
        assert_eq!(outcome(&mut place, ALL, ALL), (Some(2), vec!["1.8".into()]), "with the first answer");
        assert_eq!(outcome(&mut place, ALL, ALL), (None, vec![]), "once");
        assert_eq!(outcome(&mut place, ALL, 0b101), (Some(3), vec!["1.8".into()]));
        members(&mut place, 9);
        assert_eq!(outcome(&mut place, ALL, ALL), (Some(4), vec![]), "it has now");
        members(&mut place, 0);
        assert_eq!(outcome(&mut place, ALL, 0b101), (Some(5), vec![]), "it knows none");
        // The slots give these connections to this replica, which adopts them.
        let departed = former(&service(), &place.member, 9, 0b010).unwrap();
        let (client, to) = ("192.0.2.7:1".parse().unwrap(), place.services[0].sockets().next().unwrap());
        assert_eq!(((departed.other)(client, to), departed.waits), (None, false));
        // While this replica gets no plain TCP, another one adopts them.
        assert!(former(&service(), &place.member, 9, 0b101).unwrap().waits);
    }

    #[test]
    fn service_names_its_record_stores() {
        let service = service();
        let member = service.member.unwrap();
        let protected = protected(&service, &member, 4, 8, Wake::Client).unwrap();
        assert_eq!(
            (protected.lease, protected.settings),
            (
                4,
                Settings {
                    closed: true,
                    deterministic: true,
                    wake: Wake::Client,
                    adopt_as: AdoptAs::Server,
                    unknown: Unknown::Reset,
                }
            )
        );
        assert_eq!(protected.sockets, service.sockets().collect::<Vec<_>>());
        let store = protected.store.expect("a store");
        assert_eq!((&*store.prefix, store.copies), ("3-5.1.8", 1));
        assert_eq!(store.own, ["10.0.2.1".parse::<std::net::IpAddr>().unwrap()]);
        assert_eq!(protected.others, ["3-5.0.7"], "nobody knows the other's incarnation");
    }

    #[test]
    fn content_in_force_is_named_under_its_epochs_key() {
        use rivulet_server::keys::{CookieEpoch, Secret};
        use rivulet_server::service::InForce;
        let mut service = service();
        let member = service.member.unwrap();
        assert_eq!(named(&service, &member, 7), None, "it has no list");
        let trods = service.trods.as_mut().unwrap();
        (trods.store, trods.objects) = (Vec::new(), Some("/list".into()));
        assert!(protected(&service, &member, 4, 8, Wake::Server).unwrap().store.is_none());
        service.keys.cookie =
            [3, 4, 5].map(|epoch| CookieEpoch { epoch: epoch.into(), key: Secret([epoch; 8]) }).into();
        service.keys.usable_cookie = 4;
        service.content = Some(InForce { version: 7, epoch: 4 });
        let found = named(&service, &member, 7).unwrap();
        let key = |n: u8| (CookieKey::new([n; 8]), n & 1 != 0);
        assert_eq!((&*found.list, found.in_force, found.keys), ("/list", Some(7), vec![key(4), key(5)]));
        let address = |n: u8| (n, SocketAddr::from(([10, 0, 2, n], hints::PORT)));
        assert_eq!((found.peers.own, found.peers.others), (1, vec![address(0), address(2)]));
        // Nothing is named if the other replicas may have another table, or not the key.
        let force = |service: &Service, table| named(service, &member, table).unwrap().in_force;
        assert_eq!((force(&service, 8), force(&service, 0)), (Some(u32::MAX), Some(u32::MAX)));
        service.keys.usable_cookie = 3;
        assert_eq!(force(&service, 7), Some(u32::MAX));
        // A dead member's announcements are still known to the others.
        let mut place = Place { services: vec![service], ..place() };
        let gone = place.announced_by(2, 0b011).unwrap();
        assert_eq!((gone.replica, gone.services.len(), gone.waits), (2, 2, false));
        assert!(place.announced_by(2, 0b001).unwrap().waits);
        // With a store, the dead member's records are read as well.
        assert!(departed(&place.services[0], &member, 0, 0b110).is_none());
        place.services[0].trods.as_mut().unwrap().store = vec!["10.0.2.9:11211".parse().unwrap()];
        let both = &place.services[0];
        assert!(protected(both, &member, 4, 8, Wake::Server).unwrap().store.is_some());
        assert!(named(both, &member, 7).is_some() && departed(both, &member, 0, 0b110).is_some());
        let absence = place.absence((4, 1), 0b111, Box::new(|_, _| true));
        assert_eq!((absence.named.len(), absence.others.len(), absence.servers.len()), (2, 1, 1));
        assert!(place.announced_by(0, 0b110).is_some());
    }

    #[test]
    fn returning_replica_asks_peers_for_their_pins() {
        let service = service();
        let term = Term::new(1, Duration::from_millis(20));
        let mut place = Place::new(service.member.unwrap(), term, service.clone());
        let absence = place.absence((4, 1), 0b111, Box::new(|_, _| true));
        assert_eq!(absence.alive, 0b111);
        assert_eq!((absence.number, absence.tor), ((4, 1), [2, 0, 0, 0, 0, 0xfe]));
        let others: Vec<_> = absence.others.iter().map(|(n, prefix, _)| (*n, &**prefix)).collect();
        assert_eq!(others, [(0, "3-5.0.7")], "nobody knows the other's incarnation");
        assert_eq!(absence.servers, service.trods.as_ref().unwrap().store);
        assert!(
            place.absence((4, 1), 0b110, Box::new(|_, _| true)).others.is_empty(),
            "who is gone holds nothing"
        );
        place.services.push(service);
        assert_eq!(place.absence((4, 1), 0b111, Box::new(|_, _| true)).servers.len(), 1);
    }

    #[test]
    fn every_survivor_searches_and_one_probes() {
        let service = service();
        let member = service.member.unwrap();
        let departed = |dead| departed(&service, &member, dead, 0b110);
        assert!(departed(2).is_none() && departed(3).is_none(), "nobody knows its incarnation");
        let gone = departed(0).unwrap();
        assert_eq!((&*gone.prefix, gone.servers), ("3-5.0.7", vec!["10.0.2.9:11211".parse().unwrap()]));
        let to = service.sockets().next().unwrap();
        let mut ours = 0;
        for port in 1..1000 {
            let client = SocketAddr::from(([192, 0, 2, 7], port));
            let owner = service.slots.as_ref().unwrap().owner(client, to, 0b110).unwrap();
            let other = (owner != 1).then_some(Pin { tor: member.tor_mac, holder: owner });
            assert_eq!((gone.other)(client, to), other);
            ours += u32::from(owner == 1);
        }
        assert!((300..700).contains(&ours), "{ours} of 999");
    }
}
