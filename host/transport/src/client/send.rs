//! What a connection sends, and when (section 4).

use alloc::vec::Vec;
use rivulet_packet::request::FIXED;
use rivulet_packet::{
    Class, Ecn, EntryKind, MAX_ATTEMPT, ProofEntry, RequestClass, SealedContinuation, TransportContinuation,
};

use super::connection::{Connection, LEAST_PAUSE, Pace, Phase, Retransmission, Revival};
use super::request::{Asked, Shape};
use super::types::ConnectionError;
use crate::server::predict;
use crate::time::{MILLISECOND, Micros, SECOND, Time};
use crate::verdict::{Decision, Go, INITIAL_WINDOW, MAX_RESPONSES, answered_before, decide, piece_of};

/// Smallest SYN: at least as large as the answer without data that it allows.
const LEAST_SYN: usize = 128;

/// Maximum delay of an acknowledgement.
const ACK_DELAY: u64 = 25 * MILLISECOND;
/// Windows up to this size are not delayed.
const SMALL_WINDOW: u32 = 4;

/// Larger verdicts are rejected: no correct server's continuation leads to one, and a malicious one
/// could fill our memory.
fn within_capacity(decision: Decision) -> Decision {
    match decision {
        Decision::Go(go) if go.new.count as usize > MAX_RESPONSES => Decision::Close,
        other => other,
    }
}

impl Connection {
    /// Writes the next packet, from the IP header on, into `packet` (of MTU size) and returns its
    /// length. `None`: nothing to send now.
    pub fn poll_transmit(&mut self, now: Time, packet: &mut [u8]) -> Option<usize> {
        self.clock = self.clock.max(now);
        match self.phase {
            Phase::Idle | Phase::Over => None,
            Phase::Opening { send, bare, .. } => send.then(|| self.send_syn(now, bare, packet)).flatten(),
            Phase::Completing { send, .. } => send.then(|| self.send_completion(now, packet)).flatten(),
            Phase::Closing { .. } => self.send_close(now, packet),
            Phase::Open => self.send_open(now, packet),
        }
    }

    fn send_open(&mut self, now: Time, packet: &mut [u8]) -> Option<usize> {
        // Events that are waiting do not need another timer call.
        self.delay_until = self.delay_until.filter(|t| *t > now);
        self.pace.next = self.pace.next.filter(|t| *t > now);
        self.regenerating.retain(|(_, until)| *until > now);
        self.revive_if_terminated(now);
        match self.revival {
            Revival::None => {}
            Revival::Timeout { due, .. } | Revival::Rekey { due, .. } | Revival::Restart { due, .. }
                if due <= now =>
            {
                return self.send_revival(now, packet);
            }
            _ => return None,
        }
        if core::mem::take(&mut self.probe_now)
            && let Some(n) = self.send_probe(now, packet)
        {
            return Some(n);
        }
        if let Some(n) = self.send_trickle(now, packet) {
            return Some(n);
        }
        // The last trickle may just have terminated.
        self.revive_if_terminated(now);
        if self.revival == Revival::None { None } else { self.send_revival(now, packet) }
    }

    /// Sends from the lowest usable continuation, if there is something to request.
    fn send_trickle(&mut self, now: Time, packet: &mut [u8]) -> Option<usize> {
        loop {
            let generation = self.generation.as_ref()?;
            let index = generation.first_ready()?;
            let sealed = generation.slot(index)?.sealed?;
            let business = self.has_business(now);
            if business && self.is_stale(index, now) {
                self.revive(now);
                return self.send_revival(now, packet);
            }
            if business && self.drain_from.is_some_and(|from| from <= now) {
                if self.generation.as_ref()?.is_awaiting() {
                    return None;
                }
                let latest = self.generation.as_ref()?.latest_continuation()?;
                if self.is_drained(latest) {
                    self.revive(now);
                    return self.send_revival(now, packet);
                }
                // Losses were found on the way: recover first, then retry.
                self.drain_from = Some(now + 8 * self.rtt.smoothed().unwrap_or(LEAST_PAUSE));
            }
            self.pace_after_pause(index, business, now);
            if self.pace.next.is_some() {
                return None;
            }
            let (index, covers) = self.pair(index, &sealed, now)?;
            let generation = self.generation.as_mut()?;
            let sealed = generation.slot(index)?.sealed?;
            let proof = generation.proof(index);
            let decision = decide(RequestClass::Normal, &sealed.fields, covers, proof.iter().copied());
            let Ok(Decision::Go(go)) = decision.map(within_capacity) else {
                generation.spend(index);
                continue;
            };
            if go.is_termination() {
                generation.spend(index);
                self.statistics.terminated += 1;
                continue;
            }
            if !business {
                return None;
            }
            if self.awaits_regenerated(&go) {
                return None;
            }
            if let Some(length) = self.send_normal(index, covers, &sealed, &go, now, packet) {
                return Some(length);
            }
            let generation = self.generation.as_ref()?;
            if go.new.iter().any(|n| generation.is_open(generation.index(n))) {
                return None;
            }
            // It terminates and has nothing to retransmit, so the next one may be used.
            self.generation.as_mut()?.spend(index);
            self.statistics.terminated += 1;
        }
    }

    /// Whether another request in flight regenerates some of the same numbers. Requests that share
    /// a long run of losses are answered one after the other: the first regenerated numbers
    /// directly follow those that the next requests bring.
    fn awaits_regenerated(&self, go: &Go) -> bool {
        self.regenerating.iter().any(|(numbers, _)| numbers.overlaps(go.group))
    }

    fn send_normal(
        &mut self,
        index: u32,
        covers: u8,
        sealed: &SealedContinuation,
        go: &Go,
        now: Time,
        packet: &mut [u8],
    ) -> Option<usize> {
        let proof = self.generation.as_ref()?.proof(index);
        let fixed = FIXED + SealedContinuation::LENGTH + proof.len() * 8;
        // A regenerated trickle may come too late: its number, and so all that its request would
        // yield, was declared lost.
        let generation = self.generation.as_ref()?;
        let alive = go.new.iter().any(|n| generation.is_open(generation.index(n)));
        let fresh = if alive { go.new.count } else { 0 };
        let asked = self.collect(go.retransmit.count, fresh, false, alive, fixed, now);
        if asked.is_empty() && (go.group.count == 0 || !alive) {
            self.put_back(asked);
            return None;
        }
        let shape = Shape {
            class: RequestClass::Normal,
            continuation: Some(sealed),
            index: Some(index),
            attempt: 0,
            covers,
            pad_to: 0,
        };
        let Some(length) = self.build(&shape, &asked, now, packet) else {
            self.put_back(asked);
            return None;
        };
        let due = now + self.rtt.probe_timeout();
        for (number, want) in go.retransmit.iter().zip(asked.again) {
            self.retransmissions.push(Retransmission { number, want, sent_at: now, due });
        }
        if go.group.count > 0 {
            let pause = self.rtt.smoothed().unwrap_or(LEAST_PAUSE) + self.rtt.reordering_window();
            self.regenerating.push((go.group, now + pause));
        }
        let predicted = predict(&sealed.fields, go);
        let mut input = asked.input.map(|(stream, found)| (stream, found.range, found.fin));
        let mut fresh = asked.fresh.into_iter();
        let generation = self.generation.as_mut()?;
        generation.spend(index);
        if covers == 2 {
            generation.spend(index - 1);
        }
        self.delay_until = None;
        for number in go.new.iter() {
            let at = generation.index(number);
            let want = fresh.next();
            match generation.expect(at, index, now) {
                Some(slot) => {
                    slot.want = want;
                    slot.predicted = Some(TransportContinuation { number, ..predicted });
                    slot.input = input.take();
                }
                None => {
                    if let Some(want) = want {
                        self.streams.entry((want.start >> 48) as u16).and_modify(|s| s.output.settle(want));
                    }
                }
            }
        }
        (self.last_sent, self.last_progress) = (now, now);
        if self.pace.left > 0 {
            self.pace.left -= 1;
            match self.pace.at_once.checked_sub(1) {
                Some(rest) => self.pace.at_once = rest,
                None => self.pace.next = (self.pace.left > 0).then(|| now + self.pace.interval),
            }
        }
        Some(length)
    }

    /// Whether the lowest usable number should wait for the next one, so that one request covers
    /// both. Never in slow start, after a gap, or with a small window; at most for one number or 25
    /// ms. `None`: wait.
    fn pair(&mut self, index: u32, sealed: &SealedContinuation, now: Time) -> Option<(u32, u8)> {
        let alone = Some((index, 1));
        let generation = self.generation.as_ref()?;
        let c = &sealed.fields;
        let window = piece_of(c).cwnd(c.number);
        if !self.config.delayed_acks || window <= SMALL_WINDOW || window < u32::from(c.ssthresh) {
            return alone;
        }
        let whole = |proof: &[ProofEntry]| matches!(proof, [one] if one.kind == EntryKind::Original && one.first == 0);
        if !whole(&generation.proof(index)) {
            return alone;
        }
        match generation.slot(index + 1).filter(|_| generation.is_ready(index + 1)).and_then(|s| s.sealed) {
            Some(next) => {
                let proof = generation.proof(index + 1);
                let both = decide(RequestClass::Normal, &next.fields, 2, proof.iter().copied());
                if whole(&proof) && both.is_ok() { Some((index + 1, 2)) } else { alone }
            }
            None => {
                let until = generation.slot(index)?.received_at + ACK_DELAY;
                if until <= now || !generation.is_awaiting() {
                    return alone;
                }
                self.delay_until = Some(until);
                None
            }
        }
    }

    /// Sends a PROBE for the highest request without a full answer.
    fn send_probe(&mut self, now: Time, packet: &mut [u8]) -> Option<usize> {
        let generation = self.generation.as_ref()?;
        let parent = generation.highest_expected()?.1.parent;
        let sealed = generation.slot(parent)?.sealed?;
        let shape = Shape {
            class: RequestClass::Probe,
            continuation: Some(&sealed),
            index: Some(parent),
            attempt: self.probes.saturating_sub(1),
            covers: 1,
            pad_to: 0,
        };
        let length = self.build(&shape, &Asked::default(), now, packet)?;
        self.statistics.probes += 1;
        Some(length)
    }

    /// Whether the trickles were unused for so long that they must be given up: the continuation is
    /// near the end of its horizon, or the connection was idle for
    /// [`Rtt::idle`](super::rtt::Rtt::idle).
    fn is_stale(&self, index: u32, now: Time) -> bool {
        let Some(slot) = self.generation.as_ref().and_then(|g| g.slot(index)) else { return true };
        self.unused_for(slot.received_at, now) > self.rtt.idle() || self.is_expired(slot.received_at, now)
    }

    fn unused_for(&self, received_at: Time, now: Time) -> Micros {
        now.since(self.last_sent.max(received_at))
    }

    /// Paces a window that was unused for a timeout over one round trip, as the Congestion Manager
    /// does, because the queue that it would fill may no longer be empty. Its first requests leave
    /// at once, like those of a new connection (RFC 6928).
    fn pace_after_pause(&mut self, index: u32, business: bool, now: Time) {
        let Some(generation) = self.generation.as_ref().filter(|_| business) else { return };
        let (Some(slot), Some(srtt)) = (generation.slot(index), self.rtt.smoothed()) else { return };
        let ready = generation.ready_count();
        if self.unused_for(slot.received_at, now) > self.rtt.rto() && ready > usize::from(INITIAL_WINDOW) {
            let interval = srtt / ready as Micros;
            self.pace = Pace { next: None, interval, left: ready, at_once: INITIAL_WINDOW.into() };
        }
    }

    /// Whether a continuation received at that time may be older than the horizon on arrival. A
    /// continuation just received is tried however long the round trip seems: the estimate may be
    /// wrong, and RESTARTs bring neither data nor a sample to correct it.
    pub(super) fn is_expired(&self, received_at: Time, now: Time) -> bool {
        let margin = 2 * self.rtt.smoothed().unwrap_or(SECOND / 4) + 200 * MILLISECOND;
        now.since(received_at) + margin.min(self.config.horizon / 8 * 7) > self.config.horizon
    }

    /// Chooses the mildest revival that can still work, to be sent at once.
    pub(super) fn revive(&mut self, now: Time) {
        let fresh = self.generation.as_ref().is_some_and(|g| {
            g.latest_continuation()
                .and_then(|i| g.slot(i))
                .is_some_and(|s| !self.is_expired(s.received_at, now))
        });
        let moved = self.must_restart;
        self.abandon_outstanding();
        self.revival = match fresh && !moved {
            true => Revival::Timeout { attempts: 0, due: now },
            false => Revival::Restart { attempts: 0, due: now },
        };
    }

    /// Stops waiting for outstanding responses and schedules their requests again.
    pub(super) fn abandon_outstanding(&mut self) {
        self.regenerating.clear();
        let Some(generation) = self.generation.as_mut() else { return };
        let (wants, inputs) = generation.abandon();
        for want in
            wants.into_iter().chain(self.retransmissions.drain(..).map(|r| r.want).collect::<Vec<_>>())
        {
            self.settle_want(want);
        }
        for (stream, range, fin) in inputs {
            self.input_lost(stream, range, fin);
        }
    }

    /// Sends a REKEY, TIMEOUT or RESTART.
    fn send_revival(&mut self, now: Time, packet: &mut [u8]) -> Option<usize> {
        // Wants of an unanswered attempt are requested again.
        for want in core::mem::take(&mut self.wanted_in_revival) {
            self.settle_want(want);
        }
        if let Some((stream, range, fin)) = self.syn_input.take() {
            self.input_lost(stream, range, fin);
        }
        let generation = self.generation.as_ref()?;
        let Some(index) = generation.latest_continuation() else {
            // No continuation is left that a server would accept.
            self.fail(ConnectionError::TimedOut);
            return None;
        };
        let sealed = generation.slot(index)?.sealed?;
        let (class, attempts) = match self.revival {
            Revival::Timeout { attempts: 0, .. } if self.is_drained(index) => (RequestClass::Rekey, 0),
            Revival::Timeout { attempts, .. } => (RequestClass::Timeout, attempts),
            Revival::Rekey { attempts, .. } => (RequestClass::Rekey, attempts),
            // An attempt number is refused for a horizon after its use, and at most one RESTART is
            // sent in a quarter of a horizon.
            Revival::Restart { attempts, .. } => (RequestClass::Restart, (attempts % 4) as u8),
            Revival::None => return None,
        };
        let attempt = attempts.min(MAX_ATTEMPT);
        let fixed = FIXED + SealedContinuation::LENGTH + self.generation.as_ref()?.proof(index).len() * 8;
        let asked = match class {
            RequestClass::Restart => Asked::default(),
            // The answer to a repeated attempt carries no data.
            _ if attempt > 0 => Asked::default(),
            RequestClass::Rekey => self.collect(0, u32::from(INITIAL_WINDOW), true, true, fixed, now),
            _ => self.collect(0, 1, true, true, fixed, now),
        };
        let shape = Shape {
            class,
            continuation: Some(&sealed),
            index: (class != RequestClass::Restart).then_some(index),
            attempt,
            covers: 1,
            pad_to: 0,
        };
        let length = self.build(&shape, &asked, now, packet)?;
        self.wanted_in_revival = asked.fresh.into_iter().collect();
        self.syn_input = asked.input.map(|(stream, found)| (stream, found.range, found.fin));
        let due = now + self.spread_out(self.rtt.rto());
        self.revival = match self.revival {
            Revival::Restart { attempts, .. } => {
                self.statistics.restarts += 1;
                Revival::Restart { attempts: attempts + 1, due }
            }
            Revival::Timeout { attempts, .. } if class == RequestClass::Timeout => {
                self.statistics.timeouts += 1;
                Revival::Timeout { attempts: attempts + 1, due }
            }
            _ => {
                self.statistics.rekeys += 1;
                Revival::Rekey { attempts: attempt + 1, due }
            }
        };
        (self.last_sent, self.last_progress) = (now, now);
        Some(length)
    }

    /// Whether the window of `index` was received completely and is unused, so that a REKEY can
    /// move all of it.
    pub(super) fn is_drained(&self, index: u32) -> bool {
        let Some(generation) = self.generation.as_ref() else { return false };
        let Some(sealed) = generation.slot(index).and_then(|s| s.sealed) else { return false };
        let proof = generation.proof(index);
        let window = sealed.fields.number.wrapping_sub(answered_before(&sealed.fields));
        let all = generation.ready_count() as u32 >= window;
        all && decide(RequestClass::Rekey, &sealed.fields, 1, proof.iter().copied()).is_ok()
    }

    fn send_syn(&mut self, now: Time, bare: bool, packet: &mut [u8]) -> Option<usize> {
        let (attempts, due) = match self.phase {
            Phase::Opening { attempts, .. } => (
                attempts + 1,
                now + self.spread_out((SECOND << attempts.min(6)).min(self.config.max_backoff)),
            ),
            _ => return None,
        };
        if let Some((stream, range, fin)) = self.syn_input.take() {
            self.input_lost(stream, range, fin);
        }
        self.seq = self.isn;
        // A retransmitted SYN carries the same data.
        self.last_input_stream = u16::MAX;
        let length = if bare {
            self.frame(Class::Request(RequestClass::Syn), 0, Ecn::NotEct, 0, now, packet)?
        } else {
            let limit = self.largest_payload().saturating_sub(20);
            let token = self.config.token.clone();
            let fixed = FIXED + 20 + token.as_ref().map_or(0, |t| 1 + t.len());
            let asked = self.collect(0, 0, true, true, fixed, now);
            let pad_to = if asked.input.is_some() { limit } else { LEAST_SYN };
            let shape = Shape {
                class: RequestClass::Syn,
                continuation: None,
                index: None,
                attempt: 0,
                covers: 1,
                pad_to,
            };
            let length = self.build(&shape, &asked, now, packet)?;
            self.syn_input = asked.input.map(|(stream, found)| (stream, found.range, found.fin));
            length
        };
        self.phase = Phase::Opening { attempts, due, bare, send: false };
        self.last_sent = now;
        Some(length)
    }

    /// Completes an opening by cookie.
    fn send_completion(&mut self, now: Time, packet: &mut [u8]) -> Option<usize> {
        let Phase::Completing { cookie, attempts, .. } = self.phase else { return None };
        let attempt = attempts.min(u32::from(MAX_ATTEMPT)) as u8;
        if let Some((stream, range, fin)) = self.syn_input.take() {
            self.input_lost(stream, range, fin);
        }
        self.seq = self.isn.wrapping_add(1);
        self.ack = cookie.wrapping_add(1);
        let mss = self.mss_option().saturating_sub(8);
        let blank =
            SealedContinuation { fields: TransportContinuation { mss, ..Default::default() }, mac: [0; 12] };
        let asked = match attempt {
            0 => self.collect(0, 0, true, true, FIXED + SealedContinuation::LENGTH, now),
            _ => Asked::default(),
        };
        let shape = Shape {
            class: RequestClass::Restart,
            continuation: Some(&blank),
            index: None,
            attempt,
            covers: 1,
            pad_to: 0,
        };
        let length = self.build(&shape, &asked, now, packet)?;
        self.syn_input = asked.input.map(|(stream, found)| (stream, found.range, found.fin));
        let due = now + self.spread_out(self.rtt.rto());
        self.phase = Phase::Completing { cookie, due, send: false, attempts: attempts + 1 };
        self.last_sent = now;
        Some(length)
    }
}
