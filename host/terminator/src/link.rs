//! The terminator's connection to the agent of its host (`rivulet_trods::terminator`): sends
//! records to be stored, and receives the agent's answers and connections to adopt.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rivulet_trods::record::Handshake;
use rivulet_trods::terminator::{MAX_MESSAGE, Reply, Request};
use rivulet_trods::{Asked, Record, StoreOutcome};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, recvmsg, send, socket_with, sockopt,
};

use crate::counters::Counters;

/// Interval of attempts to reach the agent.
const RETRY: Duration = Duration::from_millis(200);
/// Interval of checks whether the agent has answered.
const LOOK: Duration = Duration::from_millis(2);
/// How long data that cannot be stored is held back after the agent was lost.
const ABSENCE: Duration = Duration::from_secs(3);
/// Messages that wait while the agent does not read. It reads them all within a millisecond unless
/// it hangs.
const MAX_WAITING: usize = 16_384;
/// Bytes of messages that the kernel keeps for the agent.
const BUFFER: usize = 1 << 20;

/// Another replica's connection, to be continued here.
#[derive(Debug)]
pub(crate) struct Adopted {
    pub(crate) socket: TcpStream,
    pub(crate) record: Record,
    pub(crate) acked: u32,
    pub(crate) sent: Option<u32>,
}

/// What the agent needs to watch a connection again after its restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) handshake: Handshake,
    /// Version of the record that was passed to the agent last.
    pub(crate) version: u32,
    /// Whether this replica adopted the connection.
    pub(crate) is_adopted: bool,
    /// Whether the present agent watches the connection.
    pub(crate) is_known: bool,
}

/// A message to a worker.
#[derive(Debug)]
pub(crate) enum Mail {
    Stored(Asked, StoreOutcome),
    /// What the agent knows of the connection with this number.
    Watched(u64, Box<Identity>),
    Adopted(Box<Adopted>),
    /// An agent has accepted this terminator.
    Attached,
    /// The connection to the agent is lost, and outstanding answers will not come.
    Lost,
}

/// The queue of messages for a worker.
#[derive(Debug)]
pub(crate) struct Mailbox {
    pub(crate) event: OwnedFd,
    mail: Mutex<Vec<Mail>>,
}

impl Mailbox {
    pub(crate) fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { event, mail: Mutex::default() })
    }

    fn put(&self, mail: Mail) {
        self.mail.lock().push(mail);
        // If the counter is full, the worker is awake already.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    pub(crate) fn take(&self) -> Vec<Mail> {
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        std::mem::take(&mut *self.mail.lock())
    }
}

#[derive(Debug, Default)]
struct Outbox {
    socket: Option<Arc<OwnedFd>>,
    waiting: VecDeque<Vec<u8>>,
}

/// The connection to the agent.
#[derive(Debug)]
pub(crate) struct Link {
    path: PathBuf,
    ports: Vec<u16>,
    outbox: Mutex<Outbox>,
    /// Event descriptor that wakes the thread.
    event: OwnedFd,
    is_attached: AtomicBool,
    closed: AtomicBool,
    /// When the connection to the agent was lost.
    lost_at: Mutex<Option<Instant>>,
    workers: Vec<Arc<Mailbox>>,
    pub(crate) counters: Arc<Counters>,
    stop: AtomicBool,
}

impl Link {
    /// Starts the thread that holds the connection to the agent at this path.
    pub(crate) fn start(
        path: &Path,
        ports: Vec<u16>,
        workers: Vec<Arc<Mailbox>>,
        counters: Arc<Counters>,
    ) -> io::Result<Attached> {
        let link = Arc::new(Self {
            path: path.to_owned(),
            ports,
            outbox: Mutex::default(),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            is_attached: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            lost_at: Mutex::default(),
            workers,
            counters,
            stop: AtomicBool::new(false),
        });
        let of_thread = link.clone();
        let thread = Builder::new().name("tls-agent".into()).spawn(move || of_thread.run())?;
        Ok(Attached { link, thread: Some(thread) })
    }

    /// Waits until the agent has accepted this terminator, or `longest` has passed.
    pub(crate) fn wait_for_agent(&self, longest: Duration) {
        let until = Instant::now() + longest;
        while !self.is_attached() && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
    }

    /// Whether connections that begin now can be protected.
    pub(crate) fn is_attached(&self) -> bool {
        self.is_attached.load(Ordering::Acquire)
    }

    /// Whether data that cannot be stored is held back instead of being sent unprotected.
    pub(crate) fn holds(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Whether the agent was lost so recently that it is probably starting again. Until it has, the
    /// ToR excludes this replica, so data that is held back meanwhile would not reach clients.
    pub(crate) fn awaits_agent(&self) -> bool {
        self.lost_at.lock().is_some_and(|at| at.elapsed() < ABSENCE)
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Queues a message to the agent. Returns false if there is no agent.
    pub(crate) fn send(&self, request: &Request) -> bool {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        let mut outbox = self.outbox.lock();
        let Some(socket) = outbox.socket.clone() else { return false };
        if outbox.waiting.is_empty()
            && send(&socket, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_ok()
        {
            return true;
        }
        // The thread sends the message when the agent reads again, or notices that the agent is
        // gone.
        if outbox.waiting.len() >= MAX_WAITING {
            return false;
        }
        outbox.waiting.push_back(bytes);
        drop(outbox);
        self.wake();
        true
    }

    /// Attaches to the agent, and again whenever the connection is lost, until the terminator
    /// stops.
    fn run(&self) {
        let mut next_worker = 0;
        while !self.stop.load(Ordering::Relaxed) {
            match self.attach() {
                Ok(socket) => {
                    let error = self.serve(&socket, &mut next_worker);
                    if self.is_attached.swap(false, Ordering::AcqRel) {
                        *self.lost_at.lock() = Some(Instant::now());
                    }
                    *self.outbox.lock() = Outbox::default();
                    self.workers.iter().for_each(|worker| worker.put(Mail::Lost));
                    if !self.stop.load(Ordering::Relaxed) {
                        tracing::warn!(path = %self.path.display(), "the connection to the agent is lost: {error}");
                    }
                }
                Err(error) => tracing::debug!(%error, path = %self.path.display(), "no agent"),
            }
            self.wait(None, RETRY);
        }
    }

    fn attach(&self) -> io::Result<Arc<OwnedFd>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(&self.path)?)?;
        // A smaller buffer only makes messages wait here.
        let _ = sockopt::set_socket_send_buffer_size_force(&socket, BUFFER);
        let socket = Arc::new(socket);
        let mut bytes = Vec::new();
        Request::Hello(self.ports.clone()).encode(&mut bytes);
        send(&socket, &bytes, SendFlags::NOSIGNAL)?;
        self.outbox.lock().socket = Some(socket.clone());
        Ok(socket)
    }

    fn wait(&self, socket: Option<(&OwnedFd, PollFlags)>, longest: Duration) {
        let mut fds = vec![PollFd::new(&self.event, PollFlags::IN)];
        fds.extend(socket.map(|(socket, events)| PollFd::new(socket, events)));
        let _ = poll(&mut fds, Timespec::try_from(longest).ok().as_ref());
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }

    /// Exchanges messages with the agent until the connection is lost.
    fn serve(&self, socket: &OwnedFd, next_worker: &mut usize) -> io::Error {
        let mut buffer = vec![0; MAX_MESSAGE];
        loop {
            if let Err(error) = self.flush(socket) {
                return error;
            }
            loop {
                match self.receive(socket, &mut buffer, next_worker) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => return error,
                }
            }
            if self.stop.load(Ordering::Relaxed) {
                return io::ErrorKind::Interrupted.into();
            }
            let mut events = PollFlags::IN;
            events.set(PollFlags::OUT, !self.outbox.lock().waiting.is_empty());
            self.wait(Some((socket, events)), Duration::from_secs(1));
        }
    }

    fn flush(&self, socket: &OwnedFd) -> io::Result<()> {
        let mut outbox = self.outbox.lock();
        while let Some(bytes) = outbox.waiting.front() {
            match send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(_) => outbox.waiting.pop_front(),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
        }
        Ok(())
    }

    /// Passes a message to the worker of the connection with this number.
    fn put(&self, connection: u64, mail: Mail) {
        if let Some(worker) = self.workers.get((connection >> 48) as usize) {
            worker.put(mail);
        }
    }

    /// Receives one message. Returns false if there is none.
    fn receive(&self, socket: &OwnedFd, buffer: &mut [u8], next_worker: &mut usize) -> io::Result<bool> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let got = match recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut ancillary, flags) {
            Ok(got) if got.bytes == 0 => return Err(io::ErrorKind::ConnectionAborted.into()),
            Ok(got) => got.bytes,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let mut sockets = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                sockets.extend(descriptors);
            }
        }
        match Reply::decode(&buffer[..got]).map_err(io::Error::other)? {
            Reply::Welcome { closed } => {
                self.closed.store(closed, Ordering::Relaxed);
                *self.lost_at.lock() = None;
                self.is_attached.store(true, Ordering::Release);
                tracing::info!(path = %self.path.display(), "attached to the agent");
                self.workers.iter().for_each(|worker| worker.put(Mail::Attached));
            }
            Reply::Watched { connection, handshake, version } => {
                let identity = Identity { handshake, version, is_adopted: false, is_known: true };
                self.put(connection, Mail::Watched(connection, Box::new(identity)));
            }
            Reply::Stored(asked, outcome) => self.put(asked.connection, Mail::Stored(asked, outcome)),
            Reply::Adopt { record, acked, sent } => {
                let socket =
                    sockets.pop().ok_or_else(|| io::Error::other("a connection without its socket"))?;
                *next_worker = (*next_worker + 1) % self.workers.len().max(1);
                if let Some(worker) = self.workers.get(*next_worker) {
                    let socket = TcpStream::from(socket);
                    worker.put(Mail::Adopted(Box::new(Adopted { socket, record: *record, acked, sent })));
                }
            }
        }
        Ok(true)
    }
}

/// A link and its thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) link: Arc<Link>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.link.stop.store(true, Ordering::Relaxed);
        self.link.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.event.as_fd()
    }
}
