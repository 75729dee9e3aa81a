//! Flows come to macroflows, change, and go.

use super::{Manager, Report, Update};
use crate::controller::Congestion;
use crate::flow::Flow;
use crate::macroflow::{Macroflow, MacroflowId, Path};
use crate::{FlowId, Member, Nanos};

/// What becomes of packets is remembered for so many windows.
const FATE: u64 = 16;

impl Manager {
    /// A macroflow without flows.
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

    /// A flow that has nothing yet comes to its macroflow.
    pub(super) fn enter(&mut self, now: Nanos, id: FlowId, flow: &mut Flow) {
        let Some(macroflow) = self.macroflows.get_mut(&flow.macroflow) else { return };
        flow.member = macroflow.group.join(flow.mtu);
        flow.heard = now;
        macroflow.controller.set_mtu(flow.mtu);
        if flow.watch.is_some() {
            macroflow.watching.insert(id);
        }
        if let Some(since) = macroflow.empty.take() {
            self.empty.remove(&(since, flow.macroflow));
        }
    }

    /// A flow leaves its macroflow, with all that it has there.
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
            // Nobody can find it any more.
            self.forget(flow.macroflow);
        }
    }
}

/// Notes how many bytes of a flow are outstanding; `heard`: its silence begins now.
pub(super) fn outstanding(
    now: Nanos,
    id: FlowId,
    flow: &mut Flow,
    macroflow: &mut Macroflow,
    bytes: u64,
    heard: bool,
) {
    if flow.outstanding() > 0 {
        macroflow.unheard.remove(&(flow.heard, id));
    }
    if heard {
        flow.heard = now;
    }
    if bytes > 0 {
        macroflow.unheard.insert((flow.heard, id));
    }
    let hungry = flow.member.hungry();
    macroflow.group.set(&mut flow.member, bytes, hungry);
    macroflow.busy = now;
}

/// A flow has feedback.
pub(super) fn report(now: Nanos, id: FlowId, flow: &mut Flow, macroflow: &mut Macroflow, update: &Update) {
    let before = flow.outstanding();
    let resolved = update.nsent.min(before);
    let acked = update.nrecd.min(resolved);
    // One that pulls knows its part only.
    let limited = macroflow.limited(flow.pulled.map(|p| (before, p.0)), flow.mtu);
    outstanding(now, id, flow, macroflow, before - resolved, true);
    let Update { congestion, rtt, .. } = *update;
    let report = Report { flow: id.0, resolved, acked, congestion, old: false, limited, rtt };
    macroflow.controller.report(now, &report);
    // A mark, and a loss that nobody can say the size of, are not counted as lost bytes.
    let lost = if congestion == Congestion::None { 0 } else { resolved - acked };
    macroflow.fate.0 += resolved;
    macroflow.fate.1 += lost;
    if macroflow.fate.0 > FATE * macroflow.controller.window() {
        macroflow.fate = (macroflow.fate.0 / 2, macroflow.fate.1 / 2);
    }
}

/// Whether a flow is one of those that share the window.
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
    debug_assert!(flow.outstanding() == 0 || macroflow.unheard.contains(&(flow.heard, id)));
    flow.macroflow
}
