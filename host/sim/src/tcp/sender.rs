//! The sending side.

use std::collections::VecDeque;

use super::Ack;
use super::control::{Control, Event};
use super::rack::Rack;
use super::rto::Rto;
use crate::Nanos;

#[derive(Debug, Clone, Copy)]
struct Sent {
    at: Nanos,
    retransmitted: bool,
    sacked: bool,
    /// Declared lost and not retransmitted yet.
    lost: bool,
}

/// State of the congestion control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Open,
    /// Fast recovery until everything below this segment is acknowledged.
    Recovery(u64),
    /// After a timeout, until everything below this segment is acknowledged.
    Loss(u64),
}

/// Counters of a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Segments sent, including retransmissions.
    pub sent: u64,
    /// Retransmissions.
    pub retransmitted: u64,
    /// Fast recoveries started.
    pub recoveries: u64,
    /// Timeouts.
    pub timeouts: u64,
    /// Tail loss probes.
    pub probes: u64,
    /// Segments declared lost that arrived twice.
    pub spurious: u64,
}

/// The sending side of one connection. The caller sends the segments of [`Sender::poll`], and
/// passes acknowledgements and expiries of [`Sender::next_timeout`].
#[derive(Debug, Clone)]
pub struct Sender {
    total: u64,
    una: u64,
    window: VecDeque<Sent>,
    sacked: usize,
    lost: usize,
    retransmitted_out: usize,
    control: Control,
    mode: Mode,
    /// Ignore further marks until this segment is acknowledged (RFC 3168 §6.1.2).
    reacted: u64,
    rack: Rack,
    rto: Rto,
    rto_at: Option<Nanos>,
    rack_at: Option<Nanos>,
    probe_at: Option<Nanos>,
    /// An outstanding tail loss probe: its segment, and whether it was a retransmission.
    probe: Option<(u64, bool)>,
    /// A segment to send regardless of the window.
    forced: Option<u64>,
    counters: Counters,
}

impl Sender {
    /// Creates a sender of this many segments. `rto` has the handshake's sample.
    pub fn new(total: u64, rto: Rto) -> Self {
        Self::with(total, rto, Control::default())
    }

    /// The same with another congestion control.
    pub fn with(total: u64, rto: Rto, control: Control) -> Self {
        Self {
            total,
            una: 0,
            window: VecDeque::new(),
            sacked: 0,
            lost: 0,
            retransmitted_out: 0,
            control,
            mode: Mode::Open,
            reacted: 0,
            rack: Rack::new(),
            rto,
            rto_at: None,
            rack_at: None,
            probe_at: None,
            probe: None,
            forced: None,
            counters: Counters::default(),
        }
    }

    /// Congestion window, segments.
    pub fn cwnd(&self) -> u32 {
        self.control.window()
    }

    /// Its congestion control.
    pub fn control(&mut self) -> &mut Control {
        &mut self.control
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Whether everything is acknowledged.
    pub fn finished(&self) -> bool {
        self.una >= self.total
    }

    fn next_new(&self) -> u64 {
        self.una + self.window.len() as u64
    }

    /// Whether a segment is ready to send when the window allows it.
    pub fn wants(&self) -> bool {
        self.lost > 0 || self.next_new() < self.total
    }

    /// Whether a segment must be sent regardless of the window.
    pub fn must(&self) -> bool {
        self.forced.is_some_and(|s| s >= self.una)
    }

    /// Smoothed round trip time; 0 without a sample.
    pub fn smoothed(&self) -> Nanos {
        self.rto.smoothed()
    }

    /// Segments that count as in flight (RFC 6675, pipe).
    pub fn pipe(&self) -> usize {
        self.window.len() - self.sacked - self.lost
    }

    /// The earliest timer.
    pub fn next_timeout(&self) -> Option<Nanos> {
        [self.rto_at, self.rack_at, self.probe_at].into_iter().flatten().min()
    }

    /// The next segment to send now, and whether it is the last of all.
    pub fn poll(&mut self, now: Nanos) -> Option<(u64, bool)> {
        let seq = match self.forced.take().filter(|s| *s >= self.una) {
            Some(seq) => seq,
            None if self.pipe() >= self.control.window() as usize => return None,
            None if self.lost > 0 => self.una + self.window.iter().position(|s| s.lost)? as u64,
            None if self.next_new() < self.total => self.next_new(),
            None => return None,
        };
        let index = (seq - self.una) as usize;
        self.counters.sent += 1;
        if index < self.window.len() {
            self.counters.retransmitted += 1;
            let s = &mut self.window[index];
            self.lost -= usize::from(s.lost);
            self.retransmitted_out += usize::from(!s.retransmitted);
            *s = Sent { at: now, retransmitted: true, lost: false, ..*s };
            if index == 0 {
                // As in Linux: the oldest segment was just retransmitted, so its acknowledgement
                // takes a round trip.
                self.rto_at = Some(now + self.rto.timeout());
            }
        } else {
            self.window.push_back(Sent { at: now, retransmitted: false, sacked: false, lost: false });
        }
        self.rto_at.get_or_insert(now + self.rto.timeout());
        self.arm_probe(now);
        Some((seq, seq + 1 == self.total))
    }

    /// Takes an acknowledgement; `echo` is its timestamp.
    pub fn ack(&mut self, now: Nanos, ack: &Ack, echo: Nanos) {
        self.rto.sample(now - echo);
        let (before, mut delivered) = (self.una, 0);
        while self.una < ack.next
            && let Some(s) = self.window.pop_front()
        {
            self.retransmitted_out -= usize::from(s.retransmitted);
            self.lost -= usize::from(s.lost);
            if s.sacked {
                self.sacked -= 1;
            } else {
                delivered += 1;
                self.rack.delivered(now, self.una, s.at, s.retransmitted, self.rto.least());
            }
            self.una += 1;
        }
        let newly_sacked = ack.sacks.iter().map(|r| self.sack(now, *r)).sum::<u64>();
        let acked = self.una - before;
        if let Some(seq) = ack.duplicate {
            self.counters.spurious += 1;
            if self.probe.is_none_or(|p| p.0 != seq) {
                self.rack.spurious();
            }
        }
        self.end_probe(ack);
        if let Mode::Recovery(end) | Mode::Loss(end) = self.mode
            && self.una >= end
        {
            if matches!(self.mode, Mode::Recovery(_)) {
                self.control.on(Event::Recovered);
            }
            self.mode = Mode::Open;
        }
        let marked = ack.marked && self.mode == Mode::Open && self.una > self.reacted;
        if marked {
            self.reacted = self.next_new();
            self.control.on(Event::Marked);
        }
        // Segments that were selectively acknowledged before have already grown the window: the
        // acknowledgement that ends a recovery must not grow it by a whole window.
        let grows = !marked && !matches!(self.mode, Mode::Recovery(_));
        self.control.on(Event::Delivered {
            segments: delivered + newly_sacked as u32,
            acked: delivered,
            grows,
            now,
        });
        self.detect(now);
        if acked > 0 {
            self.rto_at = (!self.window.is_empty()).then(|| now + self.rto.timeout());
        }
        if acked + newly_sacked > 0 {
            self.arm_probe(now);
        }
    }

    fn sack(&mut self, now: Nanos, (from, to): (u64, u64)) -> u64 {
        let mut newly = 0;
        for seq in from.max(self.una)..to.min(self.next_new()) {
            let s = &mut self.window[(seq - self.una) as usize];
            if !s.sacked {
                s.sacked = true;
                self.sacked += 1;
                newly += 1;
                self.lost -= usize::from(std::mem::take(&mut s.lost));
                self.rack.delivered(now, seq, s.at, s.retransmitted, self.rto.least());
            }
        }
        newly
    }

    /// RACK's detection (RFC 8985 §6.2, step 5).
    fn detect(&mut self, now: Nanos) {
        self.rack_at = None;
        if self.sacked == 0 && self.retransmitted_out == 0 {
            return;
        }
        let window = self.rack.window(&self.rto, self.mode != Mode::Open, self.sacked);
        let mut declared = false;
        for (i, s) in self.window.iter_mut().enumerate() {
            if s.sacked || s.lost {
                continue;
            }
            match self.rack.deadline(self.una + i as u64, s.at, window) {
                Some(deadline) if deadline <= now => {
                    s.lost = true;
                    self.lost += 1;
                    declared = true;
                }
                Some(deadline) => self.rack_at = Some(self.rack_at.map_or(deadline, |at| at.max(deadline))),
                None => {}
            }
        }
        if declared && self.mode == Mode::Open {
            self.counters.recoveries += 1;
            self.rack.recovery();
            self.control.on(Event::Lost);
            self.mode = Mode::Recovery(self.next_new());
            // The first retransmission does not wait until the window has shrunk (RFC 6675 §5, step
            // 4.3).
            self.forced = self.window.iter().position(|s| s.lost).map(|i| self.una + i as u64);
        }
    }

    /// Sets the probe timer when no other event would come before the timeout (RFC 8985 §7.2).
    fn arm_probe(&mut self, now: Nanos) {
        let wanted =
            self.mode == Mode::Open && self.sacked == 0 && !self.window.is_empty() && self.probe.is_none();
        self.probe_at = wanted.then(|| now + self.rto.probe_timeout());
    }

    /// Handles the acknowledgement of the probe (RFC 8985 §7.4): without a duplicate the
    /// retransmission repaired a loss.
    fn end_probe(&mut self, ack: &Ack) {
        let Some((seq, retransmission)) = self.probe else { return };
        if ack.duplicate == Some(seq) {
            self.probe = None;
        } else if ack.next > seq {
            self.probe = None;
            if retransmission && self.mode == Mode::Open {
                self.control.on(Event::Lost);
            }
        }
    }

    /// Handles the timers that are due.
    pub fn timeout(&mut self, now: Nanos) {
        if self.rack_at.is_some_and(|at| at <= now) {
            self.detect(now);
        }
        if self.probe_at.is_some_and(|at| at <= now) {
            self.probe_at = None;
            self.counters.probes += 1;
            let retransmission = self.next_new() >= self.total;
            let seq = self.next_new() - u64::from(retransmission);
            self.probe = Some((seq, retransmission));
            self.forced = Some(seq);
            self.rto_at = Some(now + self.rto.timeout());
        }
        if self.rto_at.is_some_and(|at| at <= now) {
            self.counters.timeouts += 1;
            self.control.on(Event::TimedOut { again: matches!(self.mode, Mode::Loss(_)) });
            self.mode = Mode::Loss(self.next_new());
            // RFC 8985 §6.3: the oldest segment, and those sent a round trip before.
            let old = now.saturating_sub(self.rto.smoothed() + self.rto.least() / 4);
            for (i, s) in self.window.iter_mut().enumerate().filter(|(_, s)| !s.sacked && !s.lost) {
                if i == 0 || s.at <= old {
                    s.lost = true;
                    self.lost += 1;
                }
            }
            self.rto.back_off();
            self.rto_at = Some(now + self.rto.timeout());
            (self.probe, self.probe_at, self.rack_at) = (None, None, None);
        }
    }
}
