//! Turns in proportion to weights: stride scheduling (Waldspurger and Weihl, 1995).

use std::collections::{BTreeMap, BTreeSet};

use super::Scheduler;
use crate::FlowId;

/// Cost of a turn for a flow of weight 1; divisible by many small weights.
const STRIDE: u64 = 720_720 << 8;

/// Serves the flow that has paid the least so far for its weight.
#[derive(Debug, Default)]
pub struct Weighted {
    /// Waiting flows ordered by (cost paid, arrival, flow).
    order: BTreeSet<(u64, u64, FlowId)>,
    waiting: BTreeMap<FlowId, Position>,
    /// Cost paid by the flow that had the last turn. A new flow starts here, so it gets no credit
    /// for the time when it did not wait.
    now: u64,
    came: u64,
}

#[derive(Clone, Copy, Debug)]
struct Position {
    had: u64,
    came: u64,
    weight: u32,
}

impl Weighted {
    fn insert(&mut self, flow: FlowId, had: u64, weight: u32) {
        self.came += 1;
        let place = Position { had, came: self.came, weight: weight.max(1) };
        self.order.insert((had, place.came, flow));
        self.waiting.insert(flow, place);
    }
}

impl Scheduler for Weighted {
    fn wait(&mut self, flow: FlowId, weight: u32) {
        // The flow's first turn comes after the wait that it would have among the others.
        let had = self.now + STRIDE / u64::from(weight.max(1));
        self.insert(flow, had, weight);
    }

    fn peek(&self) -> Option<FlowId> {
        self.order.first().map(|first| first.2)
    }

    fn took_turn(&mut self, more: bool) {
        let Some((had, _, flow)) = self.order.pop_first() else { return };
        self.now = had;
        let Some(place) = self.waiting.remove(&flow) else { return };
        if more {
            self.insert(flow, had + STRIDE / u64::from(place.weight), place.weight);
        }
    }

    fn remove(&mut self, flow: FlowId) {
        if let Some(place) = self.waiting.remove(&flow) {
            self.order.remove(&(place.had, place.came, flow));
        }
    }

    fn set_weight(&mut self, flow: FlowId, weight: u32) {
        if let Some(place) = self.waiting.get_mut(&flow) {
            place.weight = weight.max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(s: &mut Weighted, n: usize) -> Vec<u64> {
        (0..n)
            .map(|_| {
                let flow = s.peek().unwrap();
                s.took_turn(true);
                flow.0
            })
            .collect()
    }

    #[test]
    fn turns_are_as_the_weights() {
        let mut s = Weighted::default();
        for (flow, weight) in [(1, 1), (2, 2), (3, 5)] {
            s.wait(FlowId(flow), weight);
        }
        let got = turns(&mut s, 80);
        for (flow, expected) in [(1, 10), (2, 20), (3, 50)] {
            assert_eq!(got.iter().filter(|f| **f == flow).count(), expected, "{got:?}");
        }
        // Turns are spread evenly: any nine turns include the lightest flow.
        assert!(got.windows(9).all(|w| w.contains(&1)), "{got:?}");
    }

    #[test]
    fn equal_weights_are_round_robin_without_credit_for_latecomers() {
        let mut s = Weighted::default();
        s.wait(FlowId(1), 3);
        s.wait(FlowId(2), 3);
        assert_eq!(turns(&mut s, 100), [1, 2].repeat(50));
        s.wait(FlowId(3), 3);
        let got = turns(&mut s, 9);
        assert_eq!(got.iter().filter(|f| **f == 3).count(), 3, "{got:?}");
        s.remove(FlowId(1));
        s.remove(FlowId(2));
        assert_eq!(turns(&mut s, 2), [3, 3]);
        s.took_turn(false);
        assert_eq!(s.peek(), None);
        s.took_turn(true);
    }

    #[test]
    fn a_weight_changes_from_the_next_turn_on() {
        let mut s = Weighted::default();
        s.wait(FlowId(1), 1);
        s.wait(FlowId(2), 1);
        s.set_weight(FlowId(2), 4);
        turns(&mut s, 2);
        let got = turns(&mut s, 50);
        assert_eq!(got.iter().filter(|f| **f == 2).count(), 40, "{got:?}");
    }
}
