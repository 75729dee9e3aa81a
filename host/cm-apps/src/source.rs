//! The content of a stream.

use libcm::{Status, Thresholds};

use crate::Nanos;

/// A datagram to send now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Next {
    /// Its layer.
    pub layer: u8,
    /// Bytes of content.
    pub bytes: usize,
}

/// The content of one receiver's stream, and how it adapts. It does no I/O; the session makes the
/// requests and sends.
pub trait Source: std::fmt::Debug + Send {
    /// Datagrams that are ready to send, that is, grants wanted.
    fn ready(&self) -> u32;

    /// Whether [`Source::next`] needs the flow's present share each time.
    fn asks(&self) -> bool {
        false
    }

    /// Uses a grant: writes the content of the next datagram to `room`. `None` declines the grant.
    fn next(&mut self, now: Nanos, status: Option<Status>, room: &mut [u8]) -> Option<Next>;

    /// Thresholds for [`Source::changed`].
    fn thresholds(&self) -> Option<Thresholds> {
        None
    }

    /// Called when the share crosses a threshold (`cmapp_update`).
    fn changed(&mut self, _now: Nanos, _status: &Status) {}

    /// When the content's clock ticks next.
    fn due(&self) -> Option<Nanos> {
        None
    }

    /// Handles a tick of the clock.
    fn tick(&mut self, _now: Nanos) {}

    /// Offers a datagram from outside, which may become content.
    fn offer(&mut self, _now: Nanos, _content: &[u8]) {}

    /// Datagrams that were never sent, by reason, for the journal.
    fn dropped(&self) -> Dropped {
        Dropped::default()
    }
}

/// Datagrams that were never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize)]
pub struct Dropped {
    /// Dropped by the policer because they exceed the rate.
    pub policed: u64,
    /// Dropped because the application's buffer was full or the layer changed.
    pub buffer: u64,
    /// Dropped because they exceed the path's MTU.
    pub large: u64,
}
