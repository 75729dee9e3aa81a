//! One iteration of the event loop: frames are received, judged, handed to the application, and
//! answered.
//!
//! A request is only handled when there is room for all its responses. A server with its own
//! interface as bottleneck thus queues requests here and drops none. Connections with requests that
//! wait long are marked (RFC 3168), which halves their windows.

use std::ops::Range;
use std::os::fd::AsFd;
use std::time::Duration;

use rivulet_packet::{EthHeader, Segment, WireError};
use rivulet_pktio::icmp::TooBig;
use rivulet_pktio::{Checksum, IoError, PacketIo};
use rivulet_transport::MAX_RESPONSES;
use rivulet_transport::Time;
use rivulet_transport::server::{Refusal, Verdict, step};

use super::downloads::Due;
use super::{Application, LINK_CHECK_US, Origin, Server, common_clock, elapsed, payload};
use crate::interface::{QUEUE, wait};
use crate::minisocket::{EventKind, Minisocket};
use crate::rules::shares;
use crate::tunnel::Content;

/// Batches received before the timers run.
const MAX_BATCHES: usize = 8;
/// A request that waited longer than this, microseconds, marks its connection as congested.
const LATE_US: u64 = 10_000;
/// How long frames are stamped with their arrival time after room was last missing, microseconds.
const STAMPS_OFF_US: u64 = 1_000_000;
/// Bound on the detection of another replica's death while there are large answers.
const PEER_CHECK: Duration = Duration::from_millis(20);
/// How long a resumed event waits for room, microseconds.
const ROOM_TIMEOUT_US: u64 = 100_000;

impl Server {
    /// Waits for work, `longest` at most, and does it: passes each request to `application`.
    pub fn turn(&mut self, application: &mut dyn Application, longest: Duration) {
        let due = self.downloads_due();
        let due = due.map(|due| Duration::from_micros(due.saturating_sub(self.now())));
        self.wait(
            !self.waiting.is_empty() || due == Some(Duration::ZERO),
            // The death of another replica does not wake this thread, but its clients must be
            // probed then.
            due.map_or(longest, |due| due.min(longest).min(PEER_CHECK)),
        );
        if self.io.pending() > 0 {
            self.flush();
        }
        self.check_link();
        self.report_peers();
        self.adopter.expire(elapsed(self.started));
        while let Some((client, mtu)) = self.place.take_reported_path() {
            self.paths.learn(client, mtu, self.now());
        }
        self.take_answers();
        if due == Some(Duration::ZERO) {
            // Segments that found no room before.
            self.send_downloads(Due::Acknowledged);
        }
        self.load = 0;
        for _ in 0..MAX_BATCHES {
            if self.waiting.is_empty() {
                self.waiting = self.take();
            }
            if self.waiting.is_empty() {
                self.stop_stamps();
                break;
            }
            let before = self.waiting.len();
            while let Some(index) = self.next() {
                self.frame(index, application);
            }
            self.load += before - self.waiting.len();
            if std::mem::take(&mut self.acknowledged) {
                // After the whole batch, so that consecutive segments of a client leave in one
                // piece.
                self.send_downloads(Due::Acknowledged);
            }
            self.flush();
            if !self.waiting.is_empty() {
                break;
            }
        }
        if due.is_some() && self.waiting.is_empty() {
            // Only after all received frames: if this process had to wait for a CPU,
            // acknowledgements of clients that seem silent are already queued.
            self.send_downloads(Due::Expired);
            self.flush();
        }
        self.load += self.waiting.len();
        self.place.set_load(self.load + self.open_connections);
        if let Some(pulse) = &self.pulse {
            self.counters.heartbeats = pulse.sent();
            [self.counters.answers, self.counters.answers_refused] = pulse.answers();
            if pulse.lost_interface() {
                // The packet path's own socket may not have noticed it.
                self.link.up = false;
                self.link_checked = self.now().saturating_sub(LINK_CHECK_US);
            }
        }
        self.turned = true;
        self.report_state();
        self.progress();
    }

    /// The next task begins now.
    fn progress(&self) {
        self.place.set_busy(Some(self.now()));
    }

    /// Receives the next batch of frames; empty if there are none.
    fn take(&mut self) -> Range<usize> {
        match self.io.recv() {
            Ok(count) => 0..count,
            Err(e) => {
                self.handle_io_error(&e);
                0..0
            }
        }
    }

    /// The next frame, if there is room for all its responses.
    fn next(&mut self) -> Option<usize> {
        if self.waiting.is_empty() || !self.has_room() {
            return None;
        }
        // A failure of the interface in `has_room` discards the waiting frames.
        self.waiting.next()
    }

    /// No frame waits. After some time with room, arrival stamps are switched off.
    fn stop_stamps(&mut self) {
        let now = self.now();
        if self.full.take_if(|full| now - *full > STAMPS_OFF_US).is_some() {
            self.io.set_stamps(false);
        }
    }

    /// Whether there is room for all responses to one more request. The first failure switches on
    /// arrival stamps, which show how long requests waited.
    pub(super) fn has_room(&mut self) -> bool {
        let room = |io: &dyn PacketIo| io.pending() + MAX_RESPONSES <= QUEUE;
        if room(self.io.as_ref()) {
            return true;
        }
        self.flush();
        if room(self.io.as_ref()) {
            return true;
        }
        if self.full.replace(self.now()).is_none() {
            self.io.set_stamps(true);
        }
        false
    }

    /// Waits for room for the responses to a resumed event. After ROOM_TIMEOUT_US its responses may be
    /// dropped.
    pub(crate) fn await_room(&mut self) {
        let until = self.now() + ROOM_TIMEOUT_US;
        while !self.has_room() {
            let left = until.saturating_sub(self.now());
            if left == 0 {
                break;
            }
            self.wait(true, Duration::from_micros(left));
        }
    }

    /// A resumed event waited `age` microseconds; it counts as late if room was missing recently.
    pub(crate) fn waited(&mut self, age: u64) {
        self.late = self.full.is_some() && age > LATE_US;
        self.counters.late += u64::from(self.late);
    }

    /// Waits for packets and room, or only for room.
    fn wait(&self, room: bool, longest: Duration) {
        self.place.set_busy(None);
        let other = self.exchanges.as_ref().filter(|_| !room).map(AsFd::as_fd);
        wait(self.io.as_ref(), room, other, longest);
        self.progress();
    }

    pub(crate) fn flush(&mut self) {
        if let Err(e) = self.io.flush() {
            self.handle_io_error(&e);
        }
    }

    pub(super) fn handle_io_error(&mut self, error: &IoError) {
        // The frames may vanish with the socket. Clients see a packet loss.
        self.waiting = 0..0;
        match error {
            IoError::Down(_) => self.link.up = false,
            IoError::Gone(_) => {
                // Heartbeats use a separate socket, which may find the new interface although this
                // one does not.
                self.link.up = false;
                let now = self.now();
                if self.opener.again(&mut self.io, &self.filters.outer, now) {
                    self.reopened += 1;
                    self.reguard();
                    // If it was deleted again, the next check reports it.
                    if let Ok(link) = self.io.link() {
                        self.take_link(link);
                    }
                }
            }
            IoError::Os { .. } => tracing::warn!(error = %error, "packet I/O failed"),
        }
    }

    /// Installs the guard again: the kernel drops its rules with a deleted interface.
    fn reguard(&mut self) {
        let rules = shares(self.services());
        let name = self.io.interface().name();
        let guarded = self.guard.as_ref().map_or(Ok(()), |guard| guard.share(&[name], &rules));
        if let Err(e) = guarded.and_then(|()| self.tunnels.reguard(self.io.interface())) {
            tracing::warn!(error = %e, "the kernel may answer for this interface");
        }
    }

    /// Handles one received frame, from its Ethernet header to the responses.
    fn frame(&mut self, index: usize, application: &mut dyn Application) {
        self.progress();
        let counters = &mut self.counters;
        counters.frames += 1;
        // Responses are written while the request is read, and both borrow the same I/O object. So
        // the request, the shorter of the two, is copied.
        let received = self.io.frame(index);
        let length = received.data.len();
        let Some(copy) = self.frame.get_mut(..length) else {
            counters.damaged += 1;
            return;
        };
        copy.copy_from_slice(received.data);
        let verify = received.checksum == Checksum::Unknown;
        let late = received.came.is_some_and(|came| common_clock().0.saturating_sub(came) > LATE_US);
        self.late = late;
        counters.late += u64::from(late);
        let mut frame = std::mem::take(&mut self.frame);
        let content = match self.tunnels.is_empty() {
            true => Content::Frame,
            false => {
                let (interface, now) = (self.io.interface(), elapsed(self.started));
                self.tunnels.open(&mut frame[..length], &self.filters.inner, interface, now)
            }
        };
        match content {
            Content::Frame => {
                self.handle(&frame[..length], verify, common_clock(), Origin::Wire, application);
            }
            // The checksum of the inner packet was not verified.
            Content::Tunnelled(place) => {
                self.handle(&frame[place], true, common_clock(), Origin::Tunnel, application);
            }
            Content::Elsewhere => {}
        }
        self.frame = frame;
    }

    /// Judges a frame and has its event handled. A new frame is stored in the replay memory. A
    /// detached event is judged a second time, by the step alone and at its time of arrival.
    pub(crate) fn handle(
        &mut self,
        frame: &[u8],
        verify: bool,
        now: Time,
        origin: Origin,
        application: &mut dyn Application,
    ) {
        let counters = &mut self.counters;
        let (ethernet, segment) = match Segment::parse_frame(frame) {
            Ok(parsed) => parsed,
            Err(WireError::OptionMissing(_)) => {
                self.plain(frame, verify, origin);
                return;
            }
            Err(e) => {
                match TooBig::parse(frame) {
                    Some(error) => {
                        counters.too_big += 1;
                        self.paths.learn(error.destination.ip(), error.mtu, elapsed(self.started));
                        self.place.report_path(error.destination.ip(), error.mtu);
                    }
                    None => counters.refuse(&Refusal::Wire(e)),
                }
                return;
            }
        };
        if verify && segment.verify().is_err() {
            counters.damaged += 1;
            return;
        }
        let Some(index) = self.sockets.place(segment.dst) else {
            counters.not_ours += 1;
            return;
        };
        let running = &mut self.running[index];
        let fresh = !matches!(origin, Origin::Detached { .. });
        let trusted = match origin {
            Origin::Wire => running.is_from_tor(ethernet.src),
            // On the path from another rack's ToR, any host could have written the block.
            Origin::Tunnel => {
                let tagged = running.is_tagged(&segment, elapsed(self.started));
                counters.untagged += u64::from(!tagged);
                tagged
            }
            Origin::Detached { trusted } => trusted,
        };
        let policy = &mut running.transport.policy;
        (policy.trust_tor, policy.trust_checked, policy.congested) = (trusted, trusted, self.late);
        let verdict = if fresh {
            running.transport.accept(&segment, &running.keys, now)
        } else {
            step(&segment, &running.keys, now, &running.transport.policy)
        };
        let mut plan = match verdict {
            Ok(Verdict::Respond(plan)) => plan,
            Ok(Verdict::Terminate) => {
                counters.requests += 1;
                counters.terminated += 1;
                return;
            }
            Err(refusal) => {
                tracing::debug!(client = %segment.src, refusal = %refusal, "refused");
                counters.refuse(&refusal);
                if trusted && running.learn(&refusal, &segment) {
                    self.place.add_behind(index);
                }
                return;
            }
        };
        counters.requests += u64::from(fresh);
        // The connection may have started on a path or interface with a larger MTU.
        let mtu = self.paths.mtu(segment.src.ip(), elapsed(self.started)).map_or(self.link.mtu, u32::from);
        plan.limit(payload(mtu.min(self.link.mtu)).into());
        let kind = match (plan.is_close(), segment.syn_options) {
            (true, _) => EventKind::Close,
            (false, Some(_)) => EventKind::Open,
            (false, None) => EventKind::Request,
        };
        let ethernet = EthHeader {
            dst: running.service.member.map_or(ethernet.src, |member| member.tor_mac),
            src: self.link.mac,
            vlan: ethernet.vlan,
        };
        let mut msk = Minisocket {
            plan: &plan,
            transport: &mut running.transport,
            keys: &running.keys,
            io: self.io.as_mut(),
            room: self.link.mtu as usize,
            ethernet,
            kind,
            counters,
            next: 0,
            frame,
            now,
            trusted,
            detached: false,
        };
        if (kind == EventKind::Close || plan.is_for_application())
            && let Err(refusal) = application.event(&mut msk)
        {
            tracing::debug!(client = %segment.src, refusal = %refusal, "refused by the application");
            msk.counters.refuse(&refusal);
            return;
        }
        if !msk.detached {
            msk.finish();
        }
    }
}
