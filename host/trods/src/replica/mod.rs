//! A replica's part in TRODS as one thread: it protects connections of the configured services and
//! adopts those of dead replicas.

mod body;
mod doubts;
mod terminators;

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rivulet_bpf::trods::{Lease, Leases, Pin};
use rivulet_pktio::repair;
use rivulet_pktio::{Interface, in_netns};
use rustix::event::{EventfdFlags, eventfd};

use crate::digest::Digests;
use crate::flow::{Settings, Wake};
use crate::hold::{Absence, Departed, Hold, HoldError, Leave, Rescue, Stores, Watch};
use crate::store::{RecordKeys, StoreConfig};
use crate::terminator::Door;
use crate::ts::{LeaveNamed, Named};
use body::Body;

/// A protected service.
#[derive(Clone, Debug)]
pub struct Protected {
    /// Addresses and port of the service.
    pub sockets: Vec<SocketAddr>,
    /// Index of its lease ([`Replica::set_lease`]).
    pub lease: u32,
    /// How its connections are protected.
    pub settings: Settings,
    /// The store of records: of all connections, or of those that timestamps do not name.
    pub store: Option<StoreConfig>,
    /// Keys that seal the records.
    pub keys: RecordKeys,
    /// Prefixes of the other replicas' records. This replica also computes the digests of the
    /// objects that they protect.
    pub others: Vec<String>,
    /// How timestamps name the responses of this service; `None`: records alone protect it.
    pub named: Option<Named>,
}

/// A dead or excluded replica that had announced its connections.
pub struct Gone {
    /// Number of the replica.
    pub replica: u8,
    /// Services with the connections that it had announced.
    pub services: Vec<SocketAddr>,
    /// The replica to which the ToR should send the client's segments to the service; `None` is
    /// this one.
    pub other: Box<dyn Fn(SocketAddr, SocketAddr) -> Option<Pin> + Send>,
    /// The ToR sends this replica no connections now, so it adopts none.
    pub waits: bool,
}

/// Numbers of connections since the start, by outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections of which a record was stored.
    pub protected: u64,
    /// Connections that were not protected to their end, by [reason](Reason::name).
    pub unprotected: BTreeMap<&'static str, u64>,
    /// Connections of other replicas that were resumed here.
    pub adopted: u64,
    /// Of the adopted ones, connections that ended with a reset of the client.
    pub refused: u64,
    /// Resets of adopted connections' clients, by [reason](crate::adopt::Refusal::name).
    pub refusals: BTreeMap<&'static str, u64>,
    /// Adopted connections that were resumed in the middle of an object of unknown digest
    /// (`unknown: trust`).
    pub trusted: u64,
    /// Segments from clients that were dropped because their numbers are outside of the window.
    pub outside: u64,
    /// Answers, by servers without range support, that were read from the object's first byte up to
    /// the client's place.
    pub read_through: u64,
    /// Number of computed digests of objects.
    pub digests: u64,
    /// Connections that left for other replicas in planned moves.
    pub moved: u64,
    /// Connections that are watched now: each has a record in the store, or will have one.
    pub watched: u64,
    /// Connections that timestamps name now; and those of them that left and have no adopter yet.
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
    Terminators(Door),
}

/// Handle of the thread, which ends when this is dropped.
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
    /// Versions of the tables of services with named connections.
    tables: Mutex<HashMap<SocketAddr, u32>>,
    /// Absences after which the pins are complete.
    back: Mutex<Vec<(u32, u64)>>,
    /// Time until which other replicas adopt the former process's connections.
    settles: Mutex<Option<Instant>>,
}

impl Replica {
    /// Loads the BPF programs onto an interface, without any protected service. `wake` applies to
    /// connections of other replicas; [`Settings`] has it for this replica's own. `issues`: there
    /// may be [named](Protected::named) services. Needs root, or `CAP_BPF`, `CAP_NET_ADMIN` and
    /// `CAP_NET_RAW`.
    ///
    /// # Errors
    /// What the kernel lacks, in words for the operator.
    pub fn start(interface: &Interface, wake: Wake, issues: bool) -> Result<Replica, HoldError> {
        in_netns(interface.netns(), repair::check)??;
        let hold = if issues { Hold::open_issuing(interface) } else { Hold::open(interface) }?;
        Replica::with(hold, interface, wake)
    }

    /// Like [`Replica::start`], with names of running programs in `folder` ([`Hold::open_in`]).
    ///
    /// # Errors
    /// As for [`Replica::start`].
    pub fn start_in(
        folder: &Path,
        interface: &Interface,
        wake: Wake,
        issues: bool,
    ) -> Result<Replica, HoldError> {
        in_netns(interface.netns(), repair::check)??;
        Replica::with(Hold::open_in(folder, interface, issues)?, interface, wake)
    }

    fn with(hold: Hold, interface: &Interface, wake: Wake) -> Result<Replica, HoldError> {
        let leases = hold.programs().leases()?;
        let rescue = Rescue::new(interface.netns(), wake)?;
        let digests = Digests::default();
        let mut stores = Stores::default();
        stores.set_digests(&digests);
        let watch = Watch::new(hold, stores)?;
        let worker = digests.start(interface.netns().map(str::to_owned))?;
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
            let _worker = worker;
            let mut body = Body::new(netns.clone(), watch, rescue, digests, receive, of_thread);
            if let Err(e) = in_netns(netns.as_deref(), || body.run()) {
                tracing::error!(error = %e, "connections are not protected any more");
            }
        })?;
        Ok(Replica { commands, leases, shared, thread: Some(thread) })
    }

    /// Protects exactly these services from now on.
    pub fn protect(&self, services: Vec<Protected>) {
        self.command(Command::Services(services));
    }

    /// Declares that the former process left all its connections to other replicas, and that this
    /// replica was never excluded: connections that the kernel still has are their servers' own.
    pub fn succeed(&self) {
        self.command(Command::Succeed);
    }

    /// Lets TLS terminators of this host in by this door: the connections of their ports are theirs from now on.
    pub fn open_door(&self, door: Door) {
        self.command(Command::Terminators(door));
    }

    /// Searches for the connections of a dead replica by its records.
    pub fn departed(&self, departed: Departed) {
        self.command(Command::Departed(departed));
    }

    /// Searches for the connections that a dead replica announced.
    pub fn departed_named(&self, gone: Gone) {
        self.command(Command::Gone(gone));
    }

    /// The version of the table of a service's objects; 0: the server's list was not read yet.
    #[must_use]
    pub fn table(&self, service: &SocketAddr) -> u32 {
        let tables = self.shared.tables.lock().unwrap_or_else(PoisonError::into_inner);
        tables.get(service).copied().unwrap_or(0)
    }

    /// Declares that this replica was excluded, and others may have adopted its connections: their
    /// segments are forwarded from now on, and their state here is dropped. [`Replica::back`]
    /// reports when the pins are complete.
    pub fn away(&self, absence: Absence) {
        self.command(Command::Away(absence));
    }

    /// Moves the connections of these services, and of no others, to other replicas that
    /// [follow](Replica::follow). `named`: services with named connections that move; without a
    /// store these need no follower.
    pub fn leave(&self, all: Vec<Leave>, named: Vec<LeaveNamed>) {
        self.command(Command::Leave(all, named));
    }

    /// Sets the live replicas that are being drained. Each comes with this replica's index in the
    /// pool, under which it adopts connections that the ToR will send to it.
    pub fn follow(&self, all: Vec<(u8, Departed)>) {
        self.command(Command::Follow(all));
    }

    /// The absences after which the pins are complete, since the last call.
    #[must_use]
    pub fn back(&self) -> Vec<(u32, u64)> {
        std::mem::take(&mut *self.shared.back.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether other replicas must first adopt the former process's connections, because the kernel
    /// does not know their timestamps. Their clients retransmit within seconds.
    #[must_use]
    pub fn is_settling(&self) -> bool {
        let settles = self.shared.settles.lock().unwrap_or_else(PoisonError::into_inner);
        settles.is_some_and(|until| Instant::now() < until)
    }

    /// Sets the lease with this index.
    pub fn set_lease(&self, number: u32, lease: Lease) {
        if let Err(e) = self.leases.set(number, lease) {
            tracing::error!(error = %e, "a lease cannot be set");
        }
    }

    /// Numbers of connections since the start, by outcome.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn command(&self, command: Command) {
        // A thread that ended has reported why.
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
        // A full counter means that a wake-up is already pending.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}
