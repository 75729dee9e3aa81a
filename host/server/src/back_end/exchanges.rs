//! Requests in progress at the back end. Their number is bounded, and each may be dropped at any
//! time because its client repeats it.
//!
//! Nothing here blocks. Lanes are opened when needed; one descriptor (epoll) covers them all.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rivulet_packet::nonce::half_sip_hash_words;
use rivulet_plain::{Ask, Protocol, Segment};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use super::by_tcp::{ByTcp, Job};
use super::health::Health;
use super::lane::{Got, Lane, Pending};
use super::{BackEnd, BackEndCounters};

/// Maximum number of requests in progress.
const LANES: usize = 256;
/// A request is abandoned this long after it was last sent, microseconds.
const PATIENCE: u64 = 2_000_000;
/// Minimum time before a repeated request is sent again, microseconds; clients wait longer before
/// they repeat one.
const AGAIN: u64 = 100_000;
/// Interval between two checks for expired requests, microseconds.
const SWEEP: u64 = 100_000;
/// Datagrams read from a lane without a request.
const STRAY: usize = 4;
/// Lanes handled in one turn.
const EVENTS: usize = 64;
/// In place of a lane number: answers received by TCP.
const TCP: u64 = u64::MAX;
/// In place of a lane number: answers to probes.
const PROBE: u64 = u64::MAX - 1;

/// The requests in progress.
pub(crate) struct Exchanges {
    back_end: BackEnd,
    lanes: Vec<Lane>,
    /// For each lane a number of its client, 0 for an idle one; finds the lane of a repeated
    /// request.
    tags: Vec<u32>,
    /// Idle lanes; the most recently used one is taken first.
    rest: Vec<u16>,
    ready: OwnedFd,
    /// Lanes that were readable at the last poll.
    events: Vec<u64>,
    by_tcp: Option<ByTcp>,
    /// Only one of several workers checks the back end.
    health: Option<Health>,
    /// Answers received by TCP may be queued.
    tcp_done: bool,
    datagram: Box<[u8]>,
    order: Vec<u8>,
    secret: [u32; 2],
    ticket: u64,
    swept: u64,
    under_way: usize,
}

/// An answered request.
pub(crate) struct Answered<'a> {
    /// The client's frame.
    pub(crate) frame: &'a [u8],
    pub(crate) ask: Ask,
    /// The answer; `None` if it is longer than the limit for answers without state.
    pub(crate) bytes: Option<&'a [u8]>,
    /// The lane, to be released afterwards.
    pub(crate) lane: u16,
}

impl Exchanges {
    /// No lanes yet.
    pub(crate) fn new(back_end: BackEnd) -> io::Result<Exchanges> {
        let ready = epoll::create(CreateFlags::CLOEXEC)?;
        let by_tcp = match back_end.protocol {
            Protocol::Dns => Some(ByTcp::start(back_end.address)?),
            Protocol::Http => None,
        };
        if let Some(by_tcp) = &by_tcp {
            epoll::add(&ready, by_tcp, EventData::new_u64(TCP), EventFlags::IN)?;
        }
        let secret = getrandom::u64().map_err(io::Error::other)?;
        Ok(Exchanges {
            back_end,
            lanes: Vec::with_capacity(LANES),
            tags: Vec::with_capacity(LANES),
            rest: Vec::with_capacity(LANES),
            ready,
            events: Vec::with_capacity(EVENTS),
            by_tcp,
            health: None,
            tcp_done: false,
            datagram: vec![0; 1 << 16].into(),
            order: Vec::new(),
            secret: [secret as u32, (secret >> 32) as u32],
            ticket: 0,
            swept: 0,
            under_way: 0,
        })
    }

    /// Starts checking whether the back end answers.
    pub(crate) fn probe(&mut self) -> io::Result<()> {
        let health = Health::open(self.back_end)?;
        epoll::add(&self.ready, &health.socket, EventData::new_u64(PROBE), EventFlags::IN)?;
        self.health = Some(health);
        Ok(())
    }

    /// Whether the back end does not answer, or has not answered yet. False on workers that do not
    /// check it.
    pub(crate) fn is_dead(&self) -> bool {
        self.health.as_ref().is_some_and(|health| !health.is_alive())
    }

    /// Sends the client's request in this frame to the back end. For a repeated request, updates
    /// its lane with the new frame.
    pub(crate) fn ask(
        &mut self,
        frame: &[u8],
        segment: &Segment<'_>,
        ask: Ask,
        now: u64,
        counters: &mut BackEndCounters,
    ) {
        let (client, service) = (segment.header.src, segment.header.dst);
        let tag = self.tag(segment);
        let same =
            |lane: &Lane| lane.pending.as_ref().is_some_and(|p| (p.client, p.service) == (client, service));
        let found = self.tags.iter().zip(&self.lanes).position(|(&other, lane)| other == tag && same(lane));
        let mut chosen = None;
        if let Some(index) = found {
            let lane = &mut self.lanes[index];
            if segment.payload.get(..ask.length) == Some(lane.request()) {
                lane.renew(frame);
                let Some(pending) = &mut lane.pending else { return };
                pending.ask = ask;
                if now.saturating_sub(pending.asked) < AGAIN {
                    return;
                }
                chosen = Some(index as u16);
            } else {
                // Another connection from the same port, or a longer request on the same one.
                self.put_to_rest(index as u16, true);
            }
        }
        let lane = match chosen {
            Some(lane) => lane,
            None => {
                let Some(lane) = self.take_lane() else {
                    counters.dropped += 1;
                    return;
                };
                self.ticket += 1;
                let words = [self.ticket as u32, (self.ticket >> 32) as u32];
                let id = half_sip_hash_words(self.secret, &words) as u16;
                let pending = Pending::new(client, service, ask, self.ticket, id);
                self.lanes[usize::from(lane)].begin(frame, pending);
                self.tags[usize::from(lane)] = tag;
                self.under_way += 1;
                lane
            }
        };
        if let Err(e) = self.lanes[usize::from(lane)].send(self.back_end.protocol, now, counters) {
            tracing::debug!(back_end = %self.back_end.address, error = %e, "cannot send to the back end");
            counters.dropped += 1;
            self.put_to_rest(lane, true);
        }
    }

    /// A number that clients rarely share, and that no idle lane has.
    fn tag(&self, segment: &Segment<'_>) -> u32 {
        let word = segment.header.ack ^ u32::from(segment.header.src.port());
        // The cookie in the acknowledgement identifies its connection. The low bits depend on how
        // much of an answer is acknowledged, so they are masked.
        half_sip_hash_words(self.secret, &[word & !0xffff]) | 1
    }

    fn take_lane(&mut self) -> Option<u16> {
        if let Some(lane) = self.rest.pop() {
            return Some(lane);
        }
        if self.lanes.len() >= LANES {
            return None;
        }
        let lane = match Lane::open(&self.back_end) {
            Ok(lane) => lane,
            Err(e) => {
                tracing::debug!(back_end = %self.back_end.address, error = %e, "cannot open a socket");
                return None;
            }
        };
        let index = self.lanes.len() as u16;
        self.lanes.push(lane);
        self.tags.push(0);
        if self.watch(index) {
            return Some(index);
        }
        self.lanes.pop();
        self.tags.pop();
        None
    }

    fn watch(&self, index: u16) -> bool {
        let Some(lane) = self.lanes.get(usize::from(index)) else { return false };
        epoll::add(&self.ready, &lane.socket, EventData::new_u64(index.into()), EventFlags::IN).is_ok()
    }

    /// Releases the lane of a finished or abandoned request.
    pub(crate) fn put_to_rest(&mut self, index: u16, given_up: bool) {
        let protocol = self.back_end.protocol;
        let Some(lane) = self.lanes.get_mut(usize::from(index)) else { return };
        let tainted = lane.is_tainted(protocol, given_up);
        if lane.pending.take().is_some() {
            self.under_way -= 1;
        }
        self.tags[usize::from(index)] = 0;
        // Closing a socket removes it from the epoll set. If no new one can be opened, the lane is
        // not used again.
        if !tainted || lane.reopen(&self.back_end).is_ok() && self.watch(index) {
            self.rest.push(index);
        }
    }

    /// Polls the lanes, and abandons expired requests. Called once a turn, before
    /// [`next`](Self::next).
    pub(crate) fn poll(&mut self, now: u64, counters: &mut BackEndCounters) {
        if let Some(health) = &mut self.health {
            health.check(now, counters);
        }
        self.events.clear();
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut room = [const { MaybeUninit::<Event>::uninit() }; EVENTS];
        // EINTR counts as no event.
        if let Ok((events, _)) = epoll::wait(&self.ready, &mut room, Some(&zero)) {
            self.events.extend(events.iter().map(|event| event.data.u64()));
        }
        self.tcp_done = self.by_tcp.is_some();
        if self.under_way > 0 && now.saturating_sub(self.swept) > SWEEP {
            self.swept = now;
            for index in 0..self.lanes.len() {
                let late = |p: &Pending| now.saturating_sub(p.asked) > PATIENCE;
                if self.lanes[index].pending.as_ref().is_some_and(late) {
                    counters.timeouts += 1;
                    self.put_to_rest(index as u16, true);
                }
            }
        }
    }

    /// The next answered request, among the lanes found by [`poll`](Self::poll).
    pub(crate) fn next(&mut self, counters: &mut BackEndCounters) -> Option<Answered<'_>> {
        let (index, got) = self.advance(counters)?;
        let lane = self.lanes.get(usize::from(index))?;
        let ask = lane.pending.as_ref()?.ask;
        let bytes = (got == Got::All).then(|| lane.answer(&mut self.order));
        Some(Answered { frame: lane.frame(), ask, bytes, lane: index })
    }

    /// Reads until a request has all its answers.
    fn advance(&mut self, counters: &mut BackEndCounters) -> Option<(u16, Got)> {
        while let Some(&event) = self.events.last() {
            match (event, u16::try_from(event)) {
                (_, Ok(index)) => {
                    if let Some(got) = self.read(index, counters) {
                        return Some((index, got));
                    }
                }
                (PROBE, _) => self.health.iter_mut().for_each(Health::read),
                _ => self.by_tcp.iter().for_each(ByTcp::clear_event),
            }
            self.events.pop();
        }
        if self.tcp_done {
            let found = self.by_tcp(counters);
            self.tcp_done = found.is_some();
            return found;
        }
        None
    }

    /// Reads a lane until its request is answered or no datagram is left.
    fn read(&mut self, index: u16, counters: &mut BackEndCounters) -> Option<Got> {
        let mut stray = 0;
        loop {
            let lane = self.lanes.get_mut(usize::from(index))?;
            let length = match lane.socket.recv(&mut self.datagram) {
                Ok(length) => length,
                Err(e) => {
                    // Connection refused: the port is closed. The client repeats its request.
                    if e.kind() != io::ErrorKind::WouldBlock && lane.pending.is_some() {
                        counters.timeouts += 1;
                        self.put_to_rest(index, true);
                    }
                    return None;
                }
            };
            let datagram = self.datagram.get(..length).unwrap_or_default();
            let got = lane.take(self.back_end.protocol, datagram);
            if got == Got::Foreign {
                counters.late += 1;
                stray += 1;
                if stray >= STRAY {
                    return None;
                }
                continue;
            }
            counters.answers += 1;
            if let Some(health) = &mut self.health {
                health.record_answer();
            }
            match got {
                Got::All | Got::TooLong => return Some(got),
                Got::Truncated(number) => self.hand_over(index, number, counters),
                Got::Some | Got::Foreign => {}
            }
        }
    }

    /// Queues a query for TCP.
    fn hand_over(&mut self, index: u16, number: usize, counters: &mut BackEndCounters) {
        counters.by_tcp += 1;
        let lane = &self.lanes[usize::from(index)];
        let handed = || {
            let queries = rivulet_plain::dns::queries(lane.request()).ok()?;
            let (query, pending) = (queries.get(number)?, lane.pending.as_ref()?);
            let query = query.message().to_vec();
            let job = Job { lane: index, ticket: pending.ticket, number, query };
            self.by_tcp.as_ref()?.ask(job).then_some(())
        };
        if handed().is_none() {
            counters.dropped += 1;
            self.put_to_rest(index, true);
        }
    }

    /// The next request completed by TCP.
    fn by_tcp(&mut self, counters: &mut BackEndCounters) -> Option<(u16, Got)> {
        loop {
            let done = self.by_tcp.as_ref()?.next()?;
            let job = done.job;
            let lane = self.lanes.get_mut(usize::from(job.lane))?;
            if lane.pending.as_ref().is_none_or(|pending| pending.ticket != job.ticket) {
                counters.late += 1;
                continue;
            }
            match done.answer.map(|answer| lane.take_by_tcp(job.number, &answer)) {
                Some(got @ (Got::All | Got::TooLong)) => return Some((job.lane, got)),
                Some(_) => {}
                None => {
                    counters.tcp_failed += 1;
                    self.put_to_rest(job.lane, true);
                }
            }
        }
    }
}

impl AsFd for Exchanges {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}
