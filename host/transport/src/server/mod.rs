//! The server: the stateless step, the responses that it yields, and two optional soft states.

mod build;
mod cache;
mod clock;
mod plan;
mod policy;
mod refusal;
mod replay;
mod reply;
#[allow(clippy::module_inception)]
mod server;
mod step;

pub use cache::MinisocketCache;
pub use plan::{Head, HeadKind, InputEvent, Plan, STEADY_OVERHEAD, Sent, Verdict};
pub use policy::{Congestion, Policy};
pub use refusal::Refusal;
pub use replay::{LeftBy, ReplayKey, ReplayMemory, ReplayStatistics, Use};
pub use reply::{Answer, Reply, RespondError};
pub use server::Server;
pub(crate) use step::predict;
pub use step::step;
