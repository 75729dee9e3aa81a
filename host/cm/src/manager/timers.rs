//! Timers: paced grants, unused grants, missing feedback and expired history.

use super::{Manager, account};
use crate::controller::rules::FORGET;
use crate::macroflow::Macroflow;
use crate::{Congestion, MacroflowId, Nanos, Update};

impl Manager {
    /// When [`Manager::handle_timeout`] must be called next, if at all.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        self.timers.first().map(|first| first.0)
    }

    /// Handles all expired timers.
    pub fn handle_timeout(&mut self, now: Nanos) {
        while let Some((at, id)) = self.timers.first().copied()
            && at <= now
        {
            self.timers.pop_first();
            let Some(macroflow) = self.macroflows.get_mut(&id) else { continue };
            macroflow.armed = None;
            if macroflow.empty.is_some_and(|since| since + FORGET <= now) {
                self.forget(id);
                continue;
            }
            self.expire(now, id);
            self.settle(now, id);
            self.watch(id);
        }
    }

    fn expire(&mut self, now: Nanos, id: MacroflowId) {
        let Some(macroflow) = self.macroflows.get_mut(&id) else { return };
        let (grant, silence) =
            (life(macroflow, self.config.grant_life), patience(macroflow, self.config.silence));
        while let Some((since, flow)) = macroflow.granted.first().copied()
            && since + grant <= now
        {
            let Some(state) = self.flows.get_mut(&flow) else { break };
            account::consume(flow, state, macroflow, 1);
            account::refresh(flow, state, macroflow);
        }
        while let Some((since, flow)) = macroflow.awaiting_feedback.first().copied()
            && since + silence <= now
        {
            let Some(state) = self.flows.get_mut(&flow) else { break };
            let lost = Update { nsent: u64::MAX, congestion: Congestion::Persistent, ..Update::default() };
            account::report(now, flow, state, macroflow, &lost);
            account::refresh(flow, state, macroflow);
        }
    }

    /// Sets a macroflow's timer to its next expiry.
    pub(super) fn arm(&mut self, now: Nanos, id: MacroflowId) {
        let Some(macroflow) = self.macroflows.get_mut(&id) else { return };
        let grant = macroflow.granted.first().map(|g| g.0 + life(macroflow, self.config.grant_life));
        let silence =
            macroflow.awaiting_feedback.first().map(|u| u.0 + patience(macroflow, self.config.silence));
        let empty = macroflow.empty.map(|since| since + FORGET);
        let waits = macroflow.scheduler.peek().is_some();
        let pace = macroflow.pace.wait(now).filter(|_| waits);
        let next = [grant, silence, empty, pace].into_iter().flatten().min();
        if next == macroflow.armed {
            return;
        }
        if let Some(at) = std::mem::replace(&mut macroflow.armed, next) {
            self.timers.remove(&(at, id));
        }
        if let Some(at) = next {
            self.timers.insert((at, id));
        }
    }
}

fn life(macroflow: &Macroflow, least: Nanos) -> Nanos {
    macroflow.controller.rtt().smoothed().unwrap_or(0).max(least)
}

fn patience(macroflow: &Macroflow, least: Nanos) -> Nanos {
    (2 * macroflow.controller.rtt().timeout()).max(least)
}
