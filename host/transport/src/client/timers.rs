//! Timers of a connection.

use super::connection::{Connection, ConnectionError, GIVEN_UP, Phase, Revival, mix};
use super::generation::Generation;
use crate::time::{Micros, Time};
use rivulet_packet::MAX_ATTEMPT;

/// Probes of one tail before the retransmission timeout counts. Each is twice as late as the one
/// before, so that with short round trips the last one follows the ToR's detection of a replica's
/// death. A number may be probed four times.
const MAX_PROBES: u8 = 3;
/// Originals received since the last probed tail that allow more than one probe (RFC 8985, 7.3
/// allows one). On a path so congested that a thousand windows of one packet share it, tails are
/// lost all the time, and answers to probes would fill the path.
const CALM: u32 = 32;
/// TIMEOUTs before a RESTART.
const MAX_TIMEOUTS: u8 = 3;
/// Attempts to complete a bare SYN before the opening starts over.
const MAX_COMPLETIONS: u32 = 3;

impl Connection {
    /// When [`Connection::handle_timeout`] must be called. `None`: only after a packet or another
    /// call.
    pub fn poll_timeout(&self) -> Option<Time> {
        match self.phase {
            Phase::Idle | Phase::Over => None,
            Phase::Opening { due, .. } | Phase::Completing { due, .. } | Phase::Closing { due, .. } => {
                Some(due)
            }
            Phase::Open => {
                let rests = self
                    .streams
                    .values()
                    .flat_map(|s| [s.output.rests_until(self.clock), s.input.rests_until(self.clock)]);
                let retransmissions = self.retransmissions.iter().map(|r| Some(r.due));
                let regenerating = self.regenerating.iter().map(|(_, until)| Some(*until));
                [
                    self.detection,
                    self.revival_due(),
                    self.tail_due(),
                    self.give_up_at(),
                    self.delay_until,
                    self.pace.next,
                ]
                .into_iter()
                .chain(rests)
                .chain(retransmissions)
                .chain(regenerating)
                .flatten()
                .min()
            }
        }
    }

    fn revival_due(&self) -> Option<Time> {
        match self.revival {
            Revival::None => None,
            Revival::Timeout { due, .. } | Revival::Rekey { due, .. } | Revival::Restart { due, .. } => {
                Some(due)
            }
        }
    }

    /// When the tail is probed, or given up by a timeout.
    fn tail_due(&self) -> Option<Time> {
        let awaiting = self.generation.as_ref().is_some_and(|g| g.is_awaiting());
        if !awaiting || self.revival != Revival::None {
            return None;
        }
        let pause = match self.probes {
            0 => self.rtt.probe_timeout(),
            n if n < self.most_probes => self.rtt.probe_timeout() << n,
            n => self.rtt.rto().max(self.rtt.probe_timeout() << n),
        };
        Some(self.last_progress + pause)
    }

    /// When the connection fails, because no response arrived for too long although one is awaited.
    fn give_up_at(&self) -> Option<Time> {
        let awaited =
            self.revival != Revival::None || self.generation.as_ref().is_some_and(|g| g.is_awaiting());
        awaited.then(|| self.last_received.max(self.first_unanswered) + self.config.give_up_after)
    }

    /// Handles the timers that are due at `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        self.clock = self.clock.max(now);
        self.notice_pause(now);
        match self.phase {
            Phase::Idle | Phase::Over | Phase::Closing { .. } => {}
            Phase::Opening { attempts, due, send, .. } => {
                if due <= now && !send {
                    if attempts >= self.config.syn_attempts {
                        return self.fail(ConnectionError::Unreachable);
                    }
                    // Some paths drop SYNs with data.
                    self.phase = Phase::Opening { attempts, due, bare: true, send: true };
                }
            }
            Phase::Completing { cookie, attempts, due, send } => {
                if due <= now && !send {
                    self.rtt.back_off();
                    self.phase = if attempts < MAX_COMPLETIONS {
                        Phase::Completing { cookie, attempts, due, send: true }
                    } else if now.since(self.last_received) > self.config.give_up_after {
                        return self.fail(ConnectionError::Unreachable);
                    } else {
                        // A completion is accepted once, so another ISN opens another connection.
                        self.isn = self.isn.wrapping_add(mix(now.0) as u32 | 1);
                        Phase::Opening { attempts: 1, due: now, bare: false, send: true }
                    };
                }
            }
            Phase::Open => self.open_timeout(now),
        }
    }

    /// Detects that the process or machine was stopped: a timer is late by more than the time a
    /// window stays valid. Outstanding requests are abandoned, and the connection resumes with one
    /// request. The time without responses does not count against the server.
    fn notice_pause(&mut self, now: Time) {
        let late = self.poll_timeout().map_or(0, |due| now.since(due));
        if late <= self.rtt.idle() {
            return;
        }
        self.last_received = now;
        let awaits =
            self.revival != Revival::None || self.generation.as_ref().is_some_and(|g| g.is_awaiting());
        if matches!(self.phase, Phase::Open) && awaits {
            self.rtt.answered();
            self.revive(now);
        }
    }

    fn open_timeout(&mut self, now: Time) {
        if self.give_up_at().is_some_and(|due| due <= now) {
            return self.fail(ConnectionError::TimedOut);
        }
        while let Some(at) = self.retransmissions.iter().position(|r| r.due <= now) {
            let lost = self.retransmissions.swap_remove(at);
            self.settle_want(lost.want);
            if self.given_up.len() == GIVEN_UP {
                self.given_up.pop_front();
            }
            self.given_up.push_back((lost.number, lost.sent_at));
        }
        if self.detection.is_some_and(|due| due <= now) {
            let held = self.generation.as_ref().map_or(0, Generation::ready_count);
            self.settle_declared(now);
            self.pace_released(held);
        }
        match self.revival {
            Revival::Timeout { attempts, due } if due <= now && attempts > 0 => {
                self.rtt.back_off();
                if attempts >= MAX_TIMEOUTS {
                    self.revival = Revival::Restart { attempts: 0, due: now };
                }
            }
            // No TIMEOUT here: if the server accepted the REKEY, the old generation is left, and
            // only its responses were lost.
            Revival::Rekey { attempts, due } if due <= now => {
                self.rtt.back_off();
                if attempts > MAX_ATTEMPT || !self.has_fresh_continuation(now) {
                    self.revival = Revival::Restart { attempts: 0, due: now };
                }
            }
            Revival::Restart { attempts, due } if due <= now && attempts > 0 => self.rtt.back_off(),
            Revival::None if self.tail_due().is_some_and(|due| due <= now) => {
                if self.probes == 0 {
                    self.most_probes = if self.calm >= CALM { MAX_PROBES } else { 1 };
                }
                if self.probes < self.most_probes && self.rtt.smoothed().is_some() {
                    self.probes += 1;
                    self.calm = 0;
                    self.probe_now = true;
                } else {
                    self.time_out(now);
                }
            }
            _ => {}
        }
        // A continuation too old for a TIMEOUT is still valid for a RESTART.
        if let Revival::Timeout { due, .. } = self.revival
            && due <= now
            && !self.has_fresh_continuation(now)
        {
            self.revival = Revival::Restart { attempts: 0, due: now };
        }
        self.revive_if_terminated(now);
    }

    /// Adds up to a quarter to a pause, derived from the connection's seed. Otherwise all clients
    /// of a failed server would return at the same instants, and could always miss a server that is
    /// up periodically.
    pub(super) fn spread_out(&self, pause: Micros) -> Micros {
        let random = mix(self.config.seed ^ self.statistics.requests.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        pause + (pause / 4 * (random & 0xff)) / 256
    }

    fn time_out(&mut self, now: Time) {
        self.rtt.back_off();
        self.revive(now);
    }

    pub(super) fn has_fresh_continuation(&self, now: Time) -> bool {
        let Some(g) = self.generation.as_ref() else { return false };
        let slot = g.latest_continuation().and_then(|i| g.slot(i));
        !self.must_restart && slot.is_some_and(|s| !self.is_expired(s.received_at, now))
    }

    /// Starts a revival if all trickles terminated but there is something to request.
    pub(super) fn revive_if_terminated(&mut self, now: Time) {
        let Some(g) = self.generation.as_ref() else { return };
        if self.revival == Revival::None
            && g.first_ready().is_none()
            && g.is_settled()
            && self.has_business(now)
        {
            self.revive(now);
        }
    }
}
