//! How a connection ends: its window is given back, if it is worth it, and the server is told.

use rivulet_packet::{MAX_ATTEMPT, RequestClass, SealedContinuation};

use super::connection::{Connection, Event, LEAST_PAUSE, Phase, Revival, Window};
use super::request::{Asked, Shape};
use crate::retired;
use crate::time::Time;
use crate::verdict::{answered_before, piece_of};

/// CLOSEs that are sent.
const MAX_CLOSES: u32 = 3;

impl Connection {
    /// The phase of a connection that its user has just closed.
    pub(super) fn closing(&self, now: Time) -> Phase {
        let kept = self.revival == Revival::None && self.is_worth_keeping(now);
        let awaiting = self.generation.as_ref().is_some_and(|g| g.is_awaiting());
        // The last answers may still be on their way: the window is given back whole.
        let due = if kept && awaiting { now + self.rtt.probe_timeout() } else { now };
        Phase::Closing { attempts: 0, due, window: if kept { Window::Kept } else { Window::Gone } }
    }

    /// Whether the window is larger than what another connection has soon anyway.
    fn is_worth_keeping(&self, now: Time) -> bool {
        let window = |c: &SealedContinuation| piece_of(&c.fields).cwnd(answered_before(&c.fields));
        let latest = self.latest().filter(|(_, _, received_at)| self.is_usable(*received_at, now));
        latest.is_some_and(|(_, sealed, _)| window(&sealed) >= retired::LEAST)
    }

    /// The last continuation: its index, itself, and when it came.
    fn latest(&self) -> Option<(u32, SealedContinuation, Time)> {
        let generation = self.generation.as_ref()?;
        let index = generation.latest_continuation()?;
        let slot = generation.slot(index)?;
        Some((index, slot.sealed?, slot.received_at))
    }

    fn is_usable(&self, received_at: Time, now: Time) -> bool {
        !self.must_restart && !self.is_expired(received_at, now)
    }

    /// The window first, if all of it is here or was waited for long enough, and CLOSE right behind it.
    pub(super) fn send_close(&mut self, now: Time, packet: &mut [u8]) -> Option<usize> {
        let Phase::Closing { attempts, due, window } = self.phase else { return None };
        let latest = self.latest().filter(|_| attempts < MAX_CLOSES);
        let Some((index, sealed, received_at)) = latest else {
            self.end(Event::Closed);
            return None;
        };
        if !self.is_usable(received_at, now) {
            // The server keeps nothing: there is nobody to tell.
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
