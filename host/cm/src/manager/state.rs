//! Adds, changes and removes the flows of macroflows.

use super::{Manager, account};
use crate::controller::Report;
use crate::flow::Flow;
use crate::macroflow::{Macroflow, Path};
use crate::{FlowId, MacroflowId, Member, Nanos};

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
        account::consume(id, flow, macroflow, granted);
        flow.requests = 0;
        macroflow.scheduler.remove(id);
        let resolved = flow.outstanding();
        account::outstanding(now, id, flow, macroflow, 0, false);
        macroflow.controller.report(now, &Report { flow: id.0, resolved, ..Report::default() });
        account::refresh(id, flow, macroflow);
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
