//! What a service allows.

use core::fmt;
use core::str::FromStr;

use crate::time::{MILLISECOND, Micros, SECOND};

/// How windows grow and shrink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// TCP Reno (RFC 5681), as in the paper.
    #[default]
    Reno,
    /// Cubic (RFC 9438), with the round trip time at the start of the generation as its clock.
    Cubic,
}

impl FromStr for Congestion {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "reno" => Ok(Self::Reno),
            "cubic" => Ok(Self::Cubic),
            _ => Err("expected reno or cubic"),
        }
    }
}

impl fmt::Display for Congestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reno => "reno",
            Self::Cubic => "cubic",
        })
    }
}

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
    /// Congestion control of new generations. A running one by Reno is asked to REKEY once it has
    /// left slow start, and so goes over to Cubic; one by Cubic keeps it.
    pub congestion: Congestion,
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
            congestion: Congestion::Reno,
            congested: false,
        }
    }
}
