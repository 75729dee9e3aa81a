//! Congestion control of a sender: Reno, Cubic, or an external manager.

use crate::{Nanos, SECOND};

/// RFC 6928.
const INITIAL_WINDOW: u32 = 10;
/// Smallest window and threshold after a loss.
const LEAST: u32 = 2;

/// Feedback of a sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// Segments arrived, including selectively acknowledged ones. `acked`: cumulatively
    /// acknowledged for the first time. `grows`: the window may grow, because no recovery is
    /// running.
    Delivered { segments: u32, acked: u32, grows: bool, now: Nanos },
    /// An ECN mark arrived.
    Marked,
    /// Some segments are lost, and later ones arrived.
    Lost,
    /// Everything sent before the loss is acknowledged.
    Recovered,
    /// The retransmission timer expired. `again`: once more without a recovery in between.
    TimedOut { again: bool },
}

/// Owner of the congestion window.
#[derive(Debug, Clone)]
pub enum Control {
    /// The connection.
    Reno(Reno),
    /// The connection, by RFC 9438.
    Cubic(Cubic),
    /// A manager.
    Managed(Managed),
}

impl Default for Control {
    fn default() -> Self {
        Self::Reno(Reno { cwnd: INITIAL_WINDOW, credit: 0, ssthresh: u32::MAX })
    }
}

/// The window of one connection (RFC 5681, RFC 3465).
#[derive(Debug, Clone)]
pub struct Reno {
    cwnd: u32,
    /// Segments acknowledged in congestion avoidance since the window last grew.
    credit: u32,
    ssthresh: u32,
}

/// A managed connection's limit, and the feedback for its manager.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Managed {
    /// Segments that may be in flight.
    pub window: u32,
    /// Segments that arrived since the last report.
    pub arrived: u32,
    /// Segments were lost and later ones arrived.
    pub lost: bool,
    /// An ECN mark arrived.
    pub marked: bool,
    /// The timer expired.
    pub timed_out: bool,
}

impl Control {
    /// Segments that may be in flight.
    pub fn window(&self) -> u32 {
        match self {
            Self::Reno(reno) => reno.cwnd,
            Self::Cubic(cubic) => cubic.cwnd as u32,
            Self::Managed(managed) => managed.window,
        }
    }

    /// Takes a managed connection's feedback and resets it.
    pub fn report(&mut self) -> Managed {
        match self {
            Self::Reno(_) | Self::Cubic(_) => Managed::default(),
            Self::Managed(managed) => {
                let window = managed.window;
                std::mem::replace(managed, Managed { window, ..Managed::default() })
            }
        }
    }

    pub(super) fn on(&mut self, event: Event) {
        match self {
            Self::Reno(reno) => reno.on(event),
            Self::Cubic(cubic) => cubic.on(event),
            Self::Managed(managed) => managed.on(event),
        }
    }
}

impl Managed {
    fn on(&mut self, event: Event) {
        match event {
            Event::Delivered { segments, .. } => self.arrived += segments,
            Event::Marked => self.marked = true,
            Event::Lost => self.lost = true,
            Event::Recovered => {}
            Event::TimedOut { .. } => self.timed_out = true,
        }
    }
}

impl Reno {
    fn on(&mut self, event: Event) {
        match event {
            Event::Delivered { grows: false, .. } => {}
            Event::Delivered { acked, .. } => self.grow(acked),
            Event::Lost | Event::Marked => self.halve(),
            Event::Recovered => (self.cwnd, self.credit) = (self.ssthresh, 0),
            Event::TimedOut { again } => {
                if !again {
                    self.ssthresh = (self.cwnd / 2).max(LEAST);
                }
                (self.cwnd, self.credit) = (1, 0);
            }
        }
    }

    /// RFC 3465 with L = 2 in slow start; one segment a window in congestion avoidance.
    fn grow(&mut self, acked: u32) {
        if self.cwnd < self.ssthresh {
            self.cwnd = (self.cwnd + acked.min(2)).min(self.ssthresh);
            return;
        }
        self.credit += acked;
        while self.credit >= self.cwnd {
            self.credit -= self.cwnd;
            self.cwnd += 1;
        }
    }

    fn halve(&mut self) {
        self.ssthresh = (self.cwnd / 2).max(LEAST);
        (self.cwnd, self.credit) = (self.ssthresh, 0);
    }
}

/// The window of one connection by RFC 9438, in real time, as a sender with state computes it.
#[derive(Debug, Clone)]
pub struct Cubic {
    cwnd: f64,
    ssthresh: f64,
    w_max: f64,
    w_est: f64,
    /// Window at the last reduction.
    prior: f64,
    /// Start of congestion avoidance, and the window then.
    epoch: Option<(Nanos, f64)>,
}

impl Default for Cubic {
    fn default() -> Self {
        let cwnd = f64::from(INITIAL_WINDOW);
        Self { cwnd, ssthresh: f64::INFINITY, w_max: 0.0, w_est: 0.0, prior: 0.0, epoch: None }
    }
}

impl Cubic {
    fn on(&mut self, event: Event) {
        match event {
            Event::Delivered { grows: false, .. } | Event::Recovered => {}
            Event::Delivered { acked, now, .. } => self.grow(f64::from(acked), now),
            Event::Lost | Event::Marked => self.reduce(),
            Event::TimedOut { again } => {
                if !again {
                    self.reduce();
                }
                self.cwnd = 1.0;
            }
        }
    }

    /// RFC 9438 sections 4.2 to 4.5. As in Linux, the target is the curve's value now.
    fn grow(&mut self, acked: f64, now: Nanos) {
        if self.cwnd < self.ssthresh {
            self.cwnd = (self.cwnd + acked.min(2.0)).min(self.ssthresh);
            return;
        }
        let (began, start) = *self.epoch.get_or_insert((now, self.cwnd));
        if self.w_est < start {
            self.w_est = start;
        }
        let w_max = self.w_max.max(start);
        let k = ((w_max - start) / 0.4).cbrt();
        let t = (now - began) as f64 / SECOND as f64;
        let alpha = if self.w_est >= self.prior { 1.0 } else { 9.0 / 17.0 };
        self.w_est += alpha * acked / self.cwnd;
        let target = (0.4 * (t - k).powi(3) + w_max).clamp(self.cwnd, 1.5 * self.cwnd);
        // At most one segment more for two acknowledged ones, as the curve is reached.
        self.cwnd = (self.cwnd + acked / 2.0).min(target.max(self.w_est));
    }

    fn reduce(&mut self) {
        self.w_max = if self.cwnd < self.w_max { self.cwnd * 0.85 } else { self.cwnd };
        self.prior = self.cwnd;
        self.cwnd = (self.cwnd * 0.7).max(f64::from(LEAST));
        self.ssthresh = self.cwnd;
        (self.epoch, self.w_est) = (None, 0.0);
    }
}
