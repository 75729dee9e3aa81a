//! Adds, changes and removes the flows of macroflows.

use super::{Manager, Report, Update};
use crate::controller::Congestion;
use crate::flow::Flow;
use crate::macroflow::{Macroflow, MacroflowId, Path};
use crate::{FlowId, Member, Nanos};

/// The loss rate is averaged over this many windows.
const FATE: u64 = 16;

impl Manager {
    /// Creates a macroflow without flows.
    pub(super) fn make(&mut self, now: Nanos, path: Option<Path>, mtu: u32) -> MacroflowId {
        while self.macroflows.len() >= self.config.macroflows
            && let Some((_, oldest)) = self.empty.first().copied()
        {
            self.forget(oldest);
        }
        let id = MacroflowId(self.number());
        let controller = (self.config.controller)(self.config.rules, mtu);
        let macroflow = Macroflow::new(path, controller, self.config.scheduler.make(), now);
        self.macroflows.insert(id, macroflow);
        self.empty.insert((now, id));
        if let Some(path) = path {
            self.paths.insert(path, id);
        }
        id
    }

    pub(super) fn forget(&mut self, id: MacroflowId) {
        let Some(macroflow) = self.macroflows.remove(&id) else { return };
        if let Some(path) = macroflow.path {
            self.paths.remove(&path);
        }
        if let Some(since) = macroflow.empty {
            self.empty.remove(&(since, id));
        }
        if let Some(at) = macroflow.armed {
            self.timers.remove(&(at, id));
        }
    }

    /// Adds a flow without grants or outstanding bytes to its macroflow.
    pub(super) fn enter(&mut self, now: Nanos, id: FlowId, flow: &mut Flow) {
        let Some(macroflow) = self.macroflows.get_mut(&flow.macroflow) else { return };
        flow.member = macroflow.group.join(flow.mtu);
        flow.last_feedback = now;
        macroflow.controller.set_mtu(flow.mtu);
        if flow.watch.is_some() {
            macroflow.watching.insert(id);
        }
        if let Some(since) = macroflow.empty.take() {
            self.empty.remove(&(since, flow.macroflow));
        }
    }

    /// Removes a flow, with its requests, grants and outstanding bytes, from its macroflow.
    pub(super) fn exit(&mut self, now: Nanos, id: FlowId, flow: &mut Flow) {
        let Some(macroflow) = self.macroflows.get_mut(&flow.macroflow) else { return };
        let granted = flow.grants.len();
        super::grants::consume(id, flow, macroflow, granted);
        flow.requests = 0;
        macroflow.scheduler.remove(id);
        let resolved = flow.outstanding();
        outstanding(now, id, flow, macroflow, 0, false);
        macroflow.controller.report(now, &Report { flow: id.0, resolved, ..Report::default() });
        refresh(id, flow, macroflow);
        macroflow.group.leave(&mut flow.member);
        flow.member = Member::default();
        macroflow.watching.remove(&id);
        if macroflow.group.flows() > 0 {
            return;
        }
        macroflow.empty = Some(now);
        self.empty.insert((now, flow.macroflow));
        if macroflow.path.is_none() {
            // A macroflow without a path cannot be found again once it has no flows.
            self.forget(flow.macroflow);
        }
    }
}

/// Sets the flow's outstanding bytes. `feedback`: restart its feedback timeout.
pub(super) fn outstanding(
    now: Nanos,
    id: FlowId,
    flow: &mut Flow,
    macroflow: &mut Macroflow,
    bytes: u64,
    feedback: bool,
) {
    if flow.outstanding() > 0 {
        macroflow.awaiting_feedback.remove(&(flow.last_feedback, id));
    }
    if feedback {
        flow.last_feedback = now;
    }
    if bytes > 0 {
        macroflow.awaiting_feedback.insert((flow.last_feedback, id));
    }
    let hungry = flow.member.hungry();
    macroflow.group.set(&mut flow.member, bytes, hungry);
    macroflow.busy = now;
}

/// Applies a flow's feedback.
pub(super) fn report(now: Nanos, id: FlowId, flow: &mut Flow, macroflow: &mut Macroflow, update: &Update) {
    let before = flow.outstanding();
    let resolved = update.nsent.min(before);
    let acked = update.nrecd.min(resolved);
    // A flow that pulls knows only its own part of the window.
    let limited = macroflow.limited(flow.pulled.map(|p| (before, p.0)), flow.mtu);
    outstanding(now, id, flow, macroflow, before - resolved, true);
    let Update { congestion, rtt, .. } = *update;
    let report = Report { flow: id.0, resolved, acked, congestion, old: false, limited, rtt };
    macroflow.controller.report(now, &report);
    // ECN marks, and losses of unknown size, do not count as lost bytes.
    let lost = if congestion == Congestion::None { 0 } else { resolved - acked };
    macroflow.fate.0 += resolved;
    macroflow.fate.1 += lost;
    if macroflow.fate.0 > FATE * macroflow.controller.window() {
        macroflow.fate = (macroflow.fate.0 / 2, macroflow.fate.1 / 2);
    }
}

/// Updates whether the flow is active, that is, shares the window.
pub(super) fn refresh(id: FlowId, flow: &mut Flow, macroflow: &mut Macroflow) -> MacroflowId {
    let waits = flow.requests > 0;
    let active = waits || !flow.grants.is_empty() || flow.outstanding() > 0;
    if active != flow.active {
        let weight = u64::from(flow.weight);
        macroflow.active = if active { macroflow.active + weight } else { macroflow.active - weight };
        flow.active = active;
    }
    let bytes = flow.outstanding();
    macroflow.group.set(&mut flow.member, bytes, waits || flow.pulled.is_some_and(|p| p.1));
    debug_assert!(flow.outstanding() == 0 || macroflow.awaiting_feedback.contains(&(flow.last_feedback, id)));
    flow.macroflow
}
