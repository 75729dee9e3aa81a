//! Clients that subscribe to changes of their share.

use super::account::status;
use super::{Due, Manager};
use crate::thresholds::{Thresholds, Watch};
use crate::{Error, Event, FlowId, MacroflowId};

impl Manager {
    /// Subscribes to changes of the flow's share, with this token in the events
    /// (`cm_register_update`): to all changes until [thresholds](Manager::thresh) are set. `None`
    /// unsubscribes.
    ///
    /// # Errors
    /// There is no such flow.
    pub fn register_update(&mut self, id: FlowId, token: Option<u64>) -> Result<(), Error> {
        let (flow, macroflow) = self.both(id)?;
        match (token, &mut flow.watch) {
            (Some(token), Some(watch)) => watch.token = token,
            (Some(token), none) => {
                let thresholds = Thresholds::default();
                *none = Some(Watch { token, thresholds, reported: None, due: false });
                macroflow.watching.insert(id);
            }
            (None, watch) => {
                *watch = None;
                macroflow.watching.remove(&id);
            }
        }
        let id = flow.macroflow;
        self.watch(id);
        Ok(())
    }

    /// Sets the factors by which the rate or round trip time must differ from the last reported one
    /// (`cm_thresh`).
    ///
    /// # Errors
    /// There is no such flow, or it is not subscribed; a factor is out of range.
    pub fn thresh(&mut self, id: FlowId, thresholds: Thresholds) -> Result<(), Error> {
        thresholds.check()?;
        let (flow, _) = self.both(id)?;
        flow.watch.as_mut().ok_or(Error::NoFlow)?.thresholds = thresholds;
        Ok(())
    }

    /// Queues update events for the flows of a macroflow that crossed a threshold.
    pub(super) fn watch(&mut self, id: MacroflowId) {
        let Some(macroflow) = self.macroflows.get(&id) else { return };
        for id in &macroflow.watching {
            let Some(flow) = self.flows.get_mut(id) else { continue };
            let Some(status) = status(flow, macroflow) else { continue };
            let Some(watch) = flow.watch.as_mut().filter(|w| !w.due && w.crossed(&status)) else { continue };
            watch.due = true;
            self.due.push_back(Due::Update(*id));
        }
    }

    /// Builds the update event of a flow from its present share.
    pub(super) fn updated(&mut self, id: FlowId) -> Option<Event> {
        let flow = self.flows.get_mut(&id)?;
        let macroflow = self.macroflows.get(&flow.macroflow)?;
        let status = status(flow, macroflow)?;
        let watch = flow.watch.as_mut().filter(|w| w.due)?;
        (watch.due, watch.reported) = (false, Some(status));
        Some(Event::Update { flow: id, token: watch.token, status })
    }
}
