//! Errors of the manager's calls.

/// Why a call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The flow was closed or never existed.
    #[error("there is no such flow")]
    NoFlow,
    /// The macroflow ended with its last flow, or never existed.
    #[error("there is no such macroflow")]
    NoMacroflow,
    /// A flow with the same addresses, ports, protocol and code point is already open.
    #[error("the flow is open already")]
    Open,
    /// The limit of open flows is reached.
    #[error("too many flows are open")]
    Full,
    /// The limit of waiting requests of this flow is reached.
    #[error("too many requests of this flow wait")]
    Requests,
    /// The MTU is outside 1 to 65,535 bytes.
    #[error("an MTU is 1 to 65535 bytes")]
    Mtu,
    /// The weight is out of range.
    #[error("a weight is at least 1, and a kernel's at most 65535")]
    Weight,
    /// Downward factors are 0 to 1, upward factors 1 or more.
    #[error("thresholds downwards are 0 to 1, upwards 1 or more")]
    Thresholds,
    /// The bulk call has more than [`MAX_BULK`](crate::MAX_BULK) operations.
    #[error("a bulk call has at most 64 operations")]
    Bulk,
}
