//! The heartbeat thread, which the application cannot delay.
//!
//! Heartbeats must still reflect the progress of the packet path. Each worker records when it began
//! its current task, and a worker busy with one task for the whole bound makes this replica not
//! ready.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rivulet_pktio::Interface;

use crate::heartbeat::{Beat, Live, Sender, heartbeat_of};
use crate::service::{Service, Tunnel};
use crate::service_set::{ServiceSet, SharedServiceSet};
use crate::tunnel::Beacon;
use crate::workers::Seats;

/// The heartbeat of one member, for all services of its pool.
struct Beating {
    beat: Beat,
    /// The services; the member is ready while one of them is.
    services: ServiceSet,
    beacons: Vec<Beacon>,
}

/// A ToR's last answer about a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolView {
    /// The pool.
    pub pool: u16,
    /// Address of a ToR of another rack; `None` for the rack's own.
    pub tor: Option<IpAddr>,
    /// The set of live members.
    pub live: Live,
    /// Age of the answer.
    pub age: Duration,
}

#[derive(Default)]
struct State {
    beats: Vec<Beating>,
    stop: bool,
}

/// State shared with the packet path.
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Services without keys; all of them while the interface is down or the application is not
    /// ready.
    unready: SharedServiceSet,
    /// The interface's Ethernet address.
    mac: AtomicU64,
    sent: AtomicU64,
    /// Number of authentic answers, and of others.
    answers: [AtomicU64; 2],
    gone: AtomicBool,
}

/// Sends the heartbeats of a replica until it is dropped.
pub(crate) struct Pulse {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    interface: Interface,
    seats: Seats,
    started: Instant,
    incarnation: u32,
}

impl Pulse {
    /// Sends nothing before [`Pulse::replace`].
    pub(crate) fn new(interface: Interface, seats: Seats, started: Instant, incarnation: u32) -> Pulse {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            unready: SharedServiceSet::new(ServiceSet::ALL),
            mac: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            answers: [const { AtomicU64::new(0) }; 2],
            gone: AtomicBool::new(false),
        });
        Pulse { shared, thread: None, interface, seats, started, incarnation }
    }

    /// Sends heartbeats for these services from now on; a member that remains continues its
    /// sequence.
    pub(crate) fn replace(&mut self, services: &[Service]) -> std::io::Result<()> {
        let now = elapsed(self.started);
        let mut state = self.shared.state.lock();
        let mut before = std::mem::take(&mut state.beats);
        for (service, of) in services.iter().enumerate() {
            let Some(member) = of.member else { continue };
            let place = |b: &Beating| (b.beat.member().pool, b.beat.member().replica);
            // One heartbeat for each member, because its numbers must only grow.
            let at = match state.beats.iter().position(|b| place(b) == (member.pool, member.replica)) {
                Some(at) => at,
                None => {
                    let same = before.iter().position(|b| *b.beat.member() == member);
                    let mut beating = match same.map(|at| before.swap_remove(at)) {
                        Some(same) => Beating { services: ServiceSet::default(), ..same },
                        None => {
                            let beat = Beat::new(member, &of.keys, self.incarnation, now);
                            Beating { beat, services: ServiceSet::default(), beacons: Vec::new() }
                        }
                    };
                    beating.beat.set_keys(&of.keys);
                    let place = &services[service..];
                    let wanted =
                        |t: &Tunnel| place.iter().any(|s| s.member == Some(member) && s.tunnels.contains(t));
                    beating.beacons.retain(|beacon| wanted(&beacon.tunnel));
                    state.beats.push(beating);
                    state.beats.len() - 1
                }
            };
            let beating = &mut state.beats[at];
            beating.services.add(service);
            for tunnel in &of.tunnels {
                if !beating.beacons.iter().any(|beacon| beacon.tunnel == *tunnel) {
                    beating.beacons.push(Beacon::new(*tunnel));
                }
            }
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

    /// Updates what heartbeats report.
    pub(crate) fn update(&self, mac: [u8; 6], unready: ServiceSet) {
        let [a, b, c, d, e, f] = mac;
        self.shared.mac.store(u64::from_be_bytes([0, 0, a, b, c, d, e, f]), Ordering::Relaxed);
        self.shared.unready.store(unready);
    }

    /// Heartbeats sent so far.
    pub(crate) fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::Relaxed)
    }

    /// Authentic answers of ToRs, and others.
    pub(crate) fn answers(&self) -> [u64; 2] {
        [0, 1].map(|i| self.shared.answers[i].load(Ordering::Relaxed))
    }

    /// The ToRs' last answer for each pool.
    pub(crate) fn views(&self) -> Vec<PoolView> {
        let now = elapsed(self.started);
        let state = self.shared.state.lock();
        let view = |b: &Beating, tor, live: &Live| PoolView {
            pool: b.beat.member().pool,
            tor,
            live: *live,
            age: Duration::from_micros(now.saturating_sub(live.at)),
        };
        let mut views = Vec::new();
        for b in &state.beats {
            views.extend(b.beat.live().map(|live| view(b, None, live)));
            let beyond = |beacon: &Beacon| beacon.live.map(|live| view(b, Some(beacon.tunnel.tor), &live));
            views.extend(b.beacons.iter().filter_map(beyond));
        }
        views
    }

    /// Whether the interface was found deleted since the last call.
    pub(crate) fn lost_interface(&self) -> bool {
        self.shared.gone.load(Ordering::Relaxed) && self.shared.gone.swap(false, Ordering::Relaxed)
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.shared.state.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn beat(&self, interface: &Interface, seats: &Seats, started: Instant) {
        // Raises the priority; without the permission the thread runs at normal priority.
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
                    // Answers to the last heartbeats have arrived meanwhile.
                    self.receive(&mut state.beats, &mut sender, now);
                    let (since, died) = peers(&state.beats, now);
                    seats.set_peers(since, died);
                    state.beats.iter_mut().for_each(|b| self.send(b, &mut sender, interface, seats, now))
                }
            }
        }
    }

    /// Handles the ToRs' answers.
    fn receive(&self, beats: &mut [Beating], sender: &mut Sender, now: u64) {
        let count = |believed: bool| self.answers[usize::from(!believed)].fetch_add(1, Ordering::Relaxed);
        sender.receive(|frame| {
            count(beats.iter_mut().any(|b| b.beat.answered(frame, now)));
        });
        for Beating { beat, beacons, .. } in beats {
            for beacon in beacons {
                beacon.receive(beat, now, |believed| {
                    count(believed);
                });
            }
        }
    }

    fn send(&self, b: &mut Beating, sender: &mut Sender, interface: &Interface, seats: &Seats, now: u64) {
        let unready = self.unready.load().or(seats.behind());
        let mac = self.mac.load(Ordering::Relaxed).to_be_bytes();
        // A request that waits for room waits for the interface. Excluding this replica would not
        // help it, and the load in the heartbeats informs the ToR. Any other request is answered
        // within its turn, unless the worker hangs.
        let oldest = seats.oldest(now);
        let ready = !b.services.is_within(unready);
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

/// Since when no other replica has died or returned, and how many have died so far, according to
/// all ToRs.
fn peers(beats: &[Beating], now: u64) -> (Option<u64>, u32) {
    let lives = beats.iter().flat_map(|b| {
        let beyond = b.beacons.iter().filter_map(|beacon| beacon.live.as_ref());
        b.beat.live().into_iter().chain(beyond).map(|live| (live, b.beat.member().replica))
    });
    by_all(lives.map(|(live, own)| (live.others_since(own, now), live.died)))
}

fn by_all(said: impl Iterator<Item = (Option<u64>, u32)>) -> (Option<u64>, u32) {
    said.reduce(|(a, died), (b, more)| (a.zip(b).map(|(a, b)| a.max(b)), died.wrapping_add(more)))
        .unwrap_or((None, 0))
}

fn elapsed(since: Instant) -> u64 {
    since.elapsed().as_micros() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_set_needs_agreement_of_all_tors() {
        let known = |said: &[(Option<u64>, u32)]| by_all(said.iter().copied());
        assert_eq!(known(&[]), (None, 0));
        assert_eq!(known(&[(Some(7), 2)]), (Some(7), 2));
        assert_eq!(known(&[(Some(7), 2), (Some(9), 0), (Some(8), 1)]), (Some(9), 3));
        assert_eq!(known(&[(Some(7), u32::MAX), (None, 2)]), (None, 1));
    }
}
