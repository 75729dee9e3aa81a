//! A thread that serves connections: one epoll set with all of their sockets, none of which blocks.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rivulet_trods::terminator::Request;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use crate::connection::{Connection, Turn};
use crate::link::{Adopted, Mail, Mailbox};
use crate::relay::Context;
use crate::shared::Shared;
use crate::socket::EVENTS;

/// Interval of checks for connections that have exceeded a time limit.
const TICK: Duration = Duration::from_millis(250);
/// Connections that are accepted before others get their turn.
const ACCEPTS: usize = 16;
/// Connections that are registered at the agent before others get their turn.
const REGISTERED_AT_ONCE: usize = 64;
/// Event data of the first listener; those of the others follow it.
const LISTENER: u64 = 1 << 48;
/// Event data of the mailbox.
const MAILBOX: u64 = 1 << 49;
/// Time for the requests in progress after `Terminator::stop`.
const GRACE: Duration = Duration::from_secs(10);

struct Slot {
    connection: Box<Connection>,
    is_queued: bool,
    /// Distinguishes successive connections in this slot.
    serial: u16,
    /// Time at which the connection must be driven.
    look_at: Option<Instant>,
}

pub(crate) struct Worker {
    shared: Arc<Shared>,
    epoll: OwnedFd,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    /// Slots of connections that can make progress.
    queue: Vec<usize>,
    /// Index of this worker, and the messages for it.
    place: u64,
    mailbox: Arc<Mailbox>,
    serial: u16,
    /// The next slot whose connection is registered at an agent that has started.
    register_from: Option<usize>,
    /// Times at which connections must be driven without an event.
    looks: BinaryHeap<Reverse<(Instant, usize)>>,
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>, place: usize, mailbox: Arc<Mailbox>) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        for (n, listener) in shared.listeners.iter().enumerate() {
            let data = EventData::new_u64(LISTENER + n as u64);
            epoll::add(&epoll, listener, data, EventFlags::IN | EventFlags::EXCLUSIVE)?;
        }
        epoll::add(&epoll, &mailbox.event, EventData::new_u64(MAILBOX), EventFlags::IN)?;
        Ok(Self {
            shared,
            epoll,
            slots: Vec::new(),
            free: Vec::new(),
            queue: Vec::new(),
            place: place as u64,
            mailbox,
            serial: 0,
            register_from: None,
            looks: BinaryHeap::new(),
        })
    }

    /// Serves until `Terminator::stop`.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut next_look = Instant::now() + TICK;
        let mut stopping = None;
        let mut events: Vec<Event> = Vec::with_capacity(256);
        loop {
            let now = Instant::now();
            let look = self.looks.peek().map(|Reverse((at, _))| at.saturating_duration_since(now));
            let is_waiting = self.queue.is_empty() && self.register_from.is_none();
            let timeout = if is_waiting { look.unwrap_or(TICK).min(TICK) } else { Duration::ZERO };
            let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.as_nanos() as _ };
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            let now = Instant::now();
            for event in &events {
                self.take_event(event, now);
            }
            while let Some(&Reverse((at, index))) = self.looks.peek().filter(|Reverse((at, _))| *at <= now) {
                self.looks.pop();
                if let Some(Some(slot)) = self.slots.get_mut(index)
                    && slot.look_at.take_if(|of| *of == at).is_some()
                {
                    self.enqueue(index);
                }
            }
            for index in std::mem::take(&mut self.queue) {
                self.drive(index, now);
            }
            self.register_connections();
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
        // Copies, because references to fields of a packed structure are not allowed.
        let (flags, data) = (event.flags, event.data.u64());
        if data == MAILBOX {
            self.take_mail(now);
            return;
        }
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
                    // The process is probably out of descriptors, and another attempt would fail at
                    // once.
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
            self.put(index, connection);
        }
    }

    /// Serves a connection in this slot, which must be free or the first new one.
    fn put(&mut self, index: usize, connection: Box<Connection>) {
        let data = EventData::new_u64((index as u64) << 1);
        if let Err(error) = epoll::add(&self.epoll, connection.stream(), data, EVENTS) {
            tracing::warn!(%error, "a new connection");
            if index < self.slots.len() {
                self.free.push(index);
            }
            return;
        }
        self.shared.counters.open.fetch_add(1, Ordering::Relaxed);
        self.serial = self.serial.wrapping_add(1);
        let slot = Some(Slot { connection, is_queued: false, serial: self.serial, look_at: None });
        if index == self.slots.len() {
            self.slots.push(slot);
        } else {
            self.slots[index] = slot;
        }
        self.enqueue(index);
    }

    fn take_mail(&mut self, now: Instant) {
        for mail in self.mailbox.clone().take() {
            match mail {
                Mail::Stored(asked, outcome) => {
                    if let Some(connection) = self.numbered(asked.connection) {
                        connection.stored(asked.ticket, outcome);
                        self.enqueue(asked.connection as u32 as usize);
                    }
                }
                Mail::Watched(number, identity) => {
                    self.numbered(number).into_iter().for_each(|connection| connection.identify(*identity));
                }
                Mail::Attached => self.register_from = Some(0),
                Mail::Adopted(adopted) => self.adopt(*adopted, now),
                Mail::Lost => {
                    for index in 0..self.slots.len() {
                        if let Some(slot) = &mut self.slots[index] {
                            slot.connection.lose_agent();
                            self.enqueue(index);
                        }
                    }
                }
            }
        }
    }

    /// The connection with this number, unless it has ended.
    fn numbered(&mut self, number: u64) -> Option<&mut Connection> {
        let (serial, index) = ((number >> 32) as u16, number as u32 as usize);
        let slot = self.slots.get_mut(index)?.as_mut()?;
        (slot.serial == serial).then_some(&mut *slot.connection)
    }

    /// Registers the next few connections at an agent that has started.
    fn register_connections(&mut self) {
        let Some(from) = self.register_from else { return };
        let to = self.slots.len().min(from + REGISTERED_AT_ONCE);
        for index in from..to {
            if let Some(slot) = &mut self.slots[index] {
                slot.connection.register();
                self.enqueue(index);
            }
        }
        self.register_from = Some(to).filter(|to| *to < self.slots.len());
    }

    /// Continues another replica's connection.
    fn adopt(&mut self, adopted: Adopted, now: Instant) {
        let (index, tuple) = (self.free.pop().unwrap_or(self.slots.len()), adopted.record.tuple);
        // The serial number that `put` will assign.
        let context = self.context(index, self.serial.wrapping_add(1));
        match Connection::adopted(adopted, &context, now) {
            Ok(connection) => {
                self.shared.counters.count_adopted();
                self.put(index, Box::new(connection));
            }
            Err(why) => {
                tracing::warn!(client = %tuple.client, "a connection cannot be adopted: {why}");
                if let Some(link) = &self.shared.link {
                    link.send(&Request::Reset(tuple));
                }
                if index < self.slots.len() {
                    self.free.push(index);
                }
            }
        }
    }

    fn context(&self, index: usize, serial: u16) -> Context<'_> {
        Context {
            epoll: &self.epoll,
            server_token: (index as u64) << 1 | 1,
            server: self.shared.server,
            forwarded: self.shared.forwarded,
            counters: &self.shared.counters,
            observer: self.shared.observer.as_deref(),
            link: self.shared.link.as_ref(),
            number: self.place << 48 | u64::from(serial) << 32 | index as u64,
        }
    }

    fn drive(&mut self, index: usize, now: Instant) {
        let Some(mut slot) = self.slots.get_mut(index).and_then(Option::take) else { return };
        slot.is_queued = false;
        let turn = slot.connection.drive(&self.context(index, slot.serial), now);
        // Keeps the earlier time if one is already due.
        let look_at = slot.connection.look_at;
        if look_at.is_some_and(|at| slot.look_at.is_none_or(|due| at < due)) {
            slot.look_at = look_at;
            self.looks.extend(look_at.map(|at| Reverse((at, index))));
        }
        self.slots[index] = Some(slot);
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
