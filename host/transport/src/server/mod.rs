//! The server: the stateless step, the responses it yields, and the two removable soft states beside it.

mod plan;
mod refusal;
mod step;

pub use plan::{Answer, Head, HeadKind, InputEvent, Plan, Reply, RespondError, STEADY_OVERHEAD, Sent};
pub use refusal::Refusal;
pub(crate) use step::predict;
pub use step::{Policy, Verdict, step};
