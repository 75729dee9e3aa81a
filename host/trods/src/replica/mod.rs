//! A replica's part in TRODS as one thread: it protects connections of the configured services and
//! adopts those of dead replicas.

mod body;

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
    /// The store of records, of all connections or of those that timestamps do not name.
    pub store: Option<StoreConfig>,
    /// Keys that seal the records.
    pub keys: RecordKeys,
    /// Prefixes of the other replicas' records; their protected objects are digested here, too.
    pub others: Vec<String>,
    /// How timestamps name the responses of this service.
    pub named: Option<Named>,
}

/// A dead or excluded replica that announced its connections.
pub struct Gone {
    /// Number of the replica.
    pub replica: u8,
    /// The services.
    pub services: Vec<SocketAddr>,
    /// The replica that should get the client's segments to the service; `None` is this one.
    pub other: Box<dyn Fn(SocketAddr, SocketAddr) -> Option<Pin> + Send>,
    /// Whether this replica gets no connections for now.
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
    /// Of these, connections that ended with a reset of the client.
    pub refused: u64,
    /// These resets, by [reason](crate::adopt::Refusal::name).
    pub refusals: BTreeMap<&'static str, u64>,
    /// Connections that were resumed in the middle of an object of unknown digest.
    pub trusted: u64,
    /// Segments from clients that the server's window does not accept: they changed nothing.
    pub outside: u64,
    /// Answers with all of an object, of servers without ranges, that were read through.
    pub read_through: u64,
    /// Objects with a computed digest.
    pub digests: u64,
    /// Connections that were left to other replicas.
    pub moved: u64,
    /// Connections that are watched now: a record of each is in the store, or will be.
    pub watched: u64,
    /// Connections that timestamps name now, and those of them that have left without an adopter so
    /// far.
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

/// The thread, which ends when this is dropped.
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
    /// Absences that are over.
    back: Mutex<Vec<(u32, u64)>>,
    /// Time until which others adopt connections of the previous process.
    settles: Mutex<Option<Instant>>,
}

impl Replica {
    /// Loads the programs onto an interface, without any protected service. `wake` is for
    /// connections of others; [`Settings`] has it for the own ones. `issues`: there may be
    /// [named](Protected::named) services. Needs root, or `CAP_BPF`, `CAP_NET_ADMIN` and
    /// `CAP_NET_RAW`.
    ///
    /// # Errors
    /// What the kernel lacks, in words for the operator.
    pub fn start(interface: &Interface, wake: Wake, issues: bool) -> Result<Replica, HoldError> {
        in_netns(interface.netns(), repair::check)??;
        let hold = if issues { Hold::open_issuing(interface) } else { Hold::open(interface) }?;
        Replica::with(hold, interface, wake)
    }

    /// As [`Replica::start`], with names of programs in this folder ([`Hold::open_in`]).
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

    /// The process before this one had left all connections, and its replica was never excluded: what the kernel still has of
    /// others is their servers'.
    pub fn succeed(&self) {
        self.command(Command::Succeed);
    }

    /// Searches for the connections of a dead replica by its records.
    pub fn departed(&self, departed: Departed) {
        self.command(Command::Departed(departed));
    }

    /// Searches for the connections that a dead replica announced.
    pub fn departed_named(&self, gone: Gone) {
        self.command(Command::Gone(gone));
    }

    /// The version of the table of a service's objects; 0: no table yet.
    #[must_use]
    pub fn table(&self, service: &SocketAddr) -> u32 {
        let tables = self.shared.tables.lock().unwrap_or_else(PoisonError::into_inner);
        tables.get(service).copied().unwrap_or(0)
    }

    /// This replica was away, and others may have adopted its connections: these are handed on from
    /// now on and dropped here. [`Replica::back`] reports when the pins are complete.
    pub fn away(&self, absence: Absence) {
        self.command(Command::Away(absence));
    }

    /// Connections of these services go on elsewhere, as soon as another replica [follows](Replica::follow), and of no others;
    /// those that timestamps name without it, where there is no store.
    pub fn leave(&self, all: Vec<Leave>, named: Vec<LeaveNamed>) {
        self.command(Command::Leave(all, named));
    }

    /// These live replicas leave their connections. Each comes with this replica's index in the
    /// pool, under which it adopts those that it should get.
    pub fn follow(&self, all: Vec<(u8, Departed)>) {
        self.command(Command::Follow(all));
    }

    /// Absences with complete pins, since the last call.
    #[must_use]
    pub fn back(&self) -> Vec<(u32, u64)> {
        std::mem::take(&mut *self.shared.back.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether others have to adopt the previous process's connections first, whose timestamps the
    /// kernel does not know. Their clients retransmit within seconds.
    #[must_use]
    pub fn is_settling(&self) -> bool {
        let settles = self.shared.settles.lock().unwrap_or_else(PoisonError::into_inner);
        settles.is_some_and(|until| Instant::now() < until)
    }

    /// Sets the time until which services under a lease may send.
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
        // If the counter is full, the thread is awake already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}
