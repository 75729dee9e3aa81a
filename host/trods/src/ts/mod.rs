//! Protects connections without a store: the timestamp that a client echoes names the object that
//! it is downloading, and its acknowledgement shows how much of it the client has
//! (`docs/trods-stamps.md`).
//!
//! BPF programs do this for each segment (`host/bpf/src/bpf/ts.h`). This module builds the
//! [`Table`] of the local server's objects for them, exchanges [`hints`] between replicas, and
//! handles connections after the death of a replica or of a server's process.

mod absences;
mod ask;
pub mod hints;
mod leave;
mod lost;
mod others;
mod read;
mod table;

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rivulet_bpf::trods::{FlowKey, Issuer, Limits, Phase, Stamped, Trods};
use rivulet_pktio::in_netns;
use rivulet_plain::{CookieKey, NOBODYS};

use self::hints::{Hint, Hints, Peers};
use self::leave::Leaving;
use self::lost::LostOnes;
use self::read::Reading;
use crate::digest::Digests;
use crate::hold::{Ended, HoldError, Keeper, Watch};
use crate::lease::clock;
use crate::wake::Prober;

pub(crate) use self::absences::Absences;
pub use self::leave::LeaveNamed;
pub(crate) use self::read::{Found, handshake, recorded};
pub use table::{Known, MAX_TARGETS, Row, Table};

/// Interval at which the local server's list of objects is requested.
const ASK: Duration = Duration::from_secs(5);
/// Interval of hints about all connections, and the longest delay of the first hint about a new
/// one.
const TELL: Duration = Duration::from_secs(1);
const BATCH: Duration = Duration::from_millis(2);
/// Delay between an unexpected end of a connection and the probe of its server, and the interval of
/// further probes while the server is down.
const DEATH: Duration = Duration::from_millis(20);
const ACCEPT: Duration = Duration::from_millis(20);
const REVIVAL: Duration = Duration::from_secs(60);
/// How long after a death the segments of unknown clients are examined.
pub(crate) const HUNT: Duration = Duration::from_secs(5);
/// A connection without a segment for this long counts as closed, nanoseconds.
const IDLE: u64 = 15 * 60 * 1_000_000_000;
/// How many bytes the limits are ahead of the client's acknowledgement; the BPF programs have the
/// same constant.
const DATA_AHEAD: u32 = 1 << 30;

/// How timestamps name the connections of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Path of the list of targets on the local server.
    pub list: String,
    /// Keys of ISNs, each with its epoch's lowest bit; the first one is used for new connections.
    pub keys: Vec<(CookieKey, bool)>,
    /// The version of the table that is in force; `None`: whichever version the local server has.
    pub in_force: Option<u32>,
    /// The replicas that exchange hints.
    pub peers: Peers,
    /// The ToR's Ethernet address.
    pub tor: [u8; 6],
    /// The largest segment size that the service accepts, for IPv4 and for IPv6.
    pub mss: [u16; 2],
}

/// A service with named connections.
#[derive(Debug)]
struct Service {
    sockets: Vec<SocketAddr>,
    named: Named,
    table: Arc<Table>,
    /// Number of the table in the BPF map.
    number: u32,
    hunting: u64,
    stop: Arc<AtomicBool>,
}

/// A service's address, and the table that its server has.
type Asked = (SocketAddr, Table);

/// A replica's services with named connections.
#[derive(Debug)]
pub(crate) struct Names {
    netns: Option<String>,
    digests: Digests,
    services: Vec<Service>,
    at: HashMap<SocketAddr, usize>,
    hints: Hints,
    lost: LostOnes,
    /// Connections that are being resumed here: segments that were parked before are obsolete.
    found: HashSet<FlowKey>,
    prober: Prober,
    /// Connections that their server closed too early: the time of the end, and that of the next
    /// check.
    early: VecDeque<(Instant, Instant, FlowKey)>,
    /// The connections in `early`.
    ending: HashSet<FlowKey>,
    told_at: Instant,
    leaving: Leaving,
    tables: u32,
    ask: Sender<Asked>,
    asked: Receiver<Asked>,
}

impl Names {
    /// Starts without named services.
    ///
    /// # Errors
    /// A system call fails.
    pub fn open(netns: Option<&str>, digests: &Digests) -> Result<Names, HoldError> {
        let (hints, prober) = in_netns(netns, || (Hints::open(hints::PORT), Prober::open()))?;
        let (ask, asked) = channel();
        Ok(Names {
            netns: netns.map(str::to_owned),
            digests: digests.clone(),
            services: Vec::new(),
            at: HashMap::new(),
            hints: hints?,
            lost: LostOnes::default(),
            found: HashSet::new(),
            prober: prober?,
            early: VecDeque::new(),
            ending: HashSet::new(),
            told_at: Instant::now(),
            leaving: Leaving::default(),
            tables: 0,
            ask,
            asked,
        })
    }

    /// Sets the services, and the number of each service's issuer.
    pub fn set_services(
        &mut self,
        services: &[(Vec<SocketAddr>, Named)],
        programs: &Trods,
    ) -> Result<(), HoldError> {
        let mut before = std::mem::take(&mut self.services);
        for (sockets, named) in services {
            let kept = before.iter().position(|s| s.sockets == *sockets && s.named.list == named.list);
            let service = match kept {
                Some(at) => Service { named: named.clone(), ..before.swap_remove(at) },
                None => self.begin(sockets, named),
            };
            self.services.push(service);
        }
        for gone in before {
            gone.stop.store(true, Ordering::Relaxed);
            remove(programs, &gone.table, gone.number)?;
        }
        let sockets = |(n, service): (usize, &Service)| {
            service.sockets.iter().map(move |s| (*s, n)).collect::<Vec<_>>()
        };
        self.at = self.services.iter().enumerate().flat_map(sockets).collect();
        let peers = self.at.iter().map(|(socket, n)| (*socket, self.services[*n].named.peers.clone()));
        self.hints.set_peers(peers.collect());
        (0..self.services.len()).try_for_each(|n| self.issue(n, programs))
    }

    /// The number of a service's issuer; `None` if its connections are not named, or there is no
    /// key yet.
    pub fn issuer(&self, service: &SocketAddr) -> Option<u32> {
        let n = *self.at.get(service)?;
        (!self.services[n].named.keys.is_empty()).then_some(n as u32 + 1)
    }

    /// The version of each service's table on this replica; 0: the server's list was not read yet.
    pub fn versions(&self) -> HashMap<SocketAddr, u32> {
        self.at.iter().map(|(socket, n)| (*socket, self.services[*n].table.version())).collect()
    }

    /// The descriptor to wait for, and the longest time to wait.
    pub fn wait(&self) -> (BorrowedFd<'_>, Duration) {
        let pause = self.lost.deadline().map(|at| at.saturating_duration_since(Instant::now()));
        (self.hints.readable(), pause.map_or(BATCH, |pause| pause.min(BATCH)))
    }

    /// Whether an announced connection is searched for.
    pub fn looks_for(&self, key: &FlowKey) -> bool {
        self.lost.has(key)
    }

    /// Processes a packet of a connection that this replica does not have; returns the connection
    /// if it can be resumed.
    pub fn take_packet(&mut self, key: &FlowKey, packet: &[u8], now_ms: u64) -> Option<Box<Found>> {
        if self.found.contains(key) || self.is_others(key, packet) {
            return None;
        }
        let reading = reading(&self.services, &self.at, key)?;
        let found = self.lost.take_packet(key, packet, reading, now_ms)?;
        self.found.insert(*key);
        Some(found)
    }

    /// Gives the BPF programs the state of a connection that is resumed here. It is parked, so the
    /// kernel's segments are held meanwhile.
    pub fn adopt(&mut self, key: &FlowKey, found: &Found, programs: &Trods) -> Result<(), HoldError> {
        let stamped = found.stamped;
        let first = stamped.isn.wrapping_add(1);
        let ack = found.connection.send_next;
        let reach = ack.wrapping_sub(first).saturating_add(DATA_AHEAD).min(stamped.total);
        let closes = found.record.responses.iter().any(|response| response.close);
        let limits = Limits {
            ack: stamped.client_next,
            data: first.wrapping_add(reach),
            // A server's FIN may come from its death; then the next server is asked for the bytes
            // that the client lacks.
            fin_at: (closes && reach == stamped.total).then(|| first.wrapping_add(stamped.total)),
            closes,
            first,
            acked: ack,
            adopted: true,
            ..Limits::default()
        };
        programs.forget_former(key)?;
        programs.stamps().put(key, &Stamped { heard: clock(), limits, ..stamped })?;
        self.ending.remove(key);
        self.hints.forget(key);
        self.tell(key, &stamped);
        Ok(())
    }

    /// Notes that a connection is resumed by its record, which makes segments that were parked
    /// before obsolete.
    pub fn is_found(&mut self, key: &FlowKey) {
        self.found.insert(*key);
    }

    /// Leaves a connection to the watch, because it is resumed by a record.
    pub fn resume_recorded(&mut self, key: &FlowKey, programs: &Trods) -> Result<(), HoldError> {
        self.hints.forget(key);
        self.lost.forget(key, programs)
    }

    /// Searches again for a connection that could not be resumed here.
    pub fn look_again<K: Keeper>(
        &mut self,
        key: &FlowKey,
        found: &Found,
        watch: &mut Watch<K>,
    ) -> Result<(), HoldError> {
        self.found.remove(key);
        let programs = watch.hold().programs();
        self.lost.look_for(*key, Some(hint(&found.stamped)), None, Instant::now(), programs)?;
        drop_here(key, watch)
    }

    /// Gives up a connection that no replica resumes: removes its limits, so that withheld segments
    /// can be sent. The watch does this for recorded ones.
    pub fn give_up<K: Keeper>(&mut self, key: &FlowKey, watch: &mut Watch<K>) -> Result<(), HoldError> {
        let programs = watch.hold().programs();
        let Some(stamped) = programs.stamps().named(key)? else { return Ok(()) };
        programs.free(key)?;
        programs
            .stamps()
            .put(key, &Stamped { object: NOBODYS, phase: Phase::Free, heard: clock(), ..stamped })?;
        watch.hold_mut().send_withheld(key)
    }

    /// Processes answers of the local server and hints, announces connections, probes clients, and
    /// checks ended connections.
    pub fn turn<K: Keeper>(&mut self, now: Instant, watch: &mut Watch<K>) -> Result<(), HoldError> {
        while let Ok((socket, table)) = self.asked.try_recv() {
            self.take_table(socket, table, watch.hold().programs())?;
        }
        let (fresh, ended) = watch.stamped();
        for key in fresh {
            if let Some(stamped) = watch.hold().programs().stamps().get(&key)?
                && watch.may_send(&key.service())
            {
                self.tell(&key, &stamped);
            }
        }
        if now.saturating_duration_since(self.told_at) >= TELL {
            self.told_at = now;
            // A replica that may not send announces nothing, because others may have adopted its
            // connections.
            let speaks: Vec<_> = self.at.keys().filter(|service| watch.may_send(service)).copied().collect();
            self.look(now, &speaks, watch.hold().programs())?;
        }
        self.leave(now, watch)?;
        self.hints.flush();
        for Ended { key, of_dead, is_reset } in ended {
            if of_dead {
                // The kernel retransmits its FIN, so a connection may be reported twice.
                if self.ending.insert(key) {
                    self.early.push_back((now, now + DEATH, key));
                }
                continue;
            }
            // Resets of adopted connections come from this process, which announces them. The
            // kernel also sends one when a second answer to the probes arrives before the socket
            // exists; the BPF programs hold that back.
            let programs = watch.hold().programs();
            if is_reset && programs.stamps().get(&key)?.is_some_and(|stamped| stamped.adopted) {
                programs.take_withheld(&key)?;
            } else {
                self.give_up(&key, watch)?;
            }
        }
        self.judge(now, watch)?;
        let (services, at) = (&self.services, &self.at);
        self.lost.turn(now, watch.hold().programs(), &self.prober, |key| reading(services, at, key))
    }

    /// Searches for connections after their server's process died alone, as soon as a new process
    /// serves.
    fn judge<K: Keeper>(&mut self, now: Instant, watch: &mut Watch<K>) -> Result<(), HoldError> {
        let mut lives: HashMap<SocketAddr, bool> = HashMap::new();
        while let Some(&(since, at, key)) = self.early.front()
            && at <= now
        {
            self.early.pop_front();
            let service = key.service();
            if !self.ending.remove(&key) {
                continue;
            }
            let Some(stamped) = watch.hold().programs().stamps().named(&key)? else { continue };
            let accepts = || TcpStream::connect_timeout(&service, ACCEPT).is_ok();
            let lives = *lives.entry(service).or_insert_with(accepts);
            if !lives || !watch.may_send(&service) {
                if now.saturating_duration_since(since) < REVIVAL {
                    self.early.push_back((since, now + DEATH, key));
                    self.ending.insert(key);
                }
                continue;
            }
            let programs = watch.hold().programs();
            let hint = hint(&stamped);
            self.found.remove(&key);
            self.lost.look_for(key, Some(hint), None, now, programs)?;
            drop_here(&key, watch)?;
        }
        Ok(())
    }

    /// Announces all connections, and drops those that have ended.
    fn look(&mut self, now: Instant, speaks: &[SocketAddr], programs: &Trods) -> Result<(), HoldError> {
        self.hints.age(now);
        let (clock, mut over) = (clock(), Vec::new());
        let (hints, mut movable) = (&mut self.hints, 0);
        programs.stamps().each(|key, stamped| {
            movable += u64::from(leave::is_movable(&stamped));
            if clock.saturating_sub(stamped.heard) > IDLE {
                over.push(key);
            } else if !matches!(stamped.phase, Phase::Setup | Phase::Recorded)
                && speaks.contains(&key.service())
            {
                hints.tell(key, hint(&stamped));
            }
        });
        self.leaving.movable = movable;
        for key in over {
            programs.free(&key)?;
            programs.stamps().forget(&key)?;
        }
        self.found.retain(|key| programs.stamps().get(key).is_ok_and(|stamped| stamped.is_some()));
        Ok(())
    }

    fn tell(&mut self, key: &FlowKey, stamped: &Stamped) {
        self.hints.tell(*key, hint(stamped));
    }

    fn begin(&mut self, sockets: &[SocketAddr], named: &Named) -> Service {
        let stop = Arc::new(AtomicBool::new(false));
        if !sockets.is_empty() {
            let (netns, list) = (self.netns.clone(), named.list.clone());
            let (to, stopped) = (self.ask.clone(), Arc::clone(&stop));
            let (sockets, digests) = (sockets.to_vec(), self.digests.clone());
            let body = move || ask_again(&sockets, &list, &digests, &to, &stopped);
            let thread = std::thread::Builder::new().name("objects".into());
            if let Err(e) = thread.spawn(move || in_netns(netns.as_deref(), body)) {
                tracing::error!(error = %e, "the thread that requests the server's list of objects cannot be started");
            }
        }
        let (sockets, named, table) = (sockets.to_vec(), named.clone(), Arc::default());
        Service { sockets, named, table, number: 0, hunting: 0, stop }
    }

    fn take_table(&mut self, socket: SocketAddr, table: Table, programs: &Trods) -> Result<(), HoldError> {
        let Some(&n) = self.at.get(&socket) else { return Ok(()) };
        self.tables += 1;
        for row in table.rows() {
            let heads = row.known.each_ref().map(|known| known.as_ref().map(|k| k.head).unwrap_or_default());
            programs.stamps().add(self.tables, &row.host, &row.target, &heads)?;
        }
        tracing::info!(%socket, objects = table.rows().len(), version = table.version(), "the server's table");
        let before = std::mem::replace(&mut self.services[n].table, Arc::new(table));
        let number = std::mem::replace(&mut self.services[n].number, self.tables);
        self.issue(n, programs)?;
        remove(programs, &before, number)
    }

    /// Lets the BPF programs answer handshakes and, if the table in force is this replica's, name
    /// responses.
    fn issue(&self, n: usize, programs: &Trods) -> Result<(), HoldError> {
        let Service { named, table, number, hunting, .. } = &self.services[n];
        let Some((key, odd)) = named.keys.first() else { return Ok(()) };
        let is_in_force = named.in_force.is_none_or(|version| version == table.version());
        let table = if is_in_force { *number } else { 0 };
        let issuer = Issuer { key: [key.k0, key.k1], odd: *odd, table, hunting: *hunting, mss: named.mss };
        Ok(programs.stamps().set_issuer(n as u32 + 1, &issuer)?)
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        self.services.iter().for_each(|service| service.stop.store(true, Ordering::Relaxed));
    }
}

fn reading<'r>(
    services: &'r [Service],
    at: &HashMap<SocketAddr, usize>,
    key: &FlowKey,
) -> Option<Reading<'r>> {
    let service = services.get(*at.get(&key.service())?)?;
    let is_in_force = service.named.in_force.is_none_or(|version| version == service.table.version());
    is_in_force.then(|| Reading { keys: &service.named.keys, table: &service.table })
}

/// Drops a pinned or searched connection here; no segment reaches the client.
fn drop_here<K: Keeper>(key: &FlowKey, watch: &mut Watch<K>) -> Result<(), HoldError> {
    let programs = watch.hold().programs();
    programs.free(key)?;
    programs.stamps().forget(key)?;
    watch.abandon(key)
}

fn hint(stamped: &Stamped) -> Hint {
    let is_named = stamped.phase != Phase::Free;
    let Stamped { client_next, base, object, generation, .. } = *stamped;
    let quiet = hints::quiet(clock().saturating_sub(stamped.heard));
    Hint { client_next, base, object, is_named, generation, left_to: None, quiet }
}

fn remove(programs: &Trods, table: &Table, number: u32) -> Result<(), HoldError> {
    table.rows().iter().try_for_each(|row| Ok(programs.stamps().remove(number, &row.host, &row.target)?))
}

/// Requests the table from the server at intervals and sends new versions to `to`.
fn ask_again(sockets: &[SocketAddr], list: &str, digests: &Digests, to: &Sender<Asked>, stop: &AtomicBool) {
    let Some(&origin) = sockets.first() else { return };
    let (mut version, mut trouble) = (0, io::ErrorKind::Other);
    while !stop.load(Ordering::Relaxed) {
        match ask::table(sockets, list, digests, stop) {
            Ok(table) if table.version() != version => {
                version = table.version();
                if to.send((origin, table)).is_err() {
                    return;
                }
            }
            Ok(_) => {}
            Err(e) if e.kind() != trouble => {
                trouble = e.kind();
                tracing::warn!(error = %e, %origin, "the server's list of objects could not be read");
            }
            Err(_) => {}
        }
        // Short sleeps, so that the thread stops soon.
        let until = Instant::now() + if version == 0 { ASK / 20 } else { ASK };
        while Instant::now() < until && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
