//! Round robin: each flow has a turn in order; weights are ignored.

use std::collections::VecDeque;

use super::Scheduler;
use crate::FlowId;

/// The paper's scheduler.
#[derive(Debug, Default)]
pub struct RoundRobin {
    waiting: VecDeque<FlowId>,
}

impl Scheduler for RoundRobin {
    fn wait(&mut self, flow: FlowId, _weight: u32) {
        self.waiting.push_back(flow);
    }

    fn peek(&self) -> Option<FlowId> {
        self.waiting.front().copied()
    }

    fn took_turn(&mut self, more: bool) {
        if let Some(flow) = self.waiting.pop_front()
            && more
        {
            self.waiting.push_back(flow);
        }
    }

    fn remove(&mut self, flow: FlowId) {
        self.waiting.retain(|f| *f != flow);
    }

    fn set_weight(&mut self, _flow: FlowId, _weight: u32) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_take_turns() {
        let mut s = RoundRobin::default();
        for flow in 1..=3 {
            s.wait(FlowId(flow), flow as u32);
        }
        let mut turns = vec![];
        for n in 0..7 {
            turns.push(s.peek().unwrap().0);
            // The second flow has only one request.
            s.took_turn(n != 1);
        }
        assert_eq!(turns, [1, 2, 3, 1, 3, 1, 3]);
        s.remove(FlowId(1));
        s.took_turn(false);
        assert_eq!(s.peek(), None);
        s.took_turn(true);
        assert_eq!(s.peek(), None);
    }
}
