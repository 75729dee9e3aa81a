//! Congestion control of a sender: Reno, or an external manager.

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
    Delivered { segments: u32, acked: u32, grows: bool },
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
            Self::Managed(managed) => managed.window,
        }
    }

    /// Takes a managed connection's feedback and resets it.
    pub fn report(&mut self) -> Managed {
        match self {
            Self::Reno(_) => Managed::default(),
            Self::Managed(managed) => {
                let window = managed.window;
                std::mem::replace(managed, Managed { window, ..Managed::default() })
            }
        }
    }

    pub(super) fn on(&mut self, event: Event) {
        match self {
            Self::Reno(reno) => reno.on(event),
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
