//! One turn of the event loop: what waits is taken, judged, handed to the application, and answered.
//!
//! No request is taken up before its responses find room. A server whose own interface is the bottleneck thus has its
//! queue here, as requests: nothing is lost in it, and connections whose requests wait long are marked (RFC 3168), which
//! halves their windows.

use std::ops::Range;
use std::os::fd::AsFd;
use std::time::Duration;

use rivulet_packet::{EthHeader, Segment, WireError};
use rivulet_pktio::icmp::TooBig;
use rivulet_pktio::{Checksum, IoError, PacketIo};
use rivulet_transport::MAX_RESPONSES;
use rivulet_transport::Time;
use rivulet_transport::server::{Refusal, Verdict, step};

use super::downloads::Who;
use super::{Application, LOOK, Origin, Server, common_clock, elapsed, payload};
use crate::interface::{QUEUE, wait};
use crate::minisocket::{EventKind, Minisocket};
use crate::rules::shares;
use crate::tunnel::Content;

/// Batches taken before timers are looked at again.
const MAX_BATCHES: usize = 8;
/// A request that waited longer than this, microseconds, tells its connection of congestion.
const LONG: u64 = 10_000;
/// How long frames tell when they came after the last time that there was no room, microseconds.
const CALM: u64 = 1_000_000;
/// How long it is not seen that another replica has died, while clients of large answers are remembered.
const WATCH: Duration = Duration::from_millis(20);
/// How long an event that is taken up again waits for room, microseconds.
const PATIENCE: u64 = 100_000;

impl Server {
    /// Waits until there is something to do, `longest` at most, and does it: each request is handed to `application`.
    pub fn turn(&mut self, application: &mut dyn Application, longest: Duration) {
        let due = self.downloads_due();
        let due = due.map(|due| Duration::from_micros(due.saturating_sub(self.now())));
        self.wait(
            !self.waiting.is_empty() || due == Some(Duration::ZERO),
            // Nothing wakes who waits when another replica dies, whose clients are asked then.
            due.map_or(longest, |due| due.min(longest).min(WATCH)),
        );
        if self.io.pending() > 0 {
            self.flush();
        }
        self.look();
        self.tell_of_others();
        self.adopter.tidy(elapsed(self.started));
        while let Some((client, mtu)) = self.place.told() {
            self.paths.learn(client, mtu, self.now());
        }
        self.take_answers();
        if due == Some(Duration::ZERO) {
            // What found no room.
            self.send_downloads(Who::Heard);
        }
        self.load = 0;
        for _ in 0..MAX_BATCHES {
            if self.waiting.is_empty() {
                self.waiting = self.take();
            }
            if self.waiting.is_empty() {
                self.calm();
                break;
            }
            let before = self.waiting.len();
            while let Some(index) = self.next() {
                self.frame(index, application);
            }
            self.load += before - self.waiting.len();
            if std::mem::take(&mut self.heard) {
                // Of all that was heard at once: what follows one another goes in one piece.
                self.send_downloads(Who::Heard);
            }
            self.flush();
            if !self.waiting.is_empty() {
                break;
            }
        }
        if due.is_some() && self.waiting.is_empty() {
            // Behind what came: where this process had to wait for its turn, clients seem silent whose word is here already.
            self.send_downloads(Who::Silent);
            self.flush();
        }
        self.load += self.waiting.len();
        self.place.set_load(self.load + self.open_connections);
        if let Some(pulse) = &self.pulse {
            self.counters.heartbeats = pulse.sent();
            [self.counters.answers, self.counters.answers_refused] = pulse.answers();
            if pulse.lost_interface() {
                // The packet path's own socket may not have noticed.
                self.link.up = false;
                self.looked = self.now().saturating_sub(LOOK);
            }
        }
        self.turned = true;
        self.tell();
        self.progress();
    }

    /// What is done next begins now.
    fn progress(&self) {
        self.place.set_busy(Some(self.now()));
    }

    /// The next batch of frames; none if there are none.
    fn take(&mut self) -> Range<usize> {
        match self.io.recv() {
            Ok(count) => 0..count,
            Err(e) => {
                self.trouble(&e);
                0..0
            }
        }
    }

    /// The next frame, if all its responses find room.
    fn next(&mut self) -> Option<usize> {
        if self.waiting.is_empty() || !self.has_room() {
            return None;
        }
        // An interface that failed at this took them along.
        self.waiting.next()
    }

    /// Nothing waits. After some time of room for all, frames need not say any more when they came.
    fn calm(&mut self) {
        let now = self.now();
        if self.full.take_if(|full| now - *full > CALM).is_some() {
            self.io.set_stamps(false);
        }
    }

    /// Whether all responses of one more request find room to be sent. From the first time that they do not, requests tell
    /// how long they waited.
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

    /// Waits until the responses of an event that is taken up again find room. What finds none for too long is dropped.
    pub(crate) fn await_room(&mut self) {
        let until = self.now() + PATIENCE;
        while !self.has_room() {
            let left = until.saturating_sub(self.now());
            if left == 0 {
                break;
            }
            self.wait(true, Duration::from_micros(left));
        }
    }

    /// An event that is taken up again waited so long: for room, if there was none of late.
    pub(crate) fn waited(&mut self, age: u64) {
        self.late = self.full.is_some() && age > LONG;
        self.counters.late += u64::from(self.late);
    }

    /// Waits for packets and room, or for room alone.
    fn wait(&self, room: bool, longest: Duration) {
        self.place.set_busy(None);
        let other = self.exchanges.as_ref().filter(|_| !room).map(AsFd::as_fd);
        wait(self.io.as_ref(), room, other, longest);
        self.progress();
    }

    pub(crate) fn flush(&mut self) {
        if let Err(e) = self.io.flush() {
            self.trouble(&e);
        }
    }

    pub(super) fn trouble(&mut self, error: &IoError) {
        // Their memory may go with the socket. To their clients this is a loss like another.
        self.waiting = 0..0;
        match error {
            IoError::Down(_) => self.link.up = false,
            IoError::Gone(_) => {
                // Heartbeats have a socket of their own, which may find the new interface where this one cannot.
                self.link.up = false;
                let now = self.now();
                if self.opener.again(&mut self.io, &self.filters.outer, now) {
                    self.reopened += 1;
                    self.reguard();
                    // If it is gone again, the next look says so.
                    if let Ok(link) = self.io.link() {
                        self.take_link(link);
                    }
                }
            }
            IoError::Os { .. } => tracing::warn!(error = %error, "packet I/O"),
        }
    }

    /// The kernel forgets what guarded an interface that was deleted.
    fn reguard(&mut self) {
        let rules = shares(self.services());
        let name = self.io.interface().name();
        let guarded = self.guard.as_ref().map_or(Ok(()), |guard| guard.share(&[name], &rules));
        if let Err(e) = guarded.and_then(|()| self.tunnels.reguard(self.io.interface())) {
            tracing::warn!(error = %e, "the kernel may answer for this interface");
        }
    }

    /// One received frame, from its Ethernet header to the responses.
    fn frame(&mut self, index: usize, application: &mut dyn Application) {
        self.progress();
        let counters = &mut self.counters;
        counters.frames += 1;
        // Responses are written while the request is read, and both lie in memory of the same object: the
        // request, the shorter of the two, is copied.
        let received = self.io.frame(index);
        let length = received.data.len();
        let Some(copy) = self.frame.get_mut(..length) else {
            counters.damaged += 1;
            return;
        };
        copy.copy_from_slice(received.data);
        let verify = received.checksum == Checksum::Unknown;
        let late = received.came.is_some_and(|came| common_clock().0.saturating_sub(came) > LONG);
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
            // Nobody verified what is inside.
            Content::Tunnelled(place) => {
                self.handle(&frame[place], true, common_clock(), Origin::Tunnel, application);
            }
            Content::Elsewhere => {}
        }
        self.frame = frame;
    }

    /// Judges a frame and has its event handled. What is new is remembered against replay; an event that
    /// was detached is judged a second time, by the step alone and at the time when it came.
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
                        self.place.tell(error.destination.ip(), error.mtu);
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
            // Between another rack's ToR and here the block could be anybody's.
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
        // The connection began on a path that took more, or this interface did.
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
