//! What a stream is made of.

use libcm::{Status, Thresholds};

use crate::Nanos;

/// A datagram that leaves now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Next {
    /// Of which layer it is.
    pub layer: u8,
    /// Octets of content.
    pub octets: usize,
}

/// Content of one receiver's stream, and how it adapts. It does no I/O; the session asks for leave to send and sends.
pub trait Source: std::fmt::Debug + Send {
    /// Datagrams that are ready: so many grants are wanted.
    fn ready(&self) -> u32;

    /// Whether [`Source::next`] wants to know the flow's share each time.
    fn asks(&self) -> bool {
        false
    }

    /// The flow was granted a datagram: its content, written to the room. None declines the grant.
    fn next(&mut self, now: Nanos, status: Option<Status>, room: &mut [u8]) -> Option<Next>;

    /// By which changes of its share it is to be told.
    fn thresholds(&self) -> Option<Thresholds> {
        None
    }

    /// It changed by that (`cmapp_update`).
    fn changed(&mut self, _now: Nanos, _status: &Status) {}

    /// When it wants a turn of its clock.
    fn due(&self) -> Option<Nanos> {
        None
    }

    /// Its clock's turn.
    fn tick(&mut self, _now: Nanos) {}

    /// Somebody else's datagram that may be part of it.
    fn offer(&mut self, _now: Nanos, _content: &[u8]) {}

    /// What never left, and why: for the journal.
    fn dropped(&self) -> Dropped {
        Dropped::default()
    }
}

/// Datagrams that never left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize)]
pub struct Dropped {
    /// The policer took them out: the rate does not carry them.
    pub policed: u64,
    /// The application's buffer was full, or what waited fits no more.
    pub buffer: u64,
    /// They are larger than the path takes.
    pub large: u64,
}
