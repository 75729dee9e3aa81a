//! The TLS terminator: accepts HTTPS from clients and forwards plain HTTP/1.1 to one server, which
//! need not support TLS.
//!
//! rustls does the handshake. After it, this crate makes the records of a TLS 1.3 connection by the
//! rule of [`rivulet_tls::Response`]. Another replica that knows the [`ConnectionState`] can make
//! the same bytes again, from any position on. rustls serves TLS 1.2 alone.
//!
//! [`Terminator::start`] is the entry point. `worker` has the threads, `connection` and `relay` the
//! sockets of a connection, `handshake` its handshake, `channel` its records, `exchange` its HTTP;
//! `files` and `tickets` have the configuration.

#![forbid(unsafe_code)]

mod buffer;
mod channel;
mod connection;
mod counters;
mod exchange;
mod file_error;
mod files;
mod gauge;
mod handshake;
mod head;
mod limits;
mod link;
mod protect;
mod proxy_header;
mod relay;
mod reload;
mod resume;
mod shared;
mod socket;
mod state;
mod subject;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
mod tickets;
mod track;
mod worker;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

pub use counters::{Counters, Totals};
pub use file_error::FileError;
pub use files::{Certificate, Files};
pub use head::Forwarded;
pub use limits::TimeLimits;
pub use state::{ConnectionState, Direction, Observer, ResponsePlace};
pub use tickets::TicketKey;

use link::{Attached, Link, Mailbox};
use reload::Reload;
use shared::Shared;
use worker::Worker;

/// Length of the listen queue.
const BACKLOG: i32 = 1024;
/// How long to wait for the agent before clients are accepted, unless the caller knows that there is none.
pub const FIRST_ATTACH: Duration = Duration::from_millis(500);
/// Interval at which the files are checked for changes.
const RELOAD: Duration = Duration::from_secs(1);

/// Configuration of a terminator.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses for clients.
    pub listen: Vec<SocketAddr>,
    /// The server of plain HTTP.
    pub server: SocketAddr,
    /// Certificates and keys.
    pub files: Files,
    /// How the server learns the client's address.
    pub forwarded: Forwarded,
    /// Most connections at a time.
    pub max_connections: usize,
    /// Time limits of a connection.
    pub limits: TimeLimits,
    /// Number of threads.
    pub workers: usize,
    /// Gets the state of each connection of TLS 1.3.
    pub observer: Option<Arc<dyn Observer>>,
    /// Socket of the agent that protects the connections of TLS 1.3.
    pub agent: Option<PathBuf>,
    /// How long to wait for the agent before clients are accepted: connections that begin before are not protected.
    pub agent_patience: Duration,
}

/// Why a terminator cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A certificate, key or file of ticket keys cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// An address cannot be listened on.
    #[error("cannot listen at {address}: {error}")]
    Listen {
        /// The address on which the terminator cannot listen.
        address: SocketAddr,
        /// The error of the system call.
        error: io::Error,
    },
    /// Another system call failed.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// A running terminator. Dropping it ends it.
pub struct Terminator {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<io::Result<()>>>,
    reload: Option<JoinHandle<()>>,
    link: Option<Attached>,
}

impl Terminator {
    /// Reads the files, listens, and starts the threads that serve.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(config: Config) -> Result<Self, StartError> {
        let own_tickets = rustls::crypto::ring::Ticketer::new().map_err(io::Error::other)?;
        let reload = Reload::new(config.files, own_tickets)?;
        let mailboxes = (0..config.workers.max(1))
            .map(|_| Mailbox::new().map(Arc::new))
            .collect::<io::Result<Vec<_>>>()?;
        let ports = config.listen.iter().map(SocketAddr::port).collect();
        let counters = Arc::<Counters>::default();
        let start = |path: PathBuf| Link::start(&path, ports, mailboxes.clone(), counters.clone());
        let link = config.agent.map(start).transpose()?;
        if let Some(attached) = &link {
            // A connection that begins before would not be protected.
            attached.link.wait_for_agent(config.agent_patience);
        }
        let listeners = config
            .listen
            .iter()
            .map(|&address| listen_at(address).map_err(|error| StartError::Listen { address, error }))
            .collect::<Result<_, _>>()?;
        let shared = Arc::new(Shared {
            listeners,
            server: config.server,
            forwarded: config.forwarded,
            max_connections: config.max_connections,
            scarce_limits: config.limits.under_pressure(),
            limits: config.limits,
            reload,
            counters,
            observer: config.observer,
            link: link.as_ref().map(|attached| attached.link.clone()),
            stop: AtomicBool::new(false),
        });
        let mut terminator = Self { shared: shared.clone(), workers: Vec::new(), reload: None, link };
        for (n, mailbox) in mailboxes.into_iter().enumerate() {
            let worker = Worker::new(shared.clone(), n, mailbox)?;
            let thread = Builder::new().name(format!("tls-{n}")).spawn(move || worker.run())?;
            terminator.workers.push(thread);
        }
        let watch = move || {
            while !shared.stop.load(Ordering::Relaxed) {
                std::thread::park_timeout(RELOAD);
                shared.reload.look();
            }
        };
        terminator.reload = Some(Builder::new().name("tls-files".into()).spawn(watch)?);
        Ok(terminator)
    }

    /// The addresses on which the terminator listens.
    ///
    /// # Errors
    /// An operating system error.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.shared.listeners.iter().map(TcpListener::local_addr).collect()
    }

    /// Uses these files and ticket keys for new connections.
    ///
    /// # Errors
    /// A file cannot be used. The former configuration stays in force until the file has changed.
    pub fn set_files(&self, files: Files) -> Result<(), FileError> {
        self.shared.reload.replace(files)
    }

    /// Why the newest files are not in force; `None` if they are.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        self.shared.reload.problem()
    }

    /// The terminator's counters.
    #[must_use]
    pub fn counters(&self) -> Arc<Counters> {
        self.shared.counters.clone()
    }

    /// Whether a thread has ended before [`stop`](Self::stop).
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.workers.iter().any(JoinHandle::is_finished)
    }

    /// Stops accepting connections, ends idle ones, gives requests in progress ten seconds, and
    /// returns when all have ended.
    ///
    /// # Errors
    /// The error with which a thread ended.
    pub fn stop(mut self) -> io::Result<()> {
        self.end()
    }

    fn end(&mut self) -> io::Result<()> {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(reload) = self.reload.take() {
            reload.thread().unpark();
            let _ = reload.join();
        }
        let results = self.workers.drain(..).map(|worker| {
            worker.join().unwrap_or_else(|_| Err(io::Error::other("a worker of the terminator panicked")))
        });
        let result = results.collect::<Vec<_>>().into_iter().collect();
        // The last connections have reported their ends by now.
        self.link = None;
        result
    }
}

impl Drop for Terminator {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

fn listen_at(address: SocketAddr) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}
