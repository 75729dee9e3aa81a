//! Accounts of a flow and its macroflow, which change together: grants, outstanding bytes, losses
//! and shares.

use crate::controller::{Congestion, Report};
use crate::event::{Status, Update};
use crate::flow::Flow;
use crate::macroflow::Macroflow;
use crate::{FlowId, MacroflowId, Nanos};

/// The loss rate is averaged over this many windows.
const FATE: u64 = 16;

/// Removes a flow's oldest grants.
pub(super) fn consume(id: FlowId, flow: &mut Flow, macroflow: &mut Macroflow, count: usize) {
    let count = count.min(flow.grants.len());
    let Some(oldest) = flow.grants.front().copied().filter(|_| count > 0) else { return };
    macroflow.granted.remove(&(oldest, id));
    flow.grants.drain(..count);
    macroflow.reserved -= count as u64 * u64::from(flow.mtu);
    if let Some(oldest) = flow.grants.front() {
        macroflow.granted.insert((*oldest, id));
    }
    flow.undelivered = flow.undelivered.min(flow.grants.len());
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

/// The flow's share by weight among the active flows, counting itself.
pub(super) fn status(flow: &Flow, macroflow: &Macroflow) -> Option<Status> {
    let rate = macroflow.controller.rate()?;
    let rtt = macroflow.controller.rtt();
    let weight = u128::from(flow.weight);
    let all = u128::from(macroflow.active) + if flow.active { 0 } else { weight };
    let (resolved, lost) = macroflow.fate;
    Some(Status {
        rate: (u128::from(rate) * weight / all) as u64,
        rtt: rtt.smoothed()?,
        deviation: rtt.deviation(),
        loss: (u128::from(lost) * 1_000_000 / u128::from(resolved.max(1))) as u32,
    })
}
