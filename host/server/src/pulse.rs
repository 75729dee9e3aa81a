//! The thread that sends the heartbeats: nothing that the application does can hold them up.
//!
//! So that they still mean something they are bound to the progress of the packet path: each of its workers notes when it
//! began what it is doing, and one that has been at one thing for as long as the bound makes this replica not ready.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rivulet_pktio::Interface;

use crate::heartbeat::{Beat, Sender, heartbeat_of};
use crate::service::{Service, Tunnel};
use crate::tunnel::Beacon;
use crate::workers::{Seats, bit};

/// The beat of one service.
struct Beating {
    beat: Beat,
    /// The service's index.
    service: usize,
    beacons: Vec<Beacon>,
}

#[derive(Default)]
struct State {
    beats: Vec<Beating>,
    stop: bool,
}

/// What the packet path tells, in single numbers, and hears.
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Services that have no keys, a bit each; all of them while the interface is down or the application is not ready.
    unready: AtomicU64,
    /// The interface's Ethernet address.
    mac: AtomicU64,
    sent: AtomicU64,
    gone: AtomicBool,
}

/// Sends the heartbeats of a replica, until it is dropped.
pub(crate) struct Pulse {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    interface: Interface,
    seats: Seats,
    started: Instant,
    incarnation: u16,
}

impl Pulse {
    /// Nothing is sent before [`Pulse::replace`].
    pub(crate) fn new(interface: Interface, seats: Seats, started: Instant, incarnation: u16) -> Pulse {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            unready: AtomicU64::new(u64::MAX),
            mac: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            gone: AtomicBool::new(false),
        });
        Pulse { shared, thread: None, interface, seats, started, incarnation }
    }

    /// Heartbeats for these services from now on; where a place is the same, its beat goes on.
    pub(crate) fn replace(&mut self, services: &[Service]) -> std::io::Result<()> {
        let now = elapsed(self.started);
        let mut state = self.shared.state.lock();
        let mut before = std::mem::take(&mut state.beats);
        for (service, of) in services.iter().enumerate() {
            let Some(member) = of.member else { continue };
            let same =
                before.iter().position(|b| *b.beat.member() == member).map(|at| before.swap_remove(at));
            let (beat, mut known) = match same {
                Some(same) => (same.beat, same.beacons),
                None => (Beat::new(member, self.incarnation, now), Vec::new()),
            };
            let beacon = |tunnel: &Tunnel| {
                let at = known.iter().position(|b| b.tunnel == *tunnel);
                at.map_or_else(|| Beacon::new(*tunnel), |at| known.swap_remove(at))
            };
            let beacons = of.tunnels.iter().map(beacon).collect();
            state.beats.push(Beating { beat, service, beacons });
        }
        let any = !state.beats.is_empty();
        drop(state);
        self.shared.changed.notify_all();
        if any && self.thread.is_none() {
            let (shared, seats) = (self.shared.clone(), self.seats.clone());
            let (interface, started) = (self.interface.clone(), self.started);
            let thread = std::thread::Builder::new().name("heartbeats".into());
            self.thread = Some(thread.spawn(move || shared.beat(&interface, &seats, started))?);
        }
        Ok(())
    }

    /// What heartbeats say from now on.
    pub(crate) fn tell(&self, mac: [u8; 6], unready: u64) {
        let [a, b, c, d, e, f] = mac;
        self.shared.mac.store(u64::from_be_bytes([0, 0, a, b, c, d, e, f]), Ordering::Relaxed);
        self.shared.unready.store(unready, Ordering::Relaxed);
    }

    /// Heartbeats sent since the start.
    pub(crate) fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::Relaxed)
    }

    /// Whether the interface was found to be deleted, since this was last asked.
    pub(crate) fn lost_interface(&self) -> bool {
        self.shared.gone.load(Ordering::Relaxed) && self.shared.gone.swap(false, Ordering::Relaxed)
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.shared.state.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic there was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn beat(&self, interface: &Interface, seats: &Seats, started: Instant) {
        // Before other work of this machine; without the right to it, it competes like everybody.
        let _ = rustix::process::setpriority_process(None, -10);
        let mut sender = Sender::default();
        let mut state = self.state.lock();
        while !state.stop {
            let now = elapsed(started);
            match state.beats.iter().map(|b| b.beat.due()).min() {
                None => self.changed.wait(&mut state),
                Some(due) if due > now => {
                    self.changed.wait_for(&mut state, Duration::from_micros(due - now));
                }
                Some(_) => {
                    state.beats.iter_mut().for_each(|b| self.send(b, &mut sender, interface, seats, now))
                }
            }
        }
    }

    fn send(&self, b: &mut Beating, sender: &mut Sender, interface: &Interface, seats: &Seats, now: u64) {
        let unready = self.unready.load(Ordering::Relaxed) | seats.behind();
        let mac = self.mac.load(Ordering::Relaxed).to_be_bytes();
        // A request that waits for room waits for the interface: excluding this replica would not help it, and the load
        // tells the ToR. Any other is answered within the turn that takes it, or its worker has stopped.
        let oldest = seats.oldest(now);
        let ready = unready & bit(b.service) == 0;
        let Some(frame) = b.beat.frame(now, [2, 3, 4, 5, 6, 7].map(|i| mac[i]), ready, seats.load(), oldest)
        else {
            return;
        };
        let mut sent = 0;
        match sender.send(interface, &frame, now) {
            Ok(taken) => sent += u64::from(taken),
            Err(_) => self.gone.store(true, Ordering::Relaxed),
        }
        for beacon in &mut b.beacons {
            sent += u64::from(beacon.send(heartbeat_of(&frame), interface.netns(), now));
        }
        self.sent.fetch_add(sent, Ordering::Relaxed);
    }
}

fn elapsed(since: Instant) -> u64 {
    since.elapsed().as_micros() as u64
}
