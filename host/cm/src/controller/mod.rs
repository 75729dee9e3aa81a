//! The congestion controller of a macroflow: what may be outstanding.
//!
//! A controller is replaced by another [`Controller`]; [`Aimd`] is the paper's.

mod aimd;
mod rtt;
pub mod rules;

pub use aimd::Aimd;
pub use rtt::Rtt;
pub use rules::Rules;

use crate::Nanos;

/// How a client's packets fared (the paper's `lossmode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Congestion {
    /// Nothing was lost (`CM_NO_CONGESTION`).
    #[default]
    None = 0,
    /// Something of a window was lost and something after it arrived (`CM_LOSS_FEEDBACK`).
    Transient = 1,
    /// Nothing arrived until a timer expired (`CM_LOST_FEEDBACK`).
    Persistent = 2,
    /// A mark of congestion came (`CM_EXPLICIT_CONGESTION`, RFC 3168).
    Ecn = 3,
}

/// What one flow learnt about what it sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Report {
    /// Which flow; never 0.
    pub flow: u64,
    /// Bytes that are no longer outstanding, since they arrived or count as lost.
    pub resolved: u64,
    /// Those of them that arrived.
    pub acked: u64,
    /// What else is known.
    pub congestion: Congestion,
    /// What was lost was sent before the flow knew of the last reduction, which was for the same congestion then.
    pub old: bool,
    /// The window held the flow back: only then may it grow (RFC 7661 §4.3).
    pub limited: bool,
    /// A round trip time, ns; 0: none.
    pub rtt: Nanos,
}

/// What decides how much of a macroflow may be outstanding. Times never go back.
pub trait Controller: std::fmt::Debug + Send {
    /// Bytes that may be outstanding now.
    fn window(&self) -> u64;

    /// Whether the window still doubles each round trip.
    fn slow_start(&self) -> bool;

    /// Bytes that are outstanding.
    fn outstanding(&self) -> u64;

    /// The path's MTU, bytes: what grows by steps grows by these.
    fn set_mtu(&mut self, mtu: u32);

    /// Bytes were sent, on any flow.
    fn charge(&mut self, now: Nanos, bytes: u64);

    /// A flow has feedback.
    fn report(&mut self, now: Nanos, report: &Report);

    /// Time passes: what is idle ages.
    fn age(&mut self, now: Nanos);

    /// The round trip time, over all flows.
    fn rtt(&self) -> &Rtt;

    /// Bytes a second that the window amounts to; none without a round trip time.
    fn rate(&self) -> Option<u64> {
        let srtt = self.rtt().smoothed()?;
        Some((u128::from(self.window()) * 1_000_000_000 / u128::from(srtt)).min(u128::from(u64::MAX)) as u64)
    }
}
