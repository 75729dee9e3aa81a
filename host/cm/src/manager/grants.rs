//! Turns requests into grants while the window has room.

use super::{Due, Manager};
use crate::flow::Flow;
use crate::macroflow::Macroflow;
use crate::{FlowId, MacroflowId, Nanos};

impl Manager {
    /// Grants the macroflow's free room to waiting flows in the scheduler's order, and sets its
    /// timer.
    pub(super) fn settle(&mut self, now: Nanos, id: MacroflowId) {
        let Some(macroflow) = self.macroflows.get_mut(&id) else { return };
        while let Some(next) = macroflow.scheduler.peek() {
            let Some(flow) = self.flows.get_mut(&next) else {
                macroflow.scheduler.took_turn(false);
                continue;
            };
            if macroflow.used() == 0 {
                resume(now, macroflow, u64::from(self.config.rules.initial) * u64::from(flow.mtu));
            }
            if !macroflow.has_room(flow.mtu) || macroflow.pace.wait(now).is_some() {
                break;
            }
            give(now, next, flow, macroflow);
            self.due.push_back(Due::Send(next));
        }
        self.arm(now, id);
    }
}

/// Restarts a macroflow without outstanding bytes: ages the window and paces the rest of it over
/// one round trip.
fn resume(now: Nanos, macroflow: &mut Macroflow, burst: u64) {
    macroflow.controller.age(now);
    if let Some(srtt) = macroflow.controller.rtt().smoothed()
        && now.saturating_sub(macroflow.busy) >= srtt
    {
        macroflow.pace.begin(now, macroflow.controller.window(), srtt, burst);
    }
}

fn give(now: Nanos, id: FlowId, flow: &mut Flow, macroflow: &mut Macroflow) {
    flow.requests -= 1;
    macroflow.scheduler.took_turn(flow.requests > 0);
    macroflow.pace.granted(u64::from(flow.mtu));
    macroflow.reserved += u64::from(flow.mtu);
    macroflow.busy = now;
    if flow.grants.is_empty() {
        macroflow.granted.insert((now, id));
    }
    flow.grants.push_back(now);
    flow.undelivered += 1;
    super::account::refresh(id, flow, macroflow);
}
