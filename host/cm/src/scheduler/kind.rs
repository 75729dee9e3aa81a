//! The choice of a scheduler.

use super::{RoundRobin, Scheduler, Weighted};

/// Scheduler of new macroflows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Kind {
    /// The paper's unweighted round robin.
    #[default]
    RoundRobin,
    /// Turns in proportion to weights.
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
