//! What a call can be refused for.

/// Why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It was closed, or there never was one.
    #[error("there is no such flow")]
    NoFlow,
    /// Its last flow is gone, and it was made for flows that were split.
    #[error("there is no such macroflow")]
    NoMacroflow,
    /// A flow of the same addresses, ports, protocol and code point is open.
    #[error("the flow is open already")]
    Open,
    /// As many flows are open as may be.
    #[error("too many flows are open")]
    Full,
    /// As many requests of the flow wait as may.
    #[error("too many requests of this flow wait")]
    Requests,
    /// An MTU that no packet has.
    #[error("an MTU is 1 to 65535 bytes")]
    Mtu,
    /// A weight of nothing.
    #[error("a weight is at least 1, and a kernel's at most 65535")]
    Weight,
    /// Factors downwards are 0 to 1, upwards 1 or more.
    #[error("thresholds downwards are 0 to 1, upwards 1 or more")]
    Thresholds,
    /// More than [`MAX_BULK`](crate::MAX_BULK) at once.
    #[error("a bulk call has at most 64 operations")]
    Bulk,
}
