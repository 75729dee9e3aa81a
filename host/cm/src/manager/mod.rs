//! The paper's calls.

mod bulk;
mod grants;
mod state;
mod timers;
mod watching;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::controller::{Aimd, Controller, Report, Rules};
use crate::flow::Flow;
use crate::macroflow::{Macroflow, Path};
use crate::{Congestion, Error, FlowId, Key, MILLISECOND, MacroflowId, Nanos, SECOND, scheduler};

/// Most operations of a bulk call.
pub const MAX_BULK: usize = 64;

/// How a manager works.
#[derive(Clone, Debug)]
pub struct Config {
    /// Of controllers.
    pub rules: Rules,
    /// Makes the controller of a macroflow whose path has this MTU, bytes.
    pub controller: fn(Rules, u32) -> Box<dyn Controller>,
    /// How macroflows are shared.
    pub scheduler: scheduler::Kind,
    /// A grant that is neither used nor declined goes to others after this, or a round trip if that is longer (RFC 3124 §3.1).
    pub grant_life: Nanos,
    /// A flow of which something is outstanding and nothing is heard for so long, and for two timeouts, has lost it all.
    pub silence: Nanos,
    /// Most flows.
    pub flows: usize,
    /// Most macroflows, with those whose history is kept for later.
    pub macroflows: usize,
    /// Most requests of a flow that wait.
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

/// What a flow has of the network, by its macroflow's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Status {
    /// Bytes a second: the flow's share of the window, each round trip.
    pub rate: u64,
    /// Smoothed round trip time, ns.
    pub rtt: Nanos,
    /// Mean deviation of it, ns.
    pub deviation: Nanos,
    /// Bytes of a million that were lost lately.
    pub loss: u32,
}

/// What a client learnt from its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Update {
    /// Bytes of which it learnt what became of them.
    pub nsent: u64,
    /// Bytes of them that arrived.
    pub nrecd: u64,
    /// What was lost, and how.
    pub congestion: Congestion,
    /// A round trip time, ns; 0: none.
    pub rtt: Nanos,
}

/// What a client is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It may send one packet of up to an MTU (`cmapp_send`).
    Send {
        /// Which flow.
        flow: FlowId,
        /// What it registered by [`Manager::register_send`].
        token: u64,
    },
    /// Its share changed by one of its thresholds (`cmapp_update`). Changes that were not taken yet are one.
    Update {
        /// Which flow.
        flow: FlowId,
        /// What it registered by [`Manager::register_update`].
        token: u64,
        /// What it has now.
        status: Status,
    },
}

#[derive(Clone, Copy, Debug)]
enum Due {
    Send(FlowId),
    Update(FlowId),
}

/// The manager of one host.
#[derive(Debug)]
pub struct Manager {
    config: Config,
    flows: BTreeMap<FlowId, Flow>,
    open: BTreeMap<Key, FlowId>,
    macroflows: BTreeMap<MacroflowId, Macroflow>,
    paths: BTreeMap<Path, MacroflowId>,
    /// Macroflows without flows, the one that is so the longest first.
    empty: BTreeSet<(Nanos, MacroflowId)>,
    timers: BTreeSet<(Nanos, MacroflowId)>,
    due: VecDeque<Due>,
    numbers: u64,
}

impl Manager {
    /// One without flows.
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

    /// Opens a flow (`cm_open`) in the macroflow of its destination and code point. `mtu`: bytes of its largest packets.
    ///
    /// # Errors
    /// It is open already; there are too many; no packet has this size.
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
            heard: now,
            send: id.0,
            watch: None,
        };
        self.enter(now, id, &mut flow);
        self.flows.insert(id, flow);
        Ok(id)
    }

    /// Ends a flow (`cm_close`): its requests, grants and outstanding bytes are the others' at once.
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

    /// The MTU of a flow, bytes (`cm_mtu`).
    ///
    /// # Errors
    /// There is no such flow.
    pub fn mtu(&self, id: FlowId) -> Result<u32, Error> {
        Ok(self.flow(id)?.mtu)
    }

    /// The path's MTU is another one now.
    ///
    /// # Errors
    /// There is no such flow; no packet has this size.
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

    /// A flow's share relative to those of its macroflow's others, for a scheduler that heeds weights; 1 at first.
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

    /// Asks for leave to send a packet of up to an MTU (`cm_request`).
    ///
    /// # Errors
    /// There is no such flow; too many requests of it wait.
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
        let id = state::refresh(id, flow, macroflow);
        self.settle(now, id);
        Ok(())
    }

    /// What events of a flow's grants are to carry (`cm_register_send`); its number at first.
    ///
    /// # Errors
    /// There is no such flow.
    pub fn register_send(&mut self, id: FlowId, token: u64) -> Result<(), Error> {
        self.both(id)?.0.send = token;
        Ok(())
    }

    /// A packet of `nsent` bytes left (`cm_notify`): at a grant, or without one, as what the host sends anyway is charged too.
    /// 0 declines a grant, which goes to another flow.
    ///
    /// # Errors
    /// There is no such flow.
    pub fn notify(&mut self, now: Nanos, id: FlowId, nsent: u32) -> Result<(), Error> {
        let (flow, macroflow) = self.both(id)?;
        let used = nsent.div_ceil(flow.mtu).max(1) as usize;
        let used = used.min(flow.grants.len());
        grants::consume(id, flow, macroflow, used);
        if nsent > 0 {
            macroflow.controller.charge(now, u64::from(nsent));
            let outstanding = flow.outstanding();
            state::outstanding(now, id, flow, macroflow, outstanding + u64::from(nsent), outstanding == 0);
        }
        let id = state::refresh(id, flow, macroflow);
        self.settle(now, id);
        Ok(())
    }

    /// A client has feedback (`cm_update`). Bytes beyond what [`notify`](Manager::notify) said of the flow do not count.
    ///
    /// # Errors
    /// There is no such flow.
    pub fn update(&mut self, now: Nanos, id: FlowId, update: Update) -> Result<(), Error> {
        let (flow, macroflow) = self.both(id)?;
        state::report(now, id, flow, macroflow, &update);
        let id = state::refresh(id, flow, macroflow);
        self.settle(now, id);
        self.watch(id);
        Ok(())
    }

    /// What a flow has of the network (`cm_query`); none as long as no round trip time is known (negative in RFC 3124).
    ///
    /// # Errors
    /// There is no such flow.
    pub fn query(&mut self, now: Nanos, id: FlowId) -> Result<Option<Status>, Error> {
        let (flow, macroflow) = self.both(id)?;
        macroflow.controller.age(now);
        Ok(watching::status(flow, macroflow))
    }

    /// For a client that cannot be called back, and asks whenever something of it was acknowledged: packets of its MTU that it
    /// may have outstanding, at least one. `hungry`: it would send more than that if it could; `next`: another round trip of it
    /// begins. Weights do not count.
    ///
    /// # Errors
    /// There is no such flow.
    pub fn pull(&mut self, now: Nanos, id: FlowId, hungry: bool, next: bool) -> Result<u32, Error> {
        let (flow, macroflow) = self.both(id)?;
        macroflow.controller.age(now);
        flow.pulled = Some((0, hungry));
        state::refresh(id, flow, macroflow);
        let window = macroflow.controller.window();
        let packets = macroflow.group.packets(&mut flow.member, window, flow.mtu, next);
        flow.pulled = Some((u64::from(packets) * u64::from(flow.mtu), hungry));
        Ok(packets)
    }

    /// The macroflow of a flow (`cm_getmacroflow`).
    ///
    /// # Errors
    /// There is no such flow.
    pub fn macroflow(&self, id: FlowId) -> Result<MacroflowId, Error> {
        Ok(self.flow(id)?.macroflow)
    }

    /// Puts a flow into a macroflow of its own, which knows nothing of the network yet (RFC 3124 §3.2.3).
    ///
    /// # Errors
    /// There is no such flow.
    pub fn split(&mut self, now: Nanos, id: FlowId) -> Result<MacroflowId, Error> {
        let mtu = self.flow(id)?.mtu;
        let own = self.make(now, None, mtu);
        self.set_macroflow(now, id, own)?;
        Ok(own)
    }

    /// Puts a flow into another macroflow (`cm_setmacroflow`), with what is outstanding of it. Its grants end; its requests wait
    /// there.
    ///
    /// # Errors
    /// There is no such flow, or no such macroflow.
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
                state::outstanding(now, id, &mut flow, macroflow, outstanding, true);
            }
            state::refresh(id, &mut flow, macroflow);
        }
        self.flows.insert(id, flow);
        self.settle(now, from);
        self.settle(now, to);
        self.watch(from);
        self.watch(to);
        Ok(())
    }

    /// The next event, if there is one.
    pub fn poll(&mut self) -> Option<Event> {
        while let Some(due) = self.due.pop_front() {
            match due {
                Due::Send(id) => {
                    // One that is closed, or whose grant expired meanwhile, has none.
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

    /// The controller of a flow's macroflow, to be looked at.
    ///
    /// # Errors
    /// There is no such flow.
    pub fn controller(&self, id: FlowId) -> Result<&dyn Controller, Error> {
        let macroflow = self.flow(id)?.macroflow;
        Ok(&*self.macroflows.get(&macroflow).ok_or(Error::NoMacroflow)?.controller)
    }

    /// How many flows are open, and how many macroflows are known.
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
