//! The TLS terminator: HTTPS from clients, plain HTTP/1.1 to one server, which need not know of it.
//!
//! The handshake is rustls's. Behind it, a connection of TLS 1.3 has records of our own, cut by the rule of
//! [`rivulet_tls::Response`]: another replica that knows the connection's [`ConnectionState`] makes the same bytes again
//! from any place on. TLS 1.2 is served by rustls alone.
//!
//! [`Terminator::start`] is the way in. `worker` has the threads, `connection` and `relay` the sockets of one connection,
//! `handshake` its beginning, `channel` its records, `exchange` its HTTP, `files` and `tickets` the configuration.

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

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// For how long the agent is awaited before clients are let in.
const FIRST_ATTACH: Duration = Duration::from_millis(500);
/// Between two looks at the files.
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
    /// Connections at a time.
    pub max_connections: usize,
    /// How long a connection may take.
    pub limits: TimeLimits,
    /// Number of threads.
    pub workers: usize,
    /// Gets the state of each connection of TLS 1.3.
    pub observer: Option<Arc<dyn Observer>>,
    /// Socket of the agent that protects the connections of TLS 1.3.
    pub agent: Option<PathBuf>,
}

/// A terminator cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A certificate, key or file of ticket keys.
    #[error(transparent)]
    File(#[from] FileError),
    /// An address where nothing can listen.
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

/// A terminator that runs. It ends when it is dropped.
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
            // A client that came first would not be protected.
            attached.link.wait_for_agent(FIRST_ATTACH);
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

    /// The addresses where it listens.
    ///
    /// # Errors
    /// The system's.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.shared.listeners.iter().map(TcpListener::local_addr).collect()
    }

    /// Uses these files and ticket keys for new connections.
    ///
    /// # Errors
    /// A file that cannot be used. The configuration of before stays in force until the file has changed.
    pub fn set_files(&self, files: Files) -> Result<(), FileError> {
        self.shared.reload.replace(files)
    }

    /// Why the newest files are not in force, if they are not.
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

    /// Accepts no more connections, ends idle ones, gives requests ten seconds, and returns when all have ended.
    ///
    /// # Errors
    /// Why a thread ended.
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
