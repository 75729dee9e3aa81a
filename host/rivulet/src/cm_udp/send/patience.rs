//! Timeouts of a sender that waits for its receiver.

use std::time::Duration;

use anyhow::anyhow;
use libcm::Client;

use crate::cm_udp::args::SendArgs;
use crate::cm_udp::failure::Failure;
use crate::cm_udp::outcome::Calls;
use crate::cm_udp::socket::{Socket, Waiter};

/// Time without an answer after which outstanding packets count as lost.
pub(super) const SILENCE: Duration = Duration::from_secs(1);
/// Consecutive [`SILENCE`]s after which the receiver counts as absent.
const SILENCES: u32 = 5;

/// Waits for events, and counts consecutive timeouts.
pub(super) struct Patience {
    waiter: Waiter,
    silences: u32,
}

impl Patience {
    pub(super) fn new<'a>(client: &Client, sockets: impl Iterator<Item = &'a Socket>) -> Patience {
        Patience { waiter: Waiter::new(client, sockets.map(|s| &s.udp)), silences: 0 }
    }

    /// Resets the count, because something arrived.
    pub(super) fn reset(&mut self) {
        self.silences = 0;
    }

    /// Waits for an event, at most for `time`.
    pub(super) fn until(&mut self, calls: &mut Calls, time: Duration) -> Result<(), Failure> {
        calls.wait += 1;
        self.waiter.wait(time).map(drop)
    }

    /// Waits for an event; returns `false` if none occurred within [`SILENCE`].
    pub(super) fn wait(&mut self, calls: &mut Calls, args: &SendArgs) -> Result<bool, Failure> {
        calls.wait += 1;
        if self.waiter.wait(SILENCE)? {
            return Ok(true);
        }
        self.silences += 1;
        if self.silences >= SILENCES {
            let seconds = SILENCES * SILENCE.as_secs() as u32;
            return Err(Failure::Receiver(anyhow!("nothing came from {} for {seconds} s", args.to)));
        }
        Ok(false)
    }
}
