//! Queues of a port with a rate: the highest priority first, with packets spaced by the rate.

use std::collections::VecDeque;

use crate::datapath::Job;

/// Queues of one port.
pub(crate) struct PortQueue {
    rate_pps: u64,
    depth: usize,
    queues: Vec<VecDeque<Job>>,
    /// Earliest time of the next packet, nanoseconds.
    next_ns: u128,
}

impl PortQueue {
    pub(crate) fn new(rate_pps: u64, depth: usize, queues: usize) -> PortQueue {
        PortQueue { rate_pps, depth, queues: (0..queues).map(|_| VecDeque::new()).collect(), next_ns: 0 }
    }

    pub(crate) fn set(&mut self, rate_pps: u64, depth: usize) {
        self.rate_pps = rate_pps;
        self.depth = depth;
    }

    pub(crate) fn rated(&self) -> bool {
        self.rate_pps != u64::MAX
    }

    pub(crate) fn len(&self, priority: usize) -> usize {
        self.queues.get(priority).map_or(0, |q| q.len())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queues.iter().all(|q| q.is_empty())
    }

    pub(crate) fn clear(&mut self) {
        self.queues.iter_mut().for_each(|q| q.clear());
    }

    /// Adds a packet, or returns it if its queue is full.
    pub(crate) fn push(&mut self, job: Job, now_us: u64) -> Result<(), Job> {
        let depth = self.depth;
        let idle = self.is_empty();
        match self.queues.get_mut(job.priority) {
            Some(q) if q.len() < depth => q.push_back(job),
            _ => return Err(job),
        }
        if idle {
            // Idle time gives no credit.
            self.next_ns = self.next_ns.max(u128::from(now_us) * 1000);
        }
        Ok(())
    }

    /// The due packet, if any.
    pub(crate) fn pop(&mut self, now_us: u64) -> Option<Job> {
        if self.next_ns > u128::from(now_us) * 1000 {
            return None;
        }
        let job = self.queues.iter_mut().rev().find_map(|q| q.pop_front())?;
        self.next_ns += u128::from(1_000_000_000 / self.rate_pps.max(1));
        Some(job)
    }

    /// When the next packet is due, microseconds.
    pub(crate) fn next_due(&self) -> Option<u64> {
        (!self.is_empty()).then(|| u64::try_from(self.next_ns.div_ceil(1000)).unwrap_or(u64::MAX))
    }
}
