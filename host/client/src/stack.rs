//! The handle to a stack thread.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::Mutex;
use rivulet_pktio::{IoChoice, IoError, OpenError};
use rivulet_transport::Time;
use rivulet_transport::client::{Config, Connection};

use crate::connection::Shared;
use crate::destinations::{Destination, Destinations};
use crate::driver::Driver;
use crate::next_hop::{self, NextHop, ResolveError};
use crate::port::LocalPort;
use crate::stream::Stream;
use crate::wake::Waker;

/// Connections that one stack carries at the same time.
pub const MAX_CONNECTIONS: usize = 16_384;

/// Why a connection cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There is no way to the destination.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The destination is an address of this machine; there is no link between it and itself.
    #[error("{0} is an address of this machine: use another network namespace, or plain TCP")]
    Local(IpAddr),
    /// No local port is free, or the kernel's TCP cannot be kept from answering for it.
    #[error("no local port on {0}: {1}")]
    Port(IpAddr, #[source] io::Error),
    /// The interface cannot be opened for packets.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The interface does not say what it is.
    #[error(transparent)]
    Link(#[from] IoError),
    /// The stack has as many connections as it carries.
    #[error("the stack carries {MAX_CONNECTIONS} connections already")]
    TooMany,
    /// The stack thread has ended.
    #[error("the stack thread has ended")]
    Ended,
}

impl ConnectError {
    /// The errno that connect(2) gives for it.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            ConnectError::Resolve(ResolveError::NoRoute(..)) => libc::ENETUNREACH,
            ConnectError::Resolve(_) => libc::EHOSTUNREACH,
            ConnectError::Local(_) => libc::EADDRNOTAVAIL,
            ConnectError::Port(_, e) => e.raw_os_error().unwrap_or(libc::EADDRNOTAVAIL),
            ConnectError::Open(_) => libc::EPERM,
            ConnectError::Link(_) => libc::ENETDOWN,
            ConnectError::TooMany | ConnectError::Ended => libc::ENOBUFS,
        }
    }
}

/// A connection on its way to the stack thread.
pub(crate) struct Opened {
    pub shared: Arc<Shared>,
    pub hop: NextHop,
}

/// What application threads and the stack thread share.
pub(crate) struct Mailbox {
    pub waker: Waker,
    pub opened: Mutex<VecDeque<Opened>>,
    /// Connections whose application did something.
    pub touched: Mutex<Vec<u32>>,
    pub stop: AtomicBool,
    pub ended: AtomicBool,
    started: Instant,
}

impl Mailbox {
    /// Microseconds of this stack's clock.
    pub fn now(&self) -> Time {
        Time(self.started.elapsed().as_micros() as u64)
    }

    /// Notes that connection `id` has something to do.
    pub fn touch(&self, id: u32) {
        self.touched.lock().push(id);
        self.waker.wake();
    }
}

/// A stack: one thread, any number of connections. The thread ends with the last handle, streams included.
#[derive(Clone)]
pub struct Stack {
    inner: Arc<Inner>,
}

struct Inner {
    mailbox: Arc<Mailbox>,
    thread: Mutex<Option<JoinHandle<()>>>,
    next_id: Mutex<u32>,
    interfaces: crate::interfaces::Interfaces,
    destinations: Destinations,
    config: Config,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.mailbox.stop.store(true, Ordering::Release);
        self.mailbox.waker.wake();
        if let Some(thread) = self.thread.lock().take() {
            // A panic there was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Stack {
    /// Starts the thread. Nothing else is set up before the first connection.
    pub fn start() -> io::Result<Stack> {
        Stack::with_config(Config::default())
    }

    /// As [`start`](Self::start) with a configuration for every connection; its MTU and seed are not looked at.
    pub fn with_config(config: Config) -> io::Result<Stack> {
        Stack::with_io(config, IoChoice::default())
    }

    /// As [`with_config`](Self::with_config), with a choice of what moves the packets. An interface for which it cannot be
    /// had is an error of [`connect`](Self::connect).
    pub fn with_io(config: Config, io: IoChoice) -> io::Result<Stack> {
        let mailbox = Arc::new(Mailbox {
            waker: Waker::new()?,
            opened: Mutex::default(),
            touched: Mutex::default(),
            stop: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            started: Instant::now(),
        });
        let interfaces = crate::interfaces::Interfaces::new(io);
        let destinations = Destinations::default();
        let driver = Driver::new(mailbox.clone(), interfaces.clone(), destinations.clone());
        let thread = std::thread::Builder::new().name("rivulet-stack".into()).spawn(move || driver.run())?;
        let thread = Mutex::new(Some(thread));
        let inner = Inner { mailbox, thread, next_id: Mutex::new(0), interfaces, destinations, config };
        Ok(Stack { inner: Arc::new(inner) })
    }

    /// What earlier connections of this stack learned about a destination, none if nothing or too long ago.
    #[must_use]
    pub fn destination(&self, remote: SocketAddr) -> Option<Destination> {
        self.inner.destinations.get(remote)
    }

    /// Opens a connection to `remote`. Returns as soon as the way there is known; the first data written
    /// travels with the SYN, which is sent bare if nothing is written for [`Stream::connect_now`]'s call.
    /// Blocks for neighbour discovery at most.
    pub fn connect(&self, remote: SocketAddr) -> Result<Stream, ConnectError> {
        self.connect_from(remote, None)
    }

    /// As [`connect`](Self::connect), from a local address or port (0: any) of the caller's choice.
    pub fn connect_from(
        &self,
        remote: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Result<Stream, ConnectError> {
        let mailbox = &self.inner.mailbox;
        if mailbox.ended.load(Ordering::Acquire) {
            return Err(ConnectError::Ended);
        }
        let mut hop = next_hop::resolve(remote.ip())?;
        if hop.mac == [0; 6] {
            return Err(ConnectError::Local(remote.ip()));
        }
        let source =
            local.map(|a| a.ip()).filter(|ip| !ip.is_unspecified() && ip.is_ipv4() == remote.is_ipv4());
        let source = source.unwrap_or(hop.source);
        let wanted = SocketAddr::new(source, local.map_or(0, |a| a.port()));
        let port = LocalPort::reserve(wanted, remote).map_err(|e| ConnectError::Port(source, e))?;
        let link = self.inner.interfaces.prepare(&mut hop, source, port.address().port())?;
        let mtu = if hop.mtu == 0 { link.mtu } else { link.mtu.min(hop.mtu) };

        let destinations = &self.inner.destinations;
        let known = destinations.get(remote).and_then(|d| d.path_mtu).map_or(mtu, u32::from);
        let mtu = mtu.min(known).clamp(576, 9216) as u16;
        let config = self.inner.config.clone();
        let token = destinations.take_token(remote).or_else(|| config.token.clone());
        let config = Config { mtu, token, seed: seed(), ..config };
        let now = mailbox.now();
        let connection = Connection::open(config, port.address(), remote, now);
        let id = {
            let mut next = self.inner.next_id.lock();
            *next = next.wrapping_add(1);
            *next
        };
        let shared = Arc::new(Shared::new(id, mailbox.clone(), connection, port, remote));
        {
            let mut opened = mailbox.opened.lock();
            if opened.len() >= MAX_CONNECTIONS {
                drop(opened);
                self.inner.interfaces.give_up(&hop, shared.local.port());
                return Err(ConnectError::TooMany);
            }
            opened.push_back(Opened { shared: shared.clone(), hop });
        }
        mailbox.waker.wake();
        Ok(Stream::new(shared, self.clone()))
    }
}

/// Randomness for one connection's ISN and timestamps.
fn seed() -> u64 {
    let mut octets = [0u8; 8];
    // SAFETY: pointer and length are those of the array; so few octets are never cut short, and were there
    // none the numbers would be guessable, not wrong.
    unsafe { libc::getrandom(octets.as_mut_ptr().cast(), octets.len(), 0) };
    u64::from_ne_bytes(octets)
}
