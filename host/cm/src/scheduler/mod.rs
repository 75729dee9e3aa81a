//! Which flow of a macroflow may send next.

mod round_robin;
mod weighted;

pub use round_robin::RoundRobin;
pub use weighted::Weighted;

use crate::FlowId;

/// Decides among the flows that wait. Each of them waits with any number of requests; a turn is for one.
pub trait Scheduler: std::fmt::Debug + Send {
    /// A flow that did not wait waits from now on; `weight` is its share relative to the others', at least 1.
    fn wait(&mut self, flow: FlowId, weight: u32);

    /// The flow whose turn it is.
    fn peek(&self) -> Option<FlowId>;

    /// The flow whose turn it was got it; `more`: it waits on.
    fn took_turn(&mut self, more: bool);

    /// A flow waits no longer; nothing happens if it did not.
    fn remove(&mut self, flow: FlowId);

    /// A flow's weight is another one now.
    fn set_weight(&mut self, flow: FlowId, weight: u32);
}

/// Which scheduler new macroflows have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Kind {
    /// The paper's: unweighted.
    #[default]
    RoundRobin,
    /// By weights.
    Weighted,
}

impl Kind {
    pub(crate) fn make(self) -> Box<dyn Scheduler> {
        match self {
            Kind::RoundRobin => Box::<RoundRobin>::default(),
            Kind::Weighted => Box::<Weighted>::default(),
        }
    }
}
