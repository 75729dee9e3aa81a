//! How a connection closes: its window is returned if worth it, and a CLOSE is sent.

use rivulet_packet::{MAX_ATTEMPT, RequestClass, SealedContinuation};

use super::connection::{Connection, Event, LEAST_PAUSE, Phase, Revival, Window};
use super::request::{Asked, Shape};
use crate::retired;
use crate::time::Time;
use crate::verdict::{answered_before, piece_of};

/// Maximum number of CLOSEs.
const MAX_CLOSES: u32 = 3;

impl Connection {
    /// The phase of a connection that the application has just closed.
    pub(super) fn closing(&self, now: Time) -> Phase {
        let kept = self.revival == Revival::None && self.is_worth_keeping(now);
        let awaiting = self.generation.as_ref().is_some_and(|g| g.is_awaiting());
        // The last responses may still be in flight; only a complete window can be returned.
        let due = if kept && awaiting { now + self.rtt.probe_timeout() } else { now };
        Phase::Closing { attempts: 0, due, window: if kept { Window::Kept } else { Window::Gone } }
    }

    /// Whether the window is larger than one that a new connection soon has anyway.
    fn is_worth_keeping(&self, now: Time) -> bool {
        let window = |c: &SealedContinuation| piece_of(&c.fields).cwnd(answered_before(&c.fields));
        let latest = self.latest().filter(|(_, _, received_at)| self.is_usable(*received_at, now));
        latest.is_some_and(|(_, sealed, _)| window(&sealed) >= retired::LEAST)
    }

    /// The last continuation: index, continuation, time of receipt.
    fn latest(&self) -> Option<(u32, SealedContinuation, Time)> {
        let generation = self.generation.as_ref()?;
        let index = generation.latest_continuation()?;
        let slot = generation.slot(index)?;
        Some((index, slot.sealed?, slot.received_at))
    }

    fn is_usable(&self, received_at: Time, now: Time) -> bool {
        !self.must_restart && !self.is_expired(received_at, now)
    }

    /// Returns the window first, once all of it was received or the wait is over. CLOSE follows
    /// directly.
    pub(super) fn send_close(&mut self, now: Time, packet: &mut [u8]) -> Option<usize> {
        let Phase::Closing { attempts, due, window } = self.phase else { return None };
        let latest = self.latest().filter(|_| attempts < MAX_CLOSES);
        let Some((index, sealed, received_at)) = latest else {
            self.end(Event::Closed);
            return None;
        };
        if !self.is_usable(received_at, now) {
            // The server has no connection state to free, so a CLOSE is not needed.
            self.end(Event::Closed);
            return None;
        }
        let shape = |class, attempt| Shape {
            class,
            continuation: Some(&sealed),
            index: Some(index),
            attempt,
            covers: 1,
            pad_to: 0,
        };
        if window == Window::Kept {
            if self.is_drained(index) {
                let length = self.build(&shape(RequestClass::Rekey, 0), &Asked::default(), now, packet)?;
                self.statistics.retired += 1;
                self.phase = Phase::Closing { attempts, due: now, window: Window::Offered };
                return Some(length);
            }
            if due > now {
                return None;
            }
            self.phase = Phase::Closing { attempts, due, window: Window::Gone };
        }
        if due > now {
            return None;
        }
        let attempt = attempts.min(u32::from(MAX_ATTEMPT)) as u8;
        let seq = self.seq;
        let length = self.build(&shape(RequestClass::Close, attempt), &Asked::default(), now, packet)?;
        self.seq = seq;
        if let Phase::Closing { attempts, due, .. } = &mut self.phase {
            (*attempts, *due) = (*attempts + 1, now + self.rtt.rto().max(LEAST_PAUSE));
        }
        Some(length)
    }
}
