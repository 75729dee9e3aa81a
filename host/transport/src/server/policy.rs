//! What a service allows.

use crate::time::{MILLISECOND, Micros, SECOND};

/// What a service allows. The defaults are those of docs/contracts.md.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Maximum TCP payload of a response in bytes; the client's MSS may lower it.
    pub payload: u16,
    /// How long an ordinary request stays valid.
    pub horizon: Micros,
    /// Tolerated lead of time stamps: clocks of ToRs agree to within this.
    pub clock_skew: Micros,
    /// All frames arrive through our own ToR, so its block is trusted.
    pub trust_tor: bool,
    /// The ToR's CHECKED mark replaces the check of the nonce sums.
    pub trust_checked: bool,
    /// Accept requests that cover two numbers, where this server has its own replay memory. With
    /// `trust_tor` none is accepted: the ToR records only the answered number, so the other one
    /// could be used again.
    pub delayed_acks: bool,
    /// Send data as ECN-capable (RFC 3168).
    pub ecn: bool,
    /// Send continuations as the difference to the client's prediction (section 5.3).
    pub delta: bool,
    /// The request waited long in the server's own queue, so it counts as ECN-marked (RFC 3168),
    /// unless the window is small already.
    pub congested: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            payload: 1452,
            horizon: 4 * SECOND,
            clock_skew: 100 * MILLISECOND,
            trust_tor: false,
            trust_checked: true,
            delayed_acks: true,
            ecn: true,
            delta: true,
            congested: false,
        }
    }
}
