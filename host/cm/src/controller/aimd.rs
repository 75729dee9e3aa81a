//! The paper's controller: slow start, additive increase and multiplicative decrease, in bytes.
//!
//! `host/bpf/src/bpf/macroflow.h` implements the same rules in C for the kernel. A test checks that
//! both produce equal numbers after each step.

use super::rules::{FORGET, LEAST, MAX_STEPS, MAX_WINDOW, MIN_STEP};
use super::{Congestion, Controller, Report, Rtt, Rules};
use crate::Nanos;

/// A congestion window that behaves like TCP Reno's (RFC 5681) but counts bytes (RFC 3465).
///
/// - Slow start adds the acknowledged bytes, at most [`Rules::limit`] MTUs a report. Congestion
///   avoidance adds one MTU a window. The window grows only while it limits the flows, and after a
///   reduction only once all bytes sent before it are reported.
/// - Transient congestion and ECN marks halve the window, to at least two MTUs. They do so once
///   until all bytes sent before the reduction are reported, and not for bytes that a flow sent
///   before it learned of the reduction.
/// - Persistent congestion sets the window to one MTU and starts slow start, unless another flow's
///   packets still arrive: then it counts as transient.
/// - Each idle timeout (at least one second) halves the window towards the initial one and doubles
///   the threshold, because knowledge of the path expires in both directions. Ten idle minutes
///   reset everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aimd {
    rules: Rules,
    mtu: u64,
    cwnd: u64,
    ssthresh: u64,
    /// Bytes acknowledged in congestion avoidance since the window last grew; less than `cwnd`.
    credit: u64,
    /// Bytes sent and bytes reported, over all flows, since the start.
    sent: u64,
    reported: u64,
    /// Value of `sent` at the last reduction.
    recover: u64,
    /// Number of reductions so far.
    reductions: u64,
    /// (`cwnd`, `ssthresh`) before the last reduction, for [`Aimd::undo`].
    prior: (u64, u64),
    /// The last reduction was for persistent congestion: acknowledged bytes may grow the window
    /// again.
    collapsed: bool,
    /// Nothing was acknowledged since persistent congestion was reported.
    silent: bool,
    rtt: Rtt,
    /// When bytes were last sent or reported.
    active: Nanos,
    /// Time of the last acknowledgement, the flow that it was for, and the time of the last
    /// acknowledgement for any other flow (0: never).
    arrived: (Nanos, u64, Nanos),
}

impl Aimd {
    /// Creates the window of a path without history. An MTU of 0 counts as 1; larger MTUs than
    /// 65,535 count as 65,535.
    #[must_use]
    pub fn new(rules: Rules, mtu: u32) -> Self {
        let mtu = clamp_mtu(mtu);
        Self {
            rules,
            mtu,
            cwnd: initial(&rules, mtu),
            ssthresh: MAX_WINDOW,
            credit: 0,
            sent: 0,
            reported: 0,
            recover: 0,
            reductions: 0,
            prior: (0, 0),
            collapsed: false,
            silent: false,
            rtt: Rtt::default(),
            active: 0,
            arrived: (0, 0, 0),
        }
    }

    /// Slow-start threshold in bytes.
    #[must_use]
    pub fn ssthresh(&self) -> u64 {
        self.ssthresh
    }

    /// Bytes sent, and bytes reported, since the beginning.
    #[must_use]
    pub fn counted(&self) -> (u64, u64) {
        (self.sent, self.reported)
    }

    /// Whether bytes sent before the last reduction are still unreported.
    #[must_use]
    pub fn recovering(&self) -> bool {
        self.reported < self.recover
    }

    /// Number of reductions so far; [`Aimd::undo`] takes it.
    #[must_use]
    pub fn reductions(&self) -> u64 {
        self.reductions
    }

    /// The whole state as named numbers, to compare it with the kernel's.
    #[must_use]
    pub fn numbers(&self) -> [(&'static str, u64); 18] {
        [
            ("mtu", self.mtu),
            ("cwnd", self.cwnd),
            ("ssthresh", self.ssthresh),
            ("credit", self.credit),
            ("sent", self.sent),
            ("reported", self.reported),
            ("recover", self.recover),
            ("reductions", self.reductions),
            ("prior_cwnd", self.prior.0),
            ("prior_ssthresh", self.prior.1),
            ("srtt", self.rtt.srtt),
            ("rttvar", self.rtt.var),
            ("active", self.active),
            ("arrived", self.arrived.0),
            ("arrived_by", self.arrived.1),
            ("arrived_other", self.arrived.2),
            ("collapsed", u64::from(self.collapsed)),
            ("silent", u64::from(self.silent)),
        ]
    }

    /// The threshold that transient congestion would set now. `old`: see [`Report`].
    #[must_use]
    pub fn next_threshold(&self, old: bool) -> u64 {
        if self.recovering() || old { self.ssthresh.min(self.cwnd) } else { self.half() }
    }

    /// Reverts the reduction with this number if it was the last one, as Reno does after a spurious
    /// retransmission (RFC 4015).
    pub fn undo(&mut self, reduction: u64) {
        if reduction == 0 || reduction != self.reductions || self.prior.0 == 0 {
            return;
        }
        self.cwnd = self.cwnd.max(self.prior.0);
        self.ssthresh = self.ssthresh.max(self.prior.1);
        self.recover = self.reported;
        self.prior = (0, 0);
        self.credit = 0;
    }

    fn half(&self) -> u64 {
        (self.cwnd / 2).max(LEAST * self.mtu)
    }

    fn reduce(&mut self) {
        self.prior = (self.cwnd, self.ssthresh);
        self.reductions += 1;
        self.ssthresh = self.half();
        self.cwnd = self.cwnd.min(self.ssthresh);
        self.recover = self.sent;
        self.collapsed = false;
        self.credit = 0;
    }

    fn collapse(&mut self, recovering: bool) {
        if !recovering && !self.silent {
            self.reduce();
        }
        self.cwnd = self.mtu;
        self.collapsed = true;
        self.silent = true;
        self.credit = 0;
    }

    fn grow(&mut self, acked: u64) {
        if self.cwnd < self.ssthresh {
            let more = acked.min(u64::from(self.rules.limit) * self.mtu);
            self.cwnd = (self.cwnd + more).min(self.ssthresh);
            return;
        }
        // RFC 3465 §2.1: a report adds at most one MTU, however many bytes it covers.
        self.credit += acked.min(self.cwnd);
        if self.credit >= self.cwnd {
            self.credit -= self.cwnd;
            self.cwnd = (self.cwnd + self.mtu).min(MAX_WINDOW);
        }
    }

    fn sibling_arrived(&self, flow: u64) -> Nanos {
        if self.arrived.1 == flow { self.arrived.2 } else { self.arrived.0 }
    }

    fn note_arrival(&mut self, now: Nanos, flow: u64) {
        if self.arrived.1 != flow {
            self.arrived.2 = self.arrived.0;
            self.arrived.1 = flow;
        }
        self.arrived.0 = now;
        self.silent = false;
    }

    fn forget(&mut self) {
        self.cwnd = initial(&self.rules, self.mtu);
        self.ssthresh = MAX_WINDOW;
        self.credit = 0;
        self.recover = self.reported;
        self.prior = (0, 0);
        self.collapsed = false;
        self.silent = false;
        self.rtt = Rtt::default();
        self.arrived = (0, 0, 0);
    }
}

impl Controller for Aimd {
    fn window(&self) -> u64 {
        self.cwnd
    }

    fn slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    fn outstanding(&self) -> u64 {
        self.sent - self.reported
    }

    fn set_mtu(&mut self, mtu: u32) {
        self.mtu = clamp_mtu(mtu);
    }

    fn charge(&mut self, now: Nanos, bytes: u64) {
        self.age(now);
        self.sent += bytes.min(u64::from(u32::MAX));
        self.active = now;
    }

    fn report(&mut self, now: Nanos, report: &Report) {
        // Ignores bytes that were never sent, so that an application gains nothing by reporting
        // them.
        let resolved = report.resolved.min(self.outstanding());
        let acked = report.acked.min(resolved);
        let recovering = self.recovering() || report.old;
        self.rtt.sample(report.rtt);
        self.reported += resolved;
        if resolved > 0 {
            self.active = now;
        }
        match report.congestion {
            Congestion::None => {}
            Congestion::Transient | Congestion::Ecn if recovering => {}
            Congestion::Transient | Congestion::Ecn => self.reduce(),
            Congestion::Persistent => {
                let sibling = self.sibling_arrived(report.flow);
                if sibling > 0 && now.saturating_sub(sibling) <= self.rtt.timeout() {
                    if !recovering {
                        self.reduce();
                    }
                } else {
                    self.collapse(recovering);
                }
            }
        }
        if acked > 0 {
            self.note_arrival(now, report.flow);
            let free = !self.recovering() || self.collapsed;
            if free && report.limited && report.congestion == Congestion::None {
                self.grow(acked);
            }
        }
    }

    fn age(&mut self, now: Nanos) {
        let idle = now.saturating_sub(self.active);
        if self.outstanding() > 0 || self.sent == 0 {
            return;
        }
        if idle >= FORGET {
            self.forget();
            self.active = now;
            return;
        }
        let step = self.rtt.timeout().max(MIN_STEP);
        let steps = (idle / step).min(MAX_STEPS);
        if steps == 0 {
            return;
        }
        self.active += steps * step;
        let first = initial(&self.rules, self.mtu);
        // RFC 2861 §3.1: the threshold remembers three quarters of what the window was.
        self.ssthresh = self.ssthresh.max(self.cwnd / 4 * 3);
        self.ssthresh = if self.ssthresh > MAX_WINDOW >> steps { MAX_WINDOW } else { self.ssthresh << steps };
        self.cwnd = if self.cwnd > first {
            (self.cwnd >> steps).max(first)
        } else if self.cwnd > first >> steps {
            first
        } else {
            self.cwnd << steps
        };
        self.credit = 0;
        // After ageing, an earlier reduction can no longer be reverted.
        self.prior = (0, 0);
    }

    fn rtt(&self) -> &Rtt {
        &self.rtt
    }
}

fn clamp_mtu(mtu: u32) -> u64 {
    u64::from(mtu.clamp(1, 65_535))
}

fn initial(rules: &Rules, mtu: u64) -> u64 {
    (u64::from(rules.initial.max(1)) * mtu).min(MAX_WINDOW)
}

#[cfg(test)]
mod tests;
