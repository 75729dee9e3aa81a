//! The congestion controller of a macroflow: it limits the bytes outstanding.
//!
//! Any [`Controller`] can be plugged in; [`Aimd`] is the paper's.

mod aimd;
mod rtt;
pub mod rules;

pub use aimd::Aimd;
pub use rtt::Rtt;
pub use rules::Rules;

use crate::Nanos;

/// Kind of congestion that a client reports (the paper's `lossmode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Congestion {
    /// No packet was lost (`CM_NO_CONGESTION`).
    #[default]
    None = 0,
    /// Some packets of a window were lost and later ones arrived (`CM_LOSS_FEEDBACK`).
    Transient = 1,
    /// Nothing arrived until a timer expired (`CM_LOST_FEEDBACK`).
    Persistent = 2,
    /// The network marked packets (`CM_EXPLICIT_CONGESTION`, RFC 3168).
    Ecn = 3,
}

/// Feedback of one flow about the bytes that it sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Report {
    /// The flow's number; never 0.
    pub flow: u64,
    /// Bytes no longer outstanding: they arrived or count as lost.
    pub resolved: u64,
    /// Bytes of `resolved` that arrived.
    pub acked: u64,
    /// Kind of congestion.
    pub congestion: Congestion,
    /// The lost bytes were sent before the flow learned of the last reduction, so they belong to
    /// the same congestion.
    pub old: bool,
    /// Whether the window limited the flow: only then may the window grow (RFC 7661 §4.3).
    pub limited: bool,
    /// Round trip time sample in ns; 0: none.
    pub rtt: Nanos,
}

/// Decides how many bytes of a macroflow may be outstanding. Times passed to it never decrease.
pub trait Controller: std::fmt::Debug + Send {
    /// Bytes that may be outstanding now.
    fn window(&self) -> u64;

    /// Whether the window still doubles each round trip.
    fn slow_start(&self) -> bool;

    /// Bytes outstanding.
    fn outstanding(&self) -> u64;

    /// Sets the path's MTU in bytes, the unit in which the window grows.
    fn set_mtu(&mut self, mtu: u32);

    /// Records that a flow sent bytes.
    fn charge(&mut self, now: Nanos, bytes: u64);

    /// Records a flow's feedback.
    fn report(&mut self, now: Nanos, report: &Report);

    /// Ages the window if it was idle until `now`.
    fn age(&mut self, now: Nanos);

    /// Round trip time estimate over all flows.
    fn rtt(&self) -> &Rtt;

    /// The window as a rate in bytes a second; `None` before the first round trip time sample.
    fn rate(&self) -> Option<u64> {
        let srtt = self.rtt().smoothed()?;
        Some((u128::from(self.window()) * 1_000_000_000 / u128::from(srtt)).min(u128::from(u64::MAX)) as u64)
    }
}
