//! The thread that serves all adopted connections of a replica.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rivulet_pktio::repair::{Connection, RepairError};
use rivulet_pktio::transparent;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

use super::origin::Ends;
use super::{AdoptConfig, Adoption, Refusal, Turn};
use crate::flow::AdoptAs;
use crate::record::{Record, Tuple};

/// Interval of the checks for timeouts.
const LOOK: Duration = Duration::from_millis(50);
/// Epoll key of the descriptor that wakes the thread. Connections have smaller keys.
const WAKE: u64 = u64::MAX;

/// How an adopted connection ended.
#[derive(Debug)]
pub enum Outcome {
    /// The client got everything and closed.
    Over,
    /// The connection was idle for too long and was closed.
    Idle,
    /// This replica sent the client a RST, for this reason.
    Refused(Refusal),
}

/// Totals since the start of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sockets that the kernel made.
    pub adopted: u64,
    /// Adopted connections that ended with a reset of the client.
    pub refused: u64,
    /// Connections resumed in the middle of an object of unknown digest (`unknown: trust`).
    pub trusted: u64,
    /// Answers by servers without range support that were read from the object's first byte up to
    /// the client's place.
    pub read_through: u64,
}

#[derive(Debug, Default)]
struct Shared {
    adopted: AtomicU64,
    refused: AtomicU64,
    trusted: AtomicU64,
    read_through: AtomicU64,
    refusals: Mutex<BTreeMap<&'static str, u64>>,
    stop: AtomicBool,
}

/// Handle of the thread that serves a replica's adopted connections.
#[derive(Debug)]
pub struct Adopters {
    send: Sender<Adoption>,
    wake: Arc<OwnedFd>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Adopters {
    /// Starts the thread, in the calling thread's network namespace. It reports each connection
    /// that has ended on `ended`.
    ///
    /// # Errors
    /// A system call fails.
    pub fn start(mut config: AdoptConfig, ended: Sender<(Tuple, Outcome)>) -> io::Result<Adopters> {
        if config.adopt_as == AdoptAs::Client
            && let Err(e) = transparent::prepare(config.origin.ip())
        {
            tracing::error!(error = %e, "connections cannot be adopted as their clients': they are reset");
            config.carries = false;
        }
        let (send, receive) = channel();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &*wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        let shared = Arc::new(Shared::default());
        let mut engine = Engine {
            config,
            epoll,
            receive,
            ended,
            wake: wake.clone(),
            shared: shared.clone(),
            count: 0,
            connections: HashMap::new(),
            spare: None,
        };
        let thread = std::thread::Builder::new().name("adopters".into()).spawn(move || engine.run())?;
        Ok(Adopters { send, wake, shared, thread: Some(thread) })
    }

    /// Makes the kernel take over a connection, in the calling thread's network namespace, and
    /// serves it. The record must not be unprotected, and must have been stored under this
    /// replica's name; `connection` is the result of [`wake::connection`](crate::wake::connection).
    /// `sent`: end of the data that the client had sent by then, if known; a request before it that
    /// must not be executed twice resets the client. Bytes that the client holds behind holes are
    /// sent again: the BPF programs bound its acknowledgements accordingly
    /// (`host/bpf/src/bpf/beyond.h`).
    ///
    /// # Errors
    /// [`RepairError`]: the kernel refused the connection's state.
    pub fn adopt(
        &self,
        record: Record,
        connection: &Connection,
        sent: Option<u32>,
    ) -> Result<(), RepairError> {
        let adoption = Adoption::begin(record, connection, sent, Instant::now())?;
        self.shared.adopted.fetch_add(1, Ordering::Relaxed);
        if self.send.send(adoption).is_err() {
            return Err(RepairError {
                step: "the thread of adopters",
                source: io::ErrorKind::BrokenPipe.into(),
            });
        }
        self.wake();
        Ok(())
    }

    /// Totals of adopted connections since the start of the process.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Shared { adopted, refused, trusted, read_through, .. } = &*self.shared;
        let (adopted, refused) = (get(adopted), get(refused));
        Counts { adopted, refused, trusted: get(trusted), read_through: get(read_through) }
    }

    /// Number of client resets for each [`Refusal::name`].
    #[must_use]
    pub fn refusals(&self) -> BTreeMap<&'static str, u64> {
        self.shared.refusals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn wake(&self) {
        // A full counter means that a wake-up is already pending.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Adopters {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of adopted connections panicked");
        }
    }
}

struct Entry {
    adoption: Adoption,
    tuple: Tuple,
    /// The events for which each descriptor is registered with epoll. The second descriptor is the
    /// current connection to the server.
    waits: [Option<(RawFd, EventFlags)>; 2],
    origins: u32,
}

struct Engine {
    config: AdoptConfig,
    epoll: OwnedFd,
    receive: Receiver<Adoption>,
    ended: Sender<(Tuple, Outcome)>,
    wake: Arc<OwnedFd>,
    shared: Arc<Shared>,
    count: u64,
    connections: HashMap<u64, Entry>,
    /// An empty pipe that connections borrow in turn, so that only connections with data in a pipe
    /// hold descriptors.
    spare: Option<Ends>,
}

impl Engine {
    fn run(&mut self) {
        let mut events = Vec::with_capacity(256);
        let mut look_at = Instant::now() + LOOK;
        let mut due = Vec::new();
        while !self.shared.stop.load(Ordering::Relaxed) {
            events.clear();
            let wait = look_at.saturating_duration_since(Instant::now());
            let wait = Timespec { tv_sec: 0, tv_nsec: wait.as_nanos() as _ };
            // Without connections there are no timeouts to check.
            let wait = if self.connections.is_empty() { None } else { Some(&wait) };
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), wait) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => {
                    tracing::error!("adopted connections cannot be waited for: {e}");
                    return;
                }
            }
            due.extend(events.iter().map(|event: &Event| event.data.u64()));
            if due.contains(&WAKE) {
                // Empties the eventfd. The number of wake-ups in it is irrelevant.
                let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
                self.take_up(&mut due);
            }
            let now = Instant::now();
            if now >= look_at {
                look_at = now + LOOK;
                let late =
                    |(n, entry): (&u64, &Entry)| (entry.adoption.deadline(&self.config) <= now).then_some(*n);
                due.extend(self.connections.iter().filter_map(late));
            }
            for n in due.drain(..) {
                self.turn(n, now);
            }
        }
    }

    fn take_up(&mut self, due: &mut Vec<u64>) {
        while let Ok(adoption) = self.receive.try_recv() {
            self.count += 1;
            let tuple = adoption.tuple();
            self.connections.insert(self.count, Entry { adoption, tuple, waits: [None, None], origins: 0 });
            due.push(self.count);
        }
    }

    fn turn(&mut self, n: u64, now: Instant) {
        let Some(entry) = self.connections.get_mut(&n) else { return };
        entry.adoption.pipe.borrow(&mut self.spare);
        let turn = entry.adoption.turn(&self.config, now);
        entry.adoption.pipe.give_back(&mut self.spare);
        if std::mem::take(&mut entry.adoption.is_trusted) {
            self.shared.trusted.fetch_add(1, Ordering::Relaxed);
        }
        if entry.adoption.read_through.take().is_some() {
            self.shared.read_through.fetch_add(1, Ordering::Relaxed);
        }
        let outcome = match turn {
            Turn::Waits => match entry.wait(&self.epoll, n) {
                Ok(()) => return,
                Err(e) => {
                    tracing::warn!("an adopted connection cannot be waited for: {e}");
                    Outcome::Over
                }
            },
            Turn::Over => Outcome::Over,
            Turn::Idle => Outcome::Idle,
            Turn::Refused(refusal) => {
                self.shared.refused.fetch_add(1, Ordering::Relaxed);
                let mut refusals = self.shared.refusals.lock().unwrap_or_else(PoisonError::into_inner);
                *refusals.entry(refusal.name()).or_default() += 1;
                tracing::debug!(client = %entry.tuple.client, "not adopted: {refusal}");
                Outcome::Refused(refusal)
            }
        };
        if let Some(Entry { adoption, tuple, .. }) = self.connections.remove(&n) {
            // A reset by this process is announced before the kernel sends it: the programs hold
            // back a RST that was not announced, and the client would wait forever. At any other
            // end the kernel's segments come first.
            let adoption = Some(adoption).filter(|_| matches!(outcome, Outcome::Refused(_)));
            // The error means that no receiver wants the report any more.
            let _ = self.ended.send((tuple, outcome));
            drop(adoption);
        }
    }
}

impl Entry {
    /// Registers the connection's descriptors with epoll for the events that it waits for.
    fn wait(&mut self, epoll: &OwnedFd, n: u64) -> io::Result<()> {
        // A new connection to the server may reuse the old one's descriptor number, and closing the
        // old descriptor removed it from epoll.
        if self.origins != self.adoption.origins() {
            self.origins = self.adoption.origins();
            self.waits[1] = None;
        }
        for (wanted, waits) in self.adoption.interests().into_iter().zip(&mut self.waits) {
            let wanted = wanted.map(|(fd, reads, writes)| {
                let mut flags = EventFlags::empty();
                flags.set(EventFlags::IN, reads);
                flags.set(EventFlags::OUT, writes);
                (fd, flags)
            });
            let data = EventData::new_u64(n);
            match (wanted, *waits) {
                (Some((fd, flags)), Some((before, had))) if before == fd.as_raw_fd() && flags == had => {}
                (Some((fd, flags)), _) => set(epoll, fd, data, flags)?,
                (None, _) => {}
            }
            *waits = wanted.map(|(fd, flags)| (fd.as_raw_fd(), flags));
        }
        Ok(())
    }
}

fn set(epoll: &OwnedFd, fd: BorrowedFd<'_>, data: EventData, flags: EventFlags) -> io::Result<()> {
    match epoll::modify(epoll, fd, data, flags) {
        Err(rustix::io::Errno::NOENT) => Ok(epoll::add(epoll, fd, data, flags)?),
        done => Ok(done?),
    }
}
