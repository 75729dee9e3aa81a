//! The paper's calls, for one client.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rivulet_cm::{Error as Refusal, Key, MAX_BULK, Status, Thresholds, Update};

use crate::Error;
use crate::abi::{self, EVENT, MAX_WEIGHT, NEVER, ONE, Op, Opening, Operation};
use crate::daemon::{self, Proxied};
use crate::ring::Ring;
use crate::run::{Calls, Descriptors};
use crate::sigio::Sigio;

/// Attempts of a call before it fails with EAGAIN. A macroflow that is being deleted is gone long
/// before.
const TRIES: u32 = 1000;

/// A macroflow. Its number is never reused, and other users cannot use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacroflowId(pub u64);

/// A flow (`cm_flowid`). A number is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u64);

impl fmt::Display for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "flow {}", self.0)
    }
}

/// An event for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The flow may send one packet of up to an MTU (`cmapp_send`).
    Send(FlowId),
    /// The flow's share crossed a threshold (`cmapp_update`); the share now.
    Update(FlowId, Status),
}

/// A client of the Congestion Manager. Dropping it closes its flows.
pub struct Client {
    calls: Box<dyn Calls + Send>,
    ring: Ring,
    id: u32,
    flows: BTreeSet<FlowId>,
    proxied: bool,
    sigio: Option<Sigio>,
    /// Connection to the daemon, which removes the client when it closes. `None` if `calls` holds
    /// it.
    _connection: Option<OwnedFd>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("id", &self.id).field("proxied", &self.proxied).finish_non_exhaustive()
    }
}

impl Client {
    /// Connects to the daemon at this socket; [`daemon::SOCKET`] is the default.
    ///
    /// # Errors
    /// No daemon listens there, it refuses this user, or it has another version.
    pub fn connect(path: &Path) -> Result<Client, Error> {
        let mut entered = daemon::enter(path).map_err(Error::of("the daemon of the Congestion Manager"))?;
        // A sandbox refuses bpf(2) for any arguments.
        let proxied = match entered.programs.call(&mut [Op::default()]) {
            Ok(()) => false,
            Err(e) => match e.raw_os_error() {
                Some(libc::EPERM | libc::ENOSYS | libc::EACCES) => true,
                _ => return Err(Error::of("BPF_PROG_RUN")(e)),
            },
        };
        let daemon::Welcome { client, ring: size } = entered.welcome;
        let ring = Ring::new(entered.ring, size).map_err(Error::of("mapping the ring"))?;
        let (calls, connection): (Box<dyn Calls + Send>, _) = if proxied {
            (Box::new(Proxied(entered.socket)), None)
        } else {
            (Box::new(entered.programs), Some(entered.socket))
        };
        Ok(Client {
            calls,
            ring,
            id: client,
            flows: BTreeSet::new(),
            proxied,
            sigio: None,
            _connection: connection,
        })
    }

    /// Creates a client from descriptors that the process already has: its admission number, and
    /// its ring with the ring's size in bytes.
    ///
    /// # Errors
    /// The ring cannot be mapped.
    pub fn new(programs: Descriptors, id: u32, ring: OwnedFd, size: u32) -> Result<Client, Error> {
        let ring = Ring::new(ring, size).map_err(Error::of("mapping the ring"))?;
        let (calls, flows) = (Box::new(programs), BTreeSet::new());
        Ok(Client { calls, ring, id, flows, proxied: false, sigio: None, _connection: None })
    }

    /// Whether calls go through the daemon's process because bpf(2) is forbidden to this one. Such
    /// calls are several times slower and fail once the daemon ends.
    #[must_use]
    pub fn proxied(&self) -> bool {
        self.proxied
    }

    /// Sends a signal, such as SIGIO, to this process when events arrive for
    /// [`poll`](Client::poll): one for all that arrive before the process has polled the last one.
    /// `None` stops it. A thread of the library waits for the events and runs no handler, because
    /// the kernel has no O_ASYNC for a ring's descriptor.
    ///
    /// # Errors
    /// The number is no valid signal; the thread cannot be started.
    pub fn signal(&mut self, signal: Option<i32>) -> Result<(), Error> {
        self.sigio = None;
        let start =
            |signal| Sigio::start(self.ring.as_fd(), signal).map_err(Error::of("a signal for events"));
        self.sigio = signal.map(start).transpose()?;
        Ok(())
    }

    /// Opens a flow (`cm_open`) in its user's macroflow of this destination and code point.
    /// Addresses and ports are those of its UDP packets on the wire, and this user must have
    /// created the socket. `mtu`: payload bytes of its largest packets.
    ///
    /// # Errors
    /// The flow is already open; the user's limit of flows is reached, or 64 to this destination;
    /// the MTU is invalid.
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

    /// Closes a flow (`cm_close`). Its requests end, and the window that its grants and outstanding
    /// bytes used is free at once.
    ///
    /// # Errors
    /// There is no such flow.
    pub fn close(&mut self, flow: FlowId) -> Result<(), Error> {
        self.flows.remove(&flow);
        let what = "cm_close";
        // Retries while the flow is being moved to another macroflow.
        again(what, || self.one(what, flow, Operation::Close, [0; 4]).map(|op| (op.result, ())))
    }

    /// Payload bytes of a flow's largest packets (`cm_mtu`).
    ///
    /// # Errors
    /// There is no such flow.
    pub fn mtu(&mut self, flow: FlowId) -> Result<u32, Error> {
        Ok(self.plain("cm_mtu", flow, Operation::Mtu, [0; 4])?[0] as u32)
    }

    /// Sets the path's new MTU.
    ///
    /// # Errors
    /// There is no such flow; the MTU is invalid.
    pub fn set_mtu(&mut self, flow: FlowId, mtu: u32) -> Result<(), Error> {
        if !(1..=65_535).contains(&mtu) {
            return Err(Refusal::Mtu.into());
        }
        self.plain("setting the MTU", flow, Operation::SetMtu, [u64::from(mtu), 0, 0, 0]).map(drop)
    }

    /// The flow's macroflow (`cm_getmacroflow` of RFC 3124 section 2.1.5). Initially it is shared
    /// by the user's flows with this destination and code point.
    ///
    /// # Errors
    /// There is no such flow.
    pub fn macroflow(&mut self, flow: FlowId) -> Result<MacroflowId, Error> {
        Ok(MacroflowId(self.plain("cm_getmacroflow", flow, Operation::Macroflow, [0; 4])?[0]))
    }

    /// Moves a flow into a new macroflow without history (RFC 3124 section 3.2.3).
    ///
    /// # Errors
    /// As [`Client::set_macroflow`].
    pub fn split(&mut self, flow: FlowId) -> Result<MacroflowId, Error> {
        self.moved(flow, 0)
    }

    /// Moves a flow into another macroflow of its user (`cm_setmacroflow`), with its requests and
    /// outstanding bytes. Its unused grants end.
    ///
    /// # Errors
    /// There is no such flow or macroflow (one made by `split` ends with its last flow), or the
    /// macroflow already has 64 flows.
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

    /// Sets a flow's weight relative to the other flows of its macroflow, up to 65,535; initially
    /// 1.
    ///
    /// # Errors
    /// There is no such flow; the weight is out of range.
    pub fn set_weight(&mut self, flow: FlowId, weight: u32) -> Result<(), Error> {
        if !(1..=MAX_WEIGHT).contains(&weight) {
            return Err(Refusal::Weight.into());
        }
        self.plain("setting a weight", flow, Operation::Weigh, [u64::from(weight), 0, 0, 0]).map(drop)
    }

    /// Requests `count` grants, each for a packet of up to an MTU (`cm_request`, RFC 3124's
    /// `cm_request(k)`).
    ///
    /// # Errors
    /// There is no such flow; too many of its requests, or of the client's events, wait.
    pub fn request(&mut self, flow: FlowId, count: u32) -> Result<(), Error> {
        let op = self.one("cm_request", flow, Operation::Request, [u64::from(count), 0, 0, 0])?;
        requested(&op)
    }

    /// Declines a grant, which goes to another flow (`cm_notify` of 0 bytes).
    ///
    /// # Errors
    /// There is no such flow.
    pub fn decline(&mut self, flow: FlowId) -> Result<(), Error> {
        self.notify(flow, 0)
    }

    /// `cm_notify`. The kernel counts all packets itself, also those of unconnected sockets. So
    /// only 0 bytes need a call into the kernel.
    ///
    /// # Errors
    /// There is no such flow.
    pub fn notify(&mut self, flow: FlowId, nsent: u32) -> Result<(), Error> {
        if nsent > 0 && self.flows.contains(&flow) {
            return Ok(());
        }
        self.plain("cm_notify", flow, Operation::Notify, [u64::from(nsent), 0, 0, 0]).map(drop)
    }

    /// Records a client's feedback (`cm_update`). Bytes beyond those sent are ignored.
    ///
    /// # Errors
    /// There is no such flow.
    pub fn update(&mut self, flow: FlowId, update: &Update) -> Result<(), Error> {
        self.plain("cm_update", flow, Operation::Update, fields(update)).map(drop)
    }

    /// Returns a flow's share (`cm_query`); `None` before the first round trip time sample
    /// (negative in RFC 3124).
    ///
    /// # Errors
    /// There is no such flow.
    pub fn query(&mut self, flow: FlowId) -> Result<Option<Status>, Error> {
        let op = self.one("cm_query", flow, Operation::Query, [0; 4])?;
        queried(&op)
    }

    /// Subscribes to changes of the flow's share (`cm_register_update`), or unsubscribes: to all
    /// changes until [thresholds](Client::thresh) are set.
    ///
    /// # Errors
    /// There is no such flow.
    pub fn register_update(&mut self, flow: FlowId, told: bool) -> Result<(), Error> {
        self.plain("cm_register_update", flow, Operation::Watch, [u64::from(told), 0, 0, 0]).map(drop)
    }

    /// Sets the factors by which the rate or round trip time must differ from the last reported one
    /// (`cm_thresh`), rounded to multiples of 1/65536.
    ///
    /// # Errors
    /// There is no such flow; a factor is out of range.
    pub fn thresh(&mut self, flow: FlowId, thresholds: &Thresholds) -> Result<(), Error> {
        let factors = factors(thresholds).ok_or(Refusal::Thresholds)?;
        self.plain("cm_thresh", flow, Operation::Thresh, factors).map(drop)
    }

    /// [`Client::request`] for each flow in one call (`cm_bulk_request`); results are in the same
    /// order.
    ///
    /// # Errors
    /// More than [`MAX_BULK`] flows; then none is requested.
    pub fn bulk_request(&mut self, flows: &[FlowId]) -> Result<Vec<Result<(), Error>>, Error> {
        let ops = self.bulk(flows.iter().map(|f| Op::new(f.0, Operation::Request, [1, 0, 0, 0])))?;
        Ok(ops.iter().map(requested).collect())
    }

    /// [`Client::notify`] for each item in one call (`cm_bulk_notify`).
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

    /// [`Client::update`] for each item in one call (`cm_bulk_update`).
    ///
    /// # Errors
    /// As [`Client::bulk_request`].
    pub fn bulk_update(&mut self, updates: &[(FlowId, Update)]) -> Result<Vec<Result<(), Error>>, Error> {
        let ops = self.bulk(updates.iter().map(|(f, u)| Op::new(f.0, Operation::Update, fields(u))))?;
        Ok(ops.iter().map(|op| Error::check("cm_update", op.result)).collect())
    }

    /// [`Client::query`] for each flow in one call (`cm_bulk_query`).
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

    /// Returns the next event, if any. It reads the ring without a system call, but an update event
    /// queries the flow's share.
    ///
    /// # Errors
    /// The query fails.
    pub fn poll(&mut self) -> Result<Option<Event>, Error> {
        while let Some(event) = self.ring.next() {
            let Some((flow, kind)) = parse(&event) else { continue };
            // Skip late events of a closed flow.
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
    /// Readable while events wait.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        for flow in std::mem::take(&mut self.flows) {
            // The flow may already be closed.
            let _ = self.close(flow);
        }
    }
}

fn parse(event: &[u8; EVENT]) -> Option<(FlowId, u32)> {
    let flow = u64::from_ne_bytes(*event.first_chunk()?);
    Some((FlowId(flow), u32::from_ne_bytes(*event[8..].first_chunk()?)))
}

/// Repeats `call` while it returns -EAGAIN: a macroflow is being deleted or moved, or memory that
/// the kernel allocates without locks is not available yet.
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

/// The thresholds as multiples of 1/65536; `None` if one of them is out of range.
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
