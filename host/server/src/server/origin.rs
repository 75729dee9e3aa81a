//! Where a frame comes from.

/// The origin of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Received from the interface.
    Wire,
    /// Received through a tunnel from another rack's ToR.
    Tunnel,
    /// Judged before, and detached by the application.
    Detached {
        /// Its ToR block was trusted.
        trusted: bool,
    },
}
