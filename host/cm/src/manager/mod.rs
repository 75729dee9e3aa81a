//! The paper's calls.

mod account;
mod bulk;
mod grants;
mod state;
mod timers;
mod watching;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::controller::{Aimd, Controller, Rules};
use crate::flow::Flow;
use crate::macroflow::{Macroflow, Path};
use crate::{Error, Event, FlowId, Key, MILLISECOND, MacroflowId, Nanos, SECOND, Status, Update, scheduler};

/// Largest number of operations in a bulk call.
pub const MAX_BULK: usize = 64;

/// Settings of a manager.
#[derive(Clone, Debug)]
pub struct Config {
    /// Initial window and growth limits of the controllers.
    pub rules: Rules,
    /// Creates the controller of a macroflow for a path with this MTU in bytes.
    pub controller: fn(Rules, u32) -> Box<dyn Controller>,
    /// Scheduler of the macroflows.
    pub scheduler: scheduler::Kind,
    /// A grant that is neither used nor declined goes to another flow after this time, or after a
    /// round trip if that is longer (RFC 3124 §3.1).
    pub grant_life: Nanos,
    /// Without feedback for this time and two timeouts, all outstanding bytes of a flow count as
    /// lost.
    pub silence: Nanos,
    /// Largest number of flows.
    pub flows: usize,
    /// Largest number of macroflows, including those without flows whose history is kept.
    pub macroflows: usize,
    /// Largest number of waiting requests of one flow.
    pub requests: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            rules: Rules::default(),
            controller: |rules, mtu| Box::new(Aimd::new(rules, mtu)),
            scheduler: scheduler::Kind::default(),
            grant_life: 100 * MILLISECOND,
            silence: 5 * SECOND,
            flows: 65_536,
            macroflows: 65_536,
            requests: 1024,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Due {
    Send(FlowId),
    Update(FlowId),
}

/// The Congestion Manager of one host.
#[derive(Debug)]
pub struct Manager {
    config: Config,
    flows: BTreeMap<FlowId, Flow>,
    open: BTreeMap<Key, FlowId>,
    macroflows: BTreeMap<MacroflowId, Macroflow>,
    paths: BTreeMap<Path, MacroflowId>,
    /// Macroflows without flows, the longest empty first.
    empty: BTreeSet<(Nanos, MacroflowId)>,
    timers: BTreeSet<(Nanos, MacroflowId)>,
    due: VecDeque<Due>,
    numbers: u64,
}

impl Manager {
    /// Creates a manager without flows.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            flows: BTreeMap::new(),
            open: BTreeMap::new(),
            macroflows: BTreeMap::new(),
            paths: BTreeMap::new(),
            empty: BTreeSet::new(),
            timers: BTreeSet::new(),
            due: VecDeque::new(),
            numbers: 0,
        }
    }

    /// Opens a flow (`cm_open`) in the macroflow of its destination and code point. `mtu`: size of
    /// its largest packets in bytes.
    ///
    /// # Errors
    /// The flow is already open; too many flows are open; the MTU is invalid.
    pub fn open(&mut self, now: Nanos, key: Key, mtu: u32) -> Result<FlowId, Error> {
        check_mtu(mtu)?;
        if self.open.contains_key(&key) {
            return Err(Error::Open);
        }
        if self.flows.len() >= self.config.flows {
            return Err(Error::Full);
        }
        let path = Path { destination: key.destination.ip(), dscp: key.dscp };
        let macroflow = match self.paths.get(&path) {
            Some(id) => *id,
            None => self.make(now, Some(path), mtu),
        };
        let id = FlowId(self.number());
        self.open.insert(key, id);
        let mut flow = Flow {
            key,
            macroflow,
            mtu,
            weight: 1,
            requests: 0,
            grants: VecDeque::new(),
            undelivered: 0,
            pulled: None,
            member: crate::Member::default(),
            active: false,
            last_feedback: now,
            send: id.0,
            watch: None,
        };
        self.enter(now, id, &mut flow);
        self.flows.insert(id, flow);
        Ok(id)
    }

    /// Closes a flow (`cm_close`). Its requests end, and the window that its grants and outstanding
    /// bytes used is free at once.
    ///
    /// # Errors
    /// There is no such flow.
    pub fn close(&mut self, now: Nanos, id: FlowId) -> Result<(), Error> {
        let mut flow = self.flows.remove(&id).ok_or(Error::NoFlow)?;
        self.open.remove(&flow.key);
        let macroflow = flow.macroflow;
        self.exit(now, id, &mut flow);
        self.settle(now, macroflow);
        Ok(())
    }

    /// Returns the flow's MTU in bytes (`cm_mtu`).
    ///
    /// # Errors
    /// There is no such flow.
    pub fn mtu(&self, id: FlowId) -> Result<u32, Error> {
        Ok(self.flow(id)?.mtu)
    }

    /// Sets the path's new MTU.
    ///
    /// # Errors
    /// There is no such flow; the MTU is invalid.
    pub fn set_mtu(&mut self, now: Nanos, id: FlowId, mtu: u32) -> Result<(), Error> {
        check_mtu(mtu)?;
        let (flow, macroflow) = self.both(id)?;
        let grants = flow.grants.len() as u64;
        macroflow.reserved = macroflow.reserved - grants * u64::from(flow.mtu) + grants * u64::from(mtu);
        macroflow.controller.set_mtu(mtu);
        flow.mtu = mtu;
        let id = flow.macroflow;
        self.settle(now, id);
        Ok(())
    }

    /// Sets the flow's weight relative to the other flows of its macroflow, for a scheduler that
    /// uses weights; initially 1.
    ///
    /// # Errors
    /// There is no such flow; the weight is 0.
    pub fn set_weight(&mut self, id: FlowId, weight: u32) -> Result<(), Error> {
        if weight == 0 {
            return Err(Error::Weight);
        }
        let (flow, macroflow) = self.both(id)?;
        macroflow.scheduler.set_weight(id, weight);
        if flow.active {
            macroflow.active = macroflow.active - u64::from(flow.weight) + u64::from(weight);
        }
        flow.weight = weight;
        Ok(())
    }

    /// Requests a grant to send one packet of up to an MTU (`cm_request`).
    ///
    /// # Errors
    /// There is no such flow; too many of its requests wait.
    pub fn request(&mut self, now: Nanos, id: FlowId) -> Result<(), Error> {
        let most = self.config.requests;
        let (flow, macroflow) = self.both(id)?;
        if flow.requests >= most {
            return Err(Error::Requests);
        }
        flow.requests += 1;
        if flow.requests == 1 {
            macroflow.scheduler.wait(id, flow.weight);
        }
        let id = account::refresh(id, flow, macroflow);
        self.settle(now, id);
        Ok(())
    }

    /// Sets the token in the flow's [`Event::Send`] events (`cm_register_send`); initially the
    /// flow's number.
    ///
    /// # Errors
    /// There is no such flow.
    pub fn register_send(&mut self, id: FlowId, token: u64) -> Result<(), Error> {
        self.both(id)?.0.send = token;
        Ok(())
    }

    /// Records that a packet of `nsent` bytes was sent (`cm_notify`). It uses a grant if there is
    /// one, and is charged to the window in any case. 0 declines a grant, which goes to another
    /// flow.
    ///
    /// # Errors
    /// There is no such flow.
    pub fn notify(&mut self, now: Nanos, id: FlowId, nsent: u32) -> Result<(), Error> {
        let (flow, macroflow) = self.both(id)?;
        let used = nsent.div_ceil(flow.mtu).max(1) as usize;
        let used = used.min(flow.grants.len());
        account::consume(id, flow, macroflow, used);
        if nsent > 0 {
            macroflow.controller.charge(now, u64::from(nsent));
            let outstanding = flow.outstanding();
            account::outstanding(now, id, flow, macroflow, outstanding + u64::from(nsent), outstanding == 0);
        }
        let id = account::refresh(id, flow, macroflow);
        self.settle(now, id);
        Ok(())
    }

    /// Records a client's feedback (`cm_update`). Bytes beyond those recorded by
    /// [`notify`](Manager::notify) for this flow are ignored.
    ///
    /// # Errors
    /// There is no such flow.
    pub fn update(&mut self, now: Nanos, id: FlowId, update: Update) -> Result<(), Error> {
        let (flow, macroflow) = self.both(id)?;
        account::report(now, id, flow, macroflow, &update);
        let id = account::refresh(id, flow, macroflow);
        self.settle(now, id);
        self.watch(id);
        Ok(())
    }

    /// Returns a flow's share (`cm_query`); `None` before the first round trip time sample
    /// (negative in RFC 3124).
    ///
    /// # Errors
    /// There is no such flow.
    pub fn query(&mut self, now: Nanos, id: FlowId) -> Result<Option<Status>, Error> {
        let (flow, macroflow) = self.both(id)?;
        macroflow.controller.age(now);
        Ok(account::status(flow, macroflow))
    }

    /// For a client that cannot be called back and asks whenever one of its packets is
    /// acknowledged: returns how many packets of its MTU it may have outstanding, at least one.
    /// `hungry`: it would send more if it could. `next`: its next round trip begins. Weights are
    /// ignored.
    ///
    /// # Errors
    /// There is no such flow.
    pub fn pull(&mut self, now: Nanos, id: FlowId, hungry: bool, next: bool) -> Result<u32, Error> {
        let (flow, macroflow) = self.both(id)?;
        macroflow.controller.age(now);
        flow.pulled = Some((0, hungry));
        account::refresh(id, flow, macroflow);
        let window = macroflow.controller.window();
        let packets = macroflow.group.packets(&mut flow.member, window, flow.mtu, next);
        flow.pulled = Some((u64::from(packets) * u64::from(flow.mtu), hungry));
        Ok(packets)
    }

    /// Returns a flow's macroflow (`cm_getmacroflow`).
    ///
    /// # Errors
    /// There is no such flow.
    pub fn macroflow(&self, id: FlowId) -> Result<MacroflowId, Error> {
        Ok(self.flow(id)?.macroflow)
    }

    /// Moves a flow into a new macroflow without history (RFC 3124 §3.2.3).
    ///
    /// # Errors
    /// There is no such flow.
    pub fn split(&mut self, now: Nanos, id: FlowId) -> Result<MacroflowId, Error> {
        let mtu = self.flow(id)?.mtu;
        let own = self.make(now, None, mtu);
        self.set_macroflow(now, id, own)?;
        Ok(own)
    }

    /// Moves a flow with its outstanding bytes into another macroflow (`cm_setmacroflow`). Its
    /// grants end; its requests wait there.
    ///
    /// # Errors
    /// There is no such flow or macroflow.
    pub fn set_macroflow(&mut self, now: Nanos, id: FlowId, to: MacroflowId) -> Result<(), Error> {
        if !self.macroflows.contains_key(&to) {
            return Err(Error::NoMacroflow);
        }
        if self.flow(id)?.macroflow == to {
            return Ok(());
        }
        let Some(mut flow) = self.flows.remove(&id) else { return Err(Error::NoFlow) };
        let (from, outstanding) = (flow.macroflow, flow.outstanding());
        let requests = flow.requests + flow.grants.len() as u32;
        self.exit(now, id, &mut flow);
        flow.macroflow = to;
        self.enter(now, id, &mut flow);
        if let Some(macroflow) = self.macroflows.get_mut(&to) {
            flow.requests = requests;
            if requests > 0 {
                macroflow.scheduler.wait(id, flow.weight);
            }
            if outstanding > 0 {
                macroflow.controller.charge(now, outstanding);
                account::outstanding(now, id, &mut flow, macroflow, outstanding, true);
            }
            account::refresh(id, &mut flow, macroflow);
        }
        self.flows.insert(id, flow);
        self.settle(now, from);
        self.settle(now, to);
        self.watch(from);
        self.watch(to);
        Ok(())
    }

    /// Returns the next event, if any.
    pub fn poll(&mut self) -> Option<Event> {
        while let Some(due) = self.due.pop_front() {
            match due {
                Due::Send(id) => {
                    // Skip events of closed flows and of grants that have expired.
                    let Some(flow) = self.flows.get_mut(&id).filter(|f| f.undelivered > 0) else { continue };
                    flow.undelivered -= 1;
                    return Some(Event::Send { flow: id, token: flow.send });
                }
                Due::Update(id) => {
                    if let Some(event) = self.updated(id) {
                        return Some(event);
                    }
                }
            }
        }
        None
    }

    /// The controller of a flow's macroflow, for inspection.
    ///
    /// # Errors
    /// There is no such flow.
    pub fn controller(&self, id: FlowId) -> Result<&dyn Controller, Error> {
        let macroflow = self.flow(id)?.macroflow;
        Ok(&*self.macroflows.get(&macroflow).ok_or(Error::NoMacroflow)?.controller)
    }

    /// (open flows, macroflows including empty ones).
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.flows.len(), self.macroflows.len())
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn flow(&self, id: FlowId) -> Result<&Flow, Error> {
        self.flows.get(&id).ok_or(Error::NoFlow)
    }

    fn both(&mut self, id: FlowId) -> Result<(&mut Flow, &mut Macroflow), Error> {
        let flow = self.flows.get_mut(&id).ok_or(Error::NoFlow)?;
        let macroflow = self.macroflows.get_mut(&flow.macroflow).ok_or(Error::NoMacroflow)?;
        Ok((flow, macroflow))
    }
}

fn check_mtu(mtu: u32) -> Result<(), Error> {
    if (1..=65_535).contains(&mtu) { Ok(()) } else { Err(Error::Mtu) }
}

#[cfg(test)]
mod tests;
