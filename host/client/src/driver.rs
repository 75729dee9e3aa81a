//! The stack thread: receives packets, sends packets, runs timers.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;

use parking_lot::MutexGuard;
use rivulet_pktio::IoError;
use rivulet_pktio::icmp::TooBig;
use rivulet_transport::Micros;
use rivulet_transport::Time;
use rivulet_transport::client::Event;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::ClockId;
use smallvec::SmallVec;

use crate::address::flow;
use crate::address_watch::AddressWatch;
use crate::connection::{Ending, Line, Shared, State};
use crate::destinations::Destinations;
use crate::interfaces::{Interfaces, Port};
use crate::mailbox::{Mailbox, micros};
use crate::next_hop::NextHop;

/// Length of an Ethernet header in bytes.
const ETHERNET: usize = 14;
/// Batches received from one interface before the timers run.
const MAX_BATCHES: usize = 16;
/// Longest sleep in microseconds. It bounds the time until an interface that came back is noticed.
const MAX_SLEEP: Micros = 500_000;

/// Interval between reads of the interfaces' MTU and address, microseconds.
const LINK_CHECK_INTERVAL: Micros = 200_000;

/// How long an ending stack waits for connections to close (in a hurry: to return their window),
/// microseconds.
const CLOSE_TIMEOUT: Micros = 300_000;

/// A new connection on its way to the stack thread.
pub(crate) struct NewConnection {
    pub shared: Arc<Shared>,
    pub hop: NextHop,
}

pub(crate) struct Entry {
    pub shared: Arc<Shared>,
    pub hop: NextHop,
    /// When its timer fires; the same entry is in `Driver::timers`.
    timer: Option<Time>,
    queued: bool,
    /// Whether the server supports Rivulet is unknown. The receive filter counts the port as
    /// opening until `Port::opened` is called once.
    opening: bool,
}

/// Clock readings taken with a batch of frames.
struct Clocks {
    /// The stack's clock.
    now: Time,
    /// The real-time clock in microseconds, which the kernel's receive stamps use.
    real: u64,
    /// When the receive queue was last empty, by the stack's clock.
    emptied: Time,
}

impl Clocks {
    /// Arrival time of a frame by the stack's clock. A process that was stopped, or waited for a
    /// CPU, finds frames that arrived long ago. The real-time clock may have been set meanwhile, so
    /// the last time when the queue was empty bounds the age.
    fn came(&self, stamp: Option<u64>) -> Time {
        let oldest = self.emptied.min(self.now);
        match stamp {
            Some(stamp) => Time(self.now.0.saturating_sub(self.real.saturating_sub(stamp))).max(oldest),
            // AF_XDP has no stamps. The queue is polled every MAX_SLEEP, so this process was
            // stopped.
            None if self.now.since(oldest) > 2 * MAX_SLEEP => oldest,
            None => self.now,
        }
    }
}

/// State of the stack thread.
pub(crate) struct Driver {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) interfaces: Interfaces,
    destinations: Destinations,
    opened: Receiver<NewConnection>,
    pub(crate) entries: HashMap<u32, Entry>,
    pub(crate) flows: HashMap<(SocketAddr, SocketAddr), u32>,
    timers: BTreeSet<(Time, u32)>,
    /// Connections to serve in this iteration.
    work: Vec<u32>,
    /// Connections whose packets found no room in the transmit ring. The next iteration serves them
    /// again.
    blocked: Vec<u32>,
    links_checked: Time,
    pub(crate) watch: AddressWatch,
}

impl Driver {
    pub fn new(
        mailbox: Arc<Mailbox>,
        interfaces: Interfaces,
        destinations: Destinations,
        opened: Receiver<NewConnection>,
    ) -> Driver {
        Driver {
            mailbox,
            interfaces,
            destinations,
            opened,
            entries: HashMap::new(),
            flows: HashMap::new(),
            timers: BTreeSet::new(),
            work: Vec::new(),
            blocked: Vec::new(),
            links_checked: Time(0),
            watch: AddressWatch::open(),
        }
    }

    /// Runs until the last handle is dropped and every connection has closed.
    pub fn run(mut self) {
        // Responses wait for our requests, so this thread should run before others. Without the
        // permission it runs at normal priority.
        let _ = rustix::process::setpriority_process(None, -10);
        let mut last = None;
        loop {
            self.sleep();
            self.mailbox.bell.clear();
            for id in std::mem::take(&mut self.blocked) {
                self.queue(id);
            }
            self.take_mail();
            self.check_links();
            self.roam();
            self.receive();
            self.fire_timers();
            self.serve();
            if self.mailbox.stop.load(Ordering::Acquire) {
                if last.is_none() {
                    self.close_all();
                }
                let hurry = self.mailbox.hurry.load(Ordering::Relaxed);
                let until = *last.get_or_insert(self.mailbox.now() + CLOSE_TIMEOUT);
                let awaited = if hurry { self.awaits_tokens() } else { !self.entries.is_empty() };
                if !awaited || self.mailbox.now() >= until {
                    break;
                }
            }
        }
        self.interfaces.lock().clear();
    }

    /// Waits for packets, the application, or a timer.
    fn sleep(&mut self) {
        let now = self.mailbox.now();
        let timers = [self.timers.first().map(|(at, _)| *at), self.watch.due()];
        let until = timers.into_iter().flatten().min().map_or(MAX_SLEEP, |at| at.since(now).min(MAX_SLEEP));
        // An application thread may reopen an interface during the wait, so the descriptors are
        // cloned.
        let waiting: SmallVec<[(Arc<OwnedFd>, bool); 4]> = self
            .interfaces
            .lock()
            .values()
            .map(|port| (port.readiness.clone(), port.io.pending() > 0))
            .collect();
        let mut fds: SmallVec<[PollFd<'_>; 6]> = SmallVec::new();
        fds.push(PollFd::new(&self.mailbox.bell, PollFlags::IN));
        fds.extend(self.watch.descriptor().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        for (fd, room) in &waiting {
            let room = if *room { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN | room));
        }
        let time =
            Timespec { tv_sec: (until / 1_000_000) as i64, tv_nsec: (until % 1_000_000 * 1000) as i64 };
        // A signal also ends the wait; the loop checks for all kinds of work in any case.
        let _ = poll(&mut fds, Some(&time));
    }

    /// Takes new connections, and those that an application thread touched.
    fn take_mail(&mut self) {
        while let Ok(new) = self.opened.try_recv() {
            let id = new.shared.id;
            self.flows.insert((new.shared.remote, new.shared.local), id);
            let (shared, hop) = (new.shared, new.hop);
            self.entries.insert(id, Entry { shared, hop, timer: None, queued: false, opening: true });
            self.queue(id);
        }
        let touched = std::mem::take(&mut *self.mailbox.touched.lock());
        for id in touched {
            self.queue(id);
        }
    }

    /// Closes connections without streams: no handle is left that could open one.
    fn close_all(&mut self) {
        let now = self.mailbox.now();
        for entry in self.entries.values() {
            let mut state = entry.shared.state.lock();
            if !state.is_used() {
                state.connection.close(now);
            }
        }
        for id in self.entries.keys().copied().collect::<Vec<_>>() {
            self.queue(id);
        }
        self.serve();
    }

    /// Whether a closing connection has offered its window and still waits for the token in
    /// exchange.
    fn awaits_tokens(&self) -> bool {
        self.entries.values().any(|entry| entry.shared.state.lock().connection.awaits_token())
    }

    pub(crate) fn queue(&mut self, id: u32) {
        if let Some(entry) = self.entries.get_mut(&id)
            && !std::mem::replace(&mut entry.queued, true)
        {
            self.work.push(id);
        }
    }

    fn receive(&mut self) {
        let interfaces = self.interfaces.clone();
        for port in interfaces.lock().values_mut() {
            for _ in 0..MAX_BATCHES {
                let asked = self.mailbox.now();
                let count = match port.io.recv() {
                    Ok(0) => {
                        port.emptied = asked;
                        break;
                    }
                    Ok(count) => count,
                    Err(e) => {
                        Self::handle_io_error(port, &e);
                        break;
                    }
                };
                let clocks = Clocks {
                    now: self.mailbox.now(),
                    real: micros(ClockId::Realtime),
                    emptied: port.emptied,
                };
                for i in 0..count {
                    let frame = port.io.frame(i);
                    let came = clocks.came(frame.came);
                    let Some((packet, key)) = flow(frame.data) else {
                        if let Some(error) = TooBig::parse(frame.data) {
                            self.too_big(&error);
                        }
                        continue;
                    };
                    let Some(&id) = self.flows.get(&key) else { continue };
                    let Some(entry) = self.entries.get(&id) else { continue };
                    let result = entry.shared.state.lock().connection.handle_input(came, packet);
                    if let Err(e) = result {
                        tracing::debug!(error = %e, "packet ignored");
                        continue;
                    }
                    self.queue(id);
                }
            }
        }
    }

    /// Reads MTU and Ethernet address of the interfaces at intervals, and limits packets where the
    /// MTU became smaller.
    fn check_links(&mut self) {
        let now = self.mailbox.now();
        if now.since(self.links_checked) < LINK_CHECK_INTERVAL {
            return;
        }
        self.links_checked = now;
        for (index, port) in self.interfaces.lock().iter_mut() {
            let link = match port.io.link() {
                Ok(link) => link,
                Err(e) => {
                    // AF_XDP does not report the deletion of an interface in any other way.
                    Self::handle_io_error(port, &e);
                    continue;
                }
            };
            if link.mtu < port.link.mtu {
                let mtu = link.mtu.clamp(576, 9216) as u16;
                for entry in self.entries.values().filter(|e| e.hop.index == *index) {
                    entry.shared.state.lock().connection.limit_mtu(mtu);
                }
            }
            port.link = link;
        }
    }

    /// Handles an ICMP "packet too big". It is accepted only if it quotes a segment that we sent.
    /// Then the MTU holds for this connection and for later ones to the same destination.
    fn too_big(&mut self, error: &TooBig) {
        let Some(&id) = self.flows.get(&(error.destination, error.source)) else { return };
        let Some(entry) = self.entries.get(&id) else { return };
        if entry.shared.state.lock().connection.too_big(error.sequence, error.mtu) {
            tracing::debug!(remote = %error.destination, mtu = error.mtu, "a router reported a smaller path MTU");
            self.destinations.path_mtu(error.destination, error.mtu);
            self.queue(id);
        }
    }

    /// Handles an error of an interface: it is down and will come back, or it was deleted and
    /// created again.
    fn handle_io_error(port: &mut Port, error: &IoError) {
        match error {
            IoError::Down(_) => {}
            IoError::Gone(name) => {
                if let Err(e) = port.reopen() {
                    tracing::debug!(interface = name, error = %e, "cannot reopen the interface");
                }
            }
            IoError::Os { .. } => tracing::warn!(error = %error, "packet I/O failed"),
        }
    }

    fn fire_timers(&mut self) {
        let now = self.mailbox.now();
        while let Some(&(at, id)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.timer = None;
                let mut state = entry.shared.state.lock();
                state.connection.handle_timeout(now);
                if state.spare_until.take_if(|until| *until <= now).is_some() {
                    state.connection.close(now);
                }
            }
            self.queue(id);
        }
    }

    /// Sends the packets of the queued connections and reports events to their applications.
    fn serve(&mut self) {
        let interfaces = self.interfaces.clone();
        let mut ports = interfaces.lock();
        for id in std::mem::take(&mut self.work) {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            entry.queued = false;
            let shared = entry.shared.clone();
            let mut state = shared.state.lock();
            let now = self.mailbox.now();
            let mut port = ports.get_mut(&entry.hop.index);
            if let Some(port) = &mut port
                && !transmit(port, &entry.hop, &mut state, now)
            {
                self.blocked.push(id);
            }
            let over = report_events(&shared, &mut state, &self.destinations);
            // Before the state is unlocked: after a fallback to plain TCP the kernel must receive
            // the segments.
            if let Some(port) = port {
                if entry.opening && (state.connected || over || state.ending != Ending::Open) {
                    entry.opening = false;
                    port.opened(state.connection.local().port());
                }
                if over {
                    port.release(state.connection.local().port());
                }
            }
            let timers = [state.connection.poll_timeout(), state.spare_until];
            let next = if over { None } else { timers.into_iter().flatten().min() };
            let local = state.connection.local();
            drop(state);
            if entry.timer != next {
                if let Some(at) = entry.timer {
                    self.timers.remove(&(at, id));
                }
                if let Some(at) = next {
                    self.timers.insert((at, id));
                }
                entry.timer = next;
            }
            if over {
                self.flows.remove(&(shared.remote, local));
                self.entries.remove(&id);
            }
        }
        for port in ports.values_mut() {
            if let Err(e) = port.io.flush() {
                Self::handle_io_error(port, &e);
            }
        }
    }
}

/// Writes packets into the transmit ring until the connection has none left. Returns false if the
/// ring has no room; the connection keeps the packet.
fn transmit(port: &mut Port, hop: &NextHop, state: &mut MutexGuard<'_, State>, now: Time) -> bool {
    let room = ETHERNET + port.link.mtu as usize;
    while let Some(frame) = port.io.reserve(room) {
        let Some(length) = state.connection.poll_transmit(now, &mut frame[ETHERNET..]) else { return true };
        frame[..6].copy_from_slice(&hop.mac);
        frame[6..12].copy_from_slice(&port.link.mac);
        let kind: u16 = if frame[ETHERNET] >> 4 == 6 { 0x86dd } else { 0x0800 };
        frame[12..14].copy_from_slice(&kind.to_be_bytes());
        port.io.commit(ETHERNET + length);
    }
    false
}

/// Reports events to the application. Returns true if the connection is over and no stream is held.
fn report_events(shared: &Shared, state: &mut MutexGuard<'_, State>, destinations: &Destinations) -> bool {
    while let Some(event) = state.connection.poll() {
        match event {
            Event::Connected => {
                state.connected = true;
                destinations.answered(shared.remote, false);
                for line in state.lines.values_mut() {
                    line.early = Vec::new();
                    line.wake();
                }
            }
            Event::Closed => state.finish_with(Ending::Closed),
            Event::Failed(e) => {
                tracing::debug!(error = %e, remote = %shared.remote, "connection failed");
                state.finish_with(Ending::Failed(e));
            }
            Event::FallbackToTcp(handshake) => {
                destinations.answered(shared.remote, true);
                state.finish_with(Ending::PlainTcp(handshake));
            }
            Event::Token(token) => {
                destinations.keep_token(state.connection.local().ip(), shared.remote, token)
            }
            Event::Readable(stream) | Event::Writable(stream) | Event::InputConsumed(stream) => {
                state.lines.get_mut(&stream).into_iter().for_each(Line::wake);
            }
            Event::StreamFailed(stream, e) => {
                tracing::debug!(error = %e, remote = %shared.remote, stream, "stream failed");
                state.fail(stream, e, shared.mailbox.now());
            }
        }
    }
    state.lines.is_empty() && state.connection.is_over()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_stamps_give_arrival_times() {
        let clocks = Clocks { now: Time(10_000_000), real: 1_700_000_000_000_000, emptied: Time(4_000_000) };
        let ago = |age: u64| clocks.came(Some(clocks.real - age));
        assert_eq!(ago(0), Time(10_000_000));
        assert_eq!(ago(5_000_000), Time(5_000_000));
        assert_eq!(ago(3_600_000_000), Time(4_000_000), "the clock was put forward");
        assert_eq!(clocks.came(Some(clocks.real + 7)), Time(10_000_000), "the clock was put back");
        assert_eq!(
            clocks.came(None),
            Time(4_000_000),
            "without stamps, of a queue that was not links_checked at"
        );
        let clocks = Clocks { emptied: Time(9_800_000), ..clocks };
        assert_eq!(clocks.came(None), Time(10_000_000));
    }
}
