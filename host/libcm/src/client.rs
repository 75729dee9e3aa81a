//! The paper's calls.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rivulet_cm::{Error as Refusal, Key, MAX_BULK, Status, Thresholds, Update};

use crate::Error;
use crate::abi::{self, EVENT, MAX_WEIGHT, NEVER, ONE, Op, Opening, Operation};
use crate::door::{self, Proxied};
use crate::ring::Ring;
use crate::run::{Calls, Descriptors};
use crate::sigio::Sigio;

/// A macroflow that is forgotten at this moment is gone after so many tries.
const TRIES: u32 = 1000;

/// A macroflow: a number that is given once, and to nobody else's avail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacroflowId(pub u64);

/// A flow (`cm_flowid`). A number is given once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u64);

impl fmt::Display for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "flow {}", self.0)
    }
}

/// What a client is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The flow may send one packet of up to an MTU (`cmapp_send`).
    Send(FlowId),
    /// Its share changed by one of its thresholds (`cmapp_update`): what it is now.
    Update(FlowId, Status),
}

/// A client of the Congestion Manager. Its flows end with it.
pub struct Client {
    calls: Box<dyn Calls + Send>,
    ring: Ring,
    id: u32,
    flows: BTreeSet<FlowId>,
    proxied: bool,
    sigio: Option<Sigio>,
    /// Says by its end that the client is gone; where calls are proxied they have it.
    _door: Option<OwnedFd>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("id", &self.id).field("proxied", &self.proxied).finish_non_exhaustive()
    }
}

impl Client {
    /// Goes to the door whose socket this is; [`door::SOCKET`] is the usual one.
    ///
    /// # Errors
    /// Nobody is there, or nobody is let in; the daemon is of another version.
    pub fn connect(path: &Path) -> Result<Client, Error> {
        let mut entered = door::enter(path).map_err(Error::of("the daemon of the Congestion Manager"))?;
        // In a sandbox this is refused, whatever is asked.
        let proxied = match entered.programs.call(&mut [Op::default()]) {
            Ok(()) => false,
            Err(e) => match e.raw_os_error() {
                Some(libc::EPERM | libc::ENOSYS | libc::EACCES) => true,
                _ => return Err(Error::of("BPF_PROG_RUN")(e)),
            },
        };
        let door::Welcome { client, ring: size } = entered.welcome;
        let ring = Ring::new(entered.ring, size).map_err(Error::of("mapping the ring"))?;
        let (calls, door): (Box<dyn Calls + Send>, _) = if proxied {
            (Box::new(Proxied(entered.socket)), None)
        } else {
            (Box::new(entered.programs), Some(entered.socket))
        };
        Ok(Client { calls, ring, id: client, flows: BTreeSet::new(), proxied, sigio: None, _door: door })
    }

    /// For a process that has the descriptors already: the number that it was admitted by, its ring and octets of that.
    ///
    /// # Errors
    /// The ring is none.
    pub fn new(programs: Descriptors, id: u32, ring: OwnedFd, size: u32) -> Result<Client, Error> {
        let ring = Ring::new(ring, size).map_err(Error::of("mapping the ring"))?;
        let (calls, flows) = (Box::new(programs), BTreeSet::new());
        Ok(Client { calls, ring, id, flows, proxied: false, sigio: None, _door: None })
    }

    /// Whether its calls go through the daemon's process, since bpf(2) is forbidden to this one: several times slower, and they
    /// end with that process.
    #[must_use]
    pub fn proxied(&self) -> bool {
        self.proxied
    }

    /// Has this process sent a signal, such as SIGIO, when events arrive that wait to be [taken](Client::poll): one for those that
    /// come before it took the last; or no longer. A thread of the library's waits for them, in which no handler runs. (The
    /// kernel has no O_ASYNC for the descriptor of a ring.)
    ///
    /// # Errors
    /// It is no signal; there can be no thread.
    pub fn signal(&mut self, signal: Option<i32>) -> Result<(), Error> {
        self.sigio = None;
        let start =
            |signal| Sigio::start(self.ring.as_fd(), signal).map_err(Error::of("a signal for events"));
        self.sigio = signal.map(start).transpose()?;
        Ok(())
    }

    /// Opens a flow (`cm_open`) in its user's macroflow of this destination and code point. Addresses and ports are those that
    /// its packets have on the wire, UDP's; the socket must have been made by this user. `mtu`: bytes of payload of its largest packets.
    ///
    /// # Errors
    /// It is open already; the user has as many as may be, or 64 to this destination; no packet has this size.
    pub fn open(&mut self, key: &Key, mtu: u32) -> Result<FlowId, Error> {
        let what = "cm_open";
        if !(1..=65_535).contains(&mtu) {
            return Err(Refusal::Mtu.into());
        }
        let opening = again(what, || {
            let mut opening = Opening::new(self.id, key, mtu);
            self.calls.open(&mut opening).map_err(Error::of(what))?;
            Ok((opening.result, opening))
        })?;
        let flow = FlowId(opening.flow);
        self.flows.insert(flow);
        Ok(flow)
    }

    fn one(&mut self, what: &'static str, flow: FlowId, of: Operation, v: [u64; 4]) -> Result<Op, Error> {
        let mut ops = [Op::new(flow.0, of, v)];
        self.calls.call(&mut ops).map_err(Error::of(what))?;
        Ok(ops[0])
    }

    fn plain(
        &mut self,
        what: &'static str,
        flow: FlowId,
        of: Operation,
        v: [u64; 4],
    ) -> Result<[u64; 4], Error> {
        let op = self.one(what, flow, of, v)?;
        Error::check(what, op.result)?;
        Ok(op.v)
    }

    /// Ends a flow (`cm_close`): its requests, grants and outstanding bytes are the others' at once.
    ///
    /// # Errors
    /// There is no such flow.
    pub fn close(&mut self, flow: FlowId) -> Result<(), Error> {
        self.flows.remove(&flow);
        let what = "cm_close";
        // It may go into another macroflow at this moment.
        again(what, || self.one(what, flow, Operation::Close, [0; 4]).map(|op| (op.result, ())))
    }

    /// Bytes of payload of a flow's largest packets (`cm_mtu`).
    ///
    /// # Errors
    /// There is no such flow.
    pub fn mtu(&mut self, flow: FlowId) -> Result<u32, Error> {
        Ok(self.plain("cm_mtu", flow, Operation::Mtu, [0; 4])?[0] as u32)
    }

    /// The path's MTU is another one now.
    ///
    /// # Errors
    /// There is no such flow; no packet has this size.
    pub fn set_mtu(&mut self, flow: FlowId, mtu: u32) -> Result<(), Error> {
        if !(1..=65_535).contains(&mtu) {
            return Err(Refusal::Mtu.into());
        }
        self.plain("setting the MTU", flow, Operation::SetMtu, [u64::from(mtu), 0, 0, 0]).map(drop)
    }

    /// The macroflow of a flow (`cm_getmacroflow` of RFC 3124 section 2.1.5): at first the one of its user's flows of this destination and
    /// code point.
    ///
    /// # Errors
    /// There is no such flow.
    pub fn macroflow(&mut self, flow: FlowId) -> Result<MacroflowId, Error> {
        Ok(MacroflowId(self.plain("cm_getmacroflow", flow, Operation::Macroflow, [0; 4])?[0]))
    }

    /// Puts a flow into a macroflow of its own, of whose path nothing is known yet (RFC 3124 section 3.2.3).
    ///
    /// # Errors
    /// As [`Client::set_macroflow`].
    pub fn split(&mut self, flow: FlowId) -> Result<MacroflowId, Error> {
        self.moved(flow, 0)
    }

    /// Puts a flow into another macroflow of its user (`cm_setmacroflow`), with its requests and what is outstanding of it; grants
    /// that it has not used are grants no more.
    ///
    /// # Errors
    /// There is no such flow, or no such macroflow: one that was split ends with its last flow. It has 64 flows already.
    pub fn set_macroflow(&mut self, flow: FlowId, to: MacroflowId) -> Result<(), Error> {
        if to.0 == 0 {
            return Err(Refusal::NoMacroflow.into());
        }
        self.moved(flow, to.0).map(drop)
    }

    fn moved(&mut self, flow: FlowId, to: u64) -> Result<MacroflowId, Error> {
        let what = "cm_setmacroflow";
        let [found, requests, ..] =
            again(what, || self.one(what, flow, Operation::Move, [to, 0, 0, 0]).map(|op| (op.result, op.v)))?;
        if requests > 0 {
            self.request(flow, requests as u32)?;
        }
        Ok(MacroflowId(found))
    }

    /// A flow's share relative to those of its macroflow's others, up to 65,535; 1 at first.
    ///
    /// # Errors
    /// There is no such flow; there is no such weight.
    pub fn set_weight(&mut self, flow: FlowId, weight: u32) -> Result<(), Error> {
        if !(1..=MAX_WEIGHT).contains(&weight) {
            return Err(Refusal::Weight.into());
        }
        self.plain("setting a weight", flow, Operation::Weigh, [u64::from(weight), 0, 0, 0]).map(drop)
    }

    /// Asks so many times for leave to send a packet of up to an MTU (`cm_request`, RFC 3124's `cm_request(k)`).
    ///
    /// # Errors
    /// There is no such flow; too many requests of it wait, or events of the client that it has not taken.
    pub fn request(&mut self, flow: FlowId, count: u32) -> Result<(), Error> {
        let op = self.one("cm_request", flow, Operation::Request, [u64::from(count), 0, 0, 0])?;
        requested(&op)
    }

    /// Leaves a grant to another flow (`cm_notify` of 0 bytes).
    ///
    /// # Errors
    /// There is no such flow.
    pub fn decline(&mut self, flow: FlowId) -> Result<(), Error> {
        self.notify(flow, 0)
    }

    /// `cm_notify`. The kernel counts what leaves by itself, of unconnected sockets too, so that this is needed for 0 bytes only;
    /// more are no news, and the kernel is not called for them.
    ///
    /// # Errors
    /// There is no such flow.
    pub fn notify(&mut self, flow: FlowId, nsent: u32) -> Result<(), Error> {
        if nsent > 0 && self.flows.contains(&flow) {
            return Ok(());
        }
        self.plain("cm_notify", flow, Operation::Notify, [u64::from(nsent), 0, 0, 0]).map(drop)
    }

    /// A client has feedback (`cm_update`). Bytes beyond what left do not count.
    ///
    /// # Errors
    /// There is no such flow.
    pub fn update(&mut self, flow: FlowId, update: &Update) -> Result<(), Error> {
        self.plain("cm_update", flow, Operation::Update, fields(update)).map(drop)
    }

    /// What a flow has of the network (`cm_query`); none as long as no round trip time is known (negative in RFC 3124).
    ///
    /// # Errors
    /// There is no such flow.
    pub fn query(&mut self, flow: FlowId) -> Result<Option<Status>, Error> {
        let op = self.one("cm_query", flow, Operation::Query, [0; 4])?;
        queried(&op)
    }

    /// Has the client told of changes (`cm_register_update`): of any, until it sets [thresholds](Client::thresh); or no longer.
    ///
    /// # Errors
    /// There is no such flow.
    pub fn register_update(&mut self, flow: FlowId, told: bool) -> Result<(), Error> {
        self.plain("cm_register_update", flow, Operation::Watch, [u64::from(told), 0, 0, 0]).map(drop)
    }

    /// By which factors the rate or the round trip time must have changed since the client was told last (`cm_thresh`); they are
    /// rounded to multiples of 1/65536.
    ///
    /// # Errors
    /// There is no such flow; a factor says nothing.
    pub fn thresh(&mut self, flow: FlowId, thresholds: &Thresholds) -> Result<(), Error> {
        let factors = factors(thresholds).ok_or(Refusal::Thresholds)?;
        self.plain("cm_thresh", flow, Operation::Thresh, factors).map(drop)
    }

    /// [`Client::request`] for each of these in one call (`cm_bulk_request`). What became of each is told in their order.
    ///
    /// # Errors
    /// There are more than [`MAX_BULK`]; then nothing is done.
    pub fn bulk_request(&mut self, flows: &[FlowId]) -> Result<Vec<Result<(), Error>>, Error> {
        let ops = self.bulk(flows.iter().map(|f| Op::new(f.0, Operation::Request, [1, 0, 0, 0])))?;
        Ok(ops.iter().map(requested).collect())
    }

    /// [`Client::notify`] for each of these in one call (`cm_bulk_notify`).
    ///
    /// # Errors
    /// As [`Client::bulk_request`].
    pub fn bulk_notify(&mut self, sent: &[(FlowId, u32)]) -> Result<Vec<Result<(), Error>>, Error> {
        if sent.len() <= MAX_BULK && sent.iter().all(|(f, n)| *n > 0 && self.flows.contains(f)) {
            return Ok(sent.iter().map(|_| Ok(())).collect());
        }
        let op = |(f, n): &(FlowId, u32)| Op::new(f.0, Operation::Notify, [u64::from(*n), 0, 0, 0]);
        let ops = self.bulk(sent.iter().map(op))?;
        Ok(ops.iter().map(|op| Error::check("cm_notify", op.result)).collect())
    }

    /// [`Client::update`] for each of these in one call (`cm_bulk_update`).
    ///
    /// # Errors
    /// As [`Client::bulk_request`].
    pub fn bulk_update(&mut self, updates: &[(FlowId, Update)]) -> Result<Vec<Result<(), Error>>, Error> {
        let ops = self.bulk(updates.iter().map(|(f, u)| Op::new(f.0, Operation::Update, fields(u))))?;
        Ok(ops.iter().map(|op| Error::check("cm_update", op.result)).collect())
    }

    /// [`Client::query`] for each of these in one call (`cm_bulk_query`).
    ///
    /// # Errors
    /// As [`Client::bulk_request`].
    pub fn bulk_query(&mut self, flows: &[FlowId]) -> Result<Vec<Result<Option<Status>, Error>>, Error> {
        let ops = self.bulk(flows.iter().map(|f| Op::new(f.0, Operation::Query, [0; 4])))?;
        Ok(ops.iter().map(queried).collect())
    }

    fn bulk(&mut self, ops: impl ExactSizeIterator<Item = Op>) -> Result<Vec<Op>, Error> {
        if ops.len() > MAX_BULK {
            return Err(Refusal::Bulk.into());
        }
        let mut ops: Vec<Op> = ops.collect();
        if !ops.is_empty() {
            self.calls.call(&mut ops).map_err(Error::of("a bulk call"))?;
        }
        Ok(ops)
    }

    /// The next event, if one is there; no call is made to find out, but that what a flow has now is asked for.
    ///
    /// # Errors
    /// That cannot be asked.
    pub fn poll(&mut self) -> Result<Option<Event>, Error> {
        while let Some(event) = self.ring.next() {
            let Some((flow, kind)) = parse(&event) else { continue };
            // What is left of one that was closed.
            if !self.flows.contains(&flow) {
                continue;
            }
            match kind {
                abi::SEND => return Ok(Some(Event::Send(flow))),
                abi::UPDATE => {
                    let op = self.one("cm_query", flow, Operation::Take, [0; 4])?;
                    if let Ok(Some(status)) = queried(&op) {
                        return Ok(Some(Event::Update(flow, status)));
                    }
                }
                _ => {}
            }
        }
        Ok(None)
    }
}

impl AsFd for Client {
    /// Can be read from while events wait.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        for flow in std::mem::take(&mut self.flows) {
            // What is gone is gone.
            let _ = self.close(flow);
        }
    }
}

fn parse(event: &[u8; EVENT]) -> Option<(FlowId, u32)> {
    let flow = u64::from_ne_bytes(*event.first_chunk()?);
    Some((FlowId(flow), u32::from_ne_bytes(*event[8..].first_chunk()?)))
}

/// What `call` gives beside 0. -EAGAIN: what it needs is gone in a moment, or there then, as memory that the kernel allocates without
/// taking locks.
fn again<T>(what: &'static str, mut call: impl FnMut() -> Result<(i32, T), Error>) -> Result<T, Error> {
    for tried in 0..TRIES {
        let (result, given) = call()?;
        if result != -libc::EAGAIN {
            return Error::check(what, result).map(|()| given);
        }
        if tried < TRIES / 10 {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Err(Error::of(what)(io::Error::from_raw_os_error(libc::EAGAIN)))
}

fn requested(op: &Op) -> Result<(), Error> {
    if op.result == -libc::EAGAIN {
        return Err(Refusal::Requests.into());
    }
    Error::check("cm_request", op.result)
}

fn queried(op: &Op) -> Result<Option<Status>, Error> {
    if op.result == -libc::EAGAIN {
        return Ok(None);
    }
    Error::check("cm_query", op.result)?;
    let [rate, rtt, deviation, loss] = op.v;
    Ok(Some(Status { rate, rtt, deviation, loss: loss as u32 }))
}

fn fields(update: &Update) -> [u64; 4] {
    [update.nsent, update.nrecd, update.congestion as u64, update.rtt]
}

/// Multiples of 1/65536; none if one of them says nothing.
fn factors(thresholds: &Thresholds) -> Option<[u64; 4]> {
    let down = |factor: f64| (0.0..=1.0).contains(&factor).then_some((factor * f64::from(ONE)) as u64);
    let up = |factor: f64| {
        (factor >= 1.0).then_some((factor * f64::from(ONE)).ceil().min(f64::from(NEVER)) as u64)
    };
    let Thresholds { rate_down, rate_up, rtt_down, rtt_up } = *thresholds;
    Some([down(rate_down)?, up(rate_up)?, down(rtt_down)?, up(rtt_up)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_parts_of_65536() {
        let t = Thresholds { rate_down: 0.5, rate_up: 1.5, rtt_down: 0.0, rtt_up: f64::INFINITY };
        assert_eq!(factors(&t), Some([32_768, 98_304, 0, u64::from(u32::MAX)]));
        assert_eq!(factors(&Thresholds::default()), Some([65_536, 65_536, 0, u64::from(u32::MAX)]));
        for bad in [
            Thresholds { rate_down: 1.1, ..t },
            Thresholds { rate_up: 0.9, ..t },
            Thresholds { rtt_down: -1.0, ..t },
            Thresholds { rtt_up: f64::NAN, ..t },
        ] {
            assert_eq!(factors(&bad), None, "{bad:?}");
        }
    }
}
