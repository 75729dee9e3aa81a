//! A thread that serves connections: one epoll set, all sockets in it, none of which blocks.

use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use crate::connection::{Connection, Turn};
use crate::relay::Context;
use crate::shared::Shared;
use crate::socket::EVENTS;

/// Between two looks at connections that took too long.
const TICK: Duration = Duration::from_millis(250);
/// Connections accepted before others have their turn.
const ACCEPTS: usize = 16;
/// Event data of the first listener; the next ones follow.
const LISTENER: u64 = 1 << 48;
/// Time for the requests in progress after `Terminator::stop`.
const GRACE: Duration = Duration::from_secs(10);

struct Slot {
    connection: Box<Connection>,
    is_queued: bool,
}

pub(crate) struct Worker {
    shared: Arc<Shared>,
    epoll: OwnedFd,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    /// Slots with something to do.
    queue: Vec<usize>,
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        for (n, listener) in shared.listeners.iter().enumerate() {
            let data = EventData::new_u64(LISTENER + n as u64);
            epoll::add(&epoll, listener, data, EventFlags::IN | EventFlags::EXCLUSIVE)?;
        }
        Ok(Self { shared, epoll, slots: Vec::new(), free: Vec::new(), queue: Vec::new() })
    }

    /// Serves until `Terminator::stop`.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let tick = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as _ };
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut next_look = Instant::now() + TICK;
        let mut stopping = None;
        let mut events: Vec<Event> = Vec::with_capacity(256);
        loop {
            let timeout = if self.queue.is_empty() { &tick } else { &at_once };
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            let now = Instant::now();
            for event in &events {
                self.take_event(event, now);
            }
            for index in std::mem::take(&mut self.queue) {
                self.drive(index, now);
            }
            if now >= next_look {
                next_look = now + TICK;
                if self.shared.stop.load(Ordering::Relaxed) && stopping.is_none() {
                    stopping = Some(now);
                    for listener in &self.shared.listeners {
                        let _ = epoll::delete(&self.epoll, listener);
                    }
                }
                self.look_at_all(now, stopping.is_some());
            }
            if stopping.is_some_and(|since| self.free.len() == self.slots.len() || now > since + GRACE) {
                return Ok(());
            }
        }
    }

    fn take_event(&mut self, event: &Event, now: Instant) {
        // Fields of a packed structure.
        let (flags, data) = (event.flags, event.data.u64());
        if data >= LISTENER {
            let shared = self.shared.clone();
            if let Some(listener) = shared.listeners.get((data - LISTENER) as usize) {
                self.accept(listener, now);
            }
            return;
        }
        let index = (data >> 1) as usize;
        let Some(Some(slot)) = self.slots.get_mut(index) else { return };
        if data & 1 == 0 {
            slot.connection.client.set_ready(flags);
        } else if let Some(socket) = slot.connection.server_socket() {
            socket.set_ready(flags);
        }
        self.enqueue(index);
    }

    fn enqueue(&mut self, index: usize) {
        if let Some(Some(slot)) = self.slots.get_mut(index)
            && !std::mem::replace(&mut slot.is_queued, true)
        {
            self.queue.push(index);
        }
    }

    fn accept(&mut self, listener: &TcpListener, now: Instant) {
        for _ in 0..ACCEPTS {
            let (stream, peer) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    // Out of descriptors, most likely: the next attempt would fail at once again.
                    tracing::warn!(%error, "accept");
                    std::thread::sleep(Duration::from_millis(10));
                    return;
                }
            };
            let counters = &self.shared.counters;
            counters.count_accepted();
            if counters.open.load(Ordering::Relaxed) >= self.shared.max_connections {
                counters.count_refused();
                continue;
            }
            let config = self.shared.reload.in_force();
            let connection = match Connection::new(stream, peer, &config, counters, now) {
                Ok(connection) => Box::new(connection),
                Err(error) => {
                    tracing::debug!(%error, "a new connection");
                    continue;
                }
            };
            let index = self.free.pop().unwrap_or(self.slots.len());
            let data = EventData::new_u64((index as u64) << 1);
            if let Err(error) = epoll::add(&self.epoll, connection.stream(), data, EVENTS) {
                tracing::warn!(%error, "a new connection");
                if index < self.slots.len() {
                    self.free.push(index);
                }
                continue;
            }
            counters.open.fetch_add(1, Ordering::Relaxed);
            let slot = Some(Slot { connection, is_queued: false });
            if index == self.slots.len() {
                self.slots.push(slot);
            } else {
                self.slots[index] = slot;
            }
            self.enqueue(index);
        }
    }

    fn drive(&mut self, index: usize, now: Instant) {
        let Some(Some(slot)) = self.slots.get_mut(index) else { return };
        slot.is_queued = false;
        let context = Context {
            epoll: &self.epoll,
            server_token: (index as u64) << 1 | 1,
            server: self.shared.server,
            forwarded: self.shared.forwarded,
            counters: &self.shared.counters,
            observer: self.shared.observer.as_deref(),
        };
        let turn = slot.connection.drive(&context, now);
        self.follow(index, turn);
    }

    fn follow(&mut self, index: usize, turn: Turn) {
        match turn {
            Turn::Wait => {}
            Turn::Again => self.enqueue(index),
            Turn::Ended => {
                // Closing the sockets removes them from the epoll set.
                if self.slots[index].take().is_some() {
                    self.free.push(index);
                    self.shared.counters.open.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
    }

    fn look_at_all(&mut self, now: Instant, stopping: bool) {
        let shared = self.shared.clone();
        let is_scarce = shared.counters.open.load(Ordering::Relaxed)
            > shared.max_connections - shared.max_connections / 4;
        let limits = if is_scarce { &shared.scarce_limits } else { &shared.limits };
        for index in 0..self.slots.len() {
            let Some(slot) = &mut self.slots[index] else { continue };
            let mut turn = slot.connection.expire(limits, now, &shared.counters);
            if stopping && turn == Turn::Wait {
                turn = slot.connection.end_if_idle(now);
            }
            self.follow(index, turn);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let open = self.slots.iter().flatten().count();
        self.shared.counters.open.fetch_sub(open, Ordering::Relaxed);
    }
}
