//! Schedulers: which flow of a macroflow sends next.

mod kind;
mod round_robin;
mod weighted;

pub use kind::Kind;
pub use round_robin::RoundRobin;
pub use weighted::Weighted;

use crate::FlowId;

/// Chooses among the waiting flows. A flow may wait with several requests; each turn serves one.
pub trait Scheduler: std::fmt::Debug + Send {
    /// Adds a flow that starts to wait. `weight`: its share relative to the others', at least 1.
    fn wait(&mut self, flow: FlowId, weight: u32);

    /// The flow to serve next.
    fn peek(&self) -> Option<FlowId>;

    /// Ends the turn of the flow that `peek` returned. `more`: it has further requests.
    fn took_turn(&mut self, more: bool);

    /// Removes a flow; does nothing if it does not wait.
    fn remove(&mut self, flow: FlowId);

    /// Changes a flow's weight.
    fn set_weight(&mut self, flow: FlowId, weight: u32);
}
