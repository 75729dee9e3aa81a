//! Frames in, frames out: ARP, and HTTP over Rivulet.

use core::net::{SocketAddr, SocketAddrV4};

use arrayvec::{ArrayString, ArrayVec};
use rivulet_packet::{Consumed, EthHeader, NonceKey, Segment, eth};
use rivulet_transport::server::{Answer as Say, Server as Transport};
use rivulet_transport::server::{Head, Plan, Policy, Refusal, ReplayMemory, Reply, Verdict};
use rivulet_transport::{KeyRing, MacKey, NonceKeys, Time, UserContinuation, operation_id};

use crate::answer::{self, Answer};
use crate::arp;
use crate::counters::Counters;
use crate::session::{self, Session};
use crate::site::{Report, Site, TEXT_BYTES};

/// Maximum length of a frame in bytes: an Ethernet header and a packet of 1,500 bytes.
pub(crate) const FRAME: usize = 14 + 1_500;
/// Maximum number of pages in a site.
const PAGES: usize = 16;
/// Uses that the replay memory stores in a horizon (4 s): about 17 kB. At more than 128 requests a second, repeated
/// requests pass.
const REPLAY_USES: usize = 512;
/// log2 of the output space of a stream (`rivulet_transport`, "Input and output spaces").
const REGION: u32 = 48;
/// Length of a sealed user continuation without its opaque part (`docs/wire-format.md`).
const SEALED: usize = 52;
/// The only epoch of keys.
const EPOCH: u16 = 1;
/// The number of the service under which keys are derived.
const SERVICE: u32 = 1;

/// The secret of a service. Servers with the same keys and pages continue each other's connections.
#[derive(Debug)]
pub struct Keys(pub [u8; Keys::LENGTH]);

impl Keys {
    /// Random bytes that make the keys: 16 of the seal master, 8 of K, 8 of K' and 16 of the opening key.
    pub const LENGTH: usize = 48;

    fn ring(&self) -> KeyRing {
        let word = |at: usize| u32::from_le_bytes(core::array::from_fn(|i| self.0[at + i]));
        let half = |at: usize| core::array::from_fn::<u8, 16, _>(|i| self.0[at + i]);
        let nonce = |at| NonceKey { k0: word(at), k1: word(at + 4) };
        let mut ring = KeyRing::new(SERVICE);
        ring.add_seal(EPOCH, &half(0));
        ring.use_seal(EPOCH);
        let opening = MacKey::new(&half(32));
        ring.add_nonce(EPOCH, NonceKeys { original: nonce(16), retransmitted: nonce(24), opening });
        ring.use_nonce(EPOCH);
        ring
    }
}

/// The server.
#[derive(Debug)]
pub struct Server {
    mac: [u8; 6],
    address: SocketAddrV4,
    site: Site,
    /// Digests of the pages.
    identities: ArrayVec<[u8; 16], PAGES>,
    keys: KeyRing,
    transport: Transport,
    counters: Counters,
}

/// The understood part of a request's input, for the response that acknowledges it.
struct Understood {
    /// Sealed user continuations: for further input, and for the answer.
    input: ArrayVec<u8, { SEALED + session::ENCODED }>,
    output: ArrayVec<u8, { SEALED + answer::ENCODED }>,
    consumed: Consumed,
    /// The answer, and its first output offset.
    answer: Option<(u64, Answer)>,
    /// The stream's output ends at this offset, without an answer.
    end: Option<u64>,
}

impl Server {
    /// A server at this Ethernet and service address. `secret` must be random, so that clients cannot choose requests
    /// that collide in the replay memory. This allocates all memory that the server ever has.
    ///
    /// # Panics
    /// If the site has more than 16 pages.
    #[must_use]
    pub fn new(mac: [u8; 6], address: SocketAddrV4, keys: &Keys, secret: u64, site: Site) -> Server {
        let policy = Policy::default();
        let replay = Some(ReplayMemory::new(REPLAY_USES, policy.horizon, secret));
        Server {
            mac,
            address,
            site,
            identities: site.pages.iter().map(crate::Page::identity).collect(),
            keys: keys.ring(),
            transport: Transport { policy, replay, cache: None },
            counters: Counters::default(),
        }
    }

    /// Counters since the start.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Receives a frame and sends the answers. `now` is the common clock of the service's servers (microseconds since
    /// 1970); it must not lag behind an earlier run by more than the skew of 100 ms, or that run's continuations are
    /// refused.
    pub fn receive(&mut self, frame: &[u8], now: Time, send: &mut dyn FnMut(&[u8])) {
        self.counters.frames = self.counters.frames.wrapping_add(1);
        if let Some(answer) = arp::answer(frame, self.mac, *self.address.ip()) {
            return send(&answer);
        }
        let Ok((ethernet, segment)) = Segment::parse_frame(frame) else { return };
        let ours = ethernet.dst == self.mac && segment.dst == SocketAddr::V4(self.address);
        if !ours || segment.verify().is_err() {
            return;
        }
        match self.transport.accept(&segment, &self.keys, now) {
            Ok(Verdict::Respond(plan)) => self.respond(&plan, &ethernet, send),
            Ok(Verdict::Terminate) => {}
            Err(_) => self.counters.refused = self.counters.refused.wrapping_add(1),
        }
    }

    /// Sends the responses that congestion control allows for a request.
    fn respond(&mut self, plan: &Plan<'_>, ethernet: &EthHeader, send: &mut dyn FnMut(&[u8])) {
        self.counters.requests = self.counters.requests.wrapping_add(1);
        let header = EthHeader { dst: ethernet.src, src: self.mac, vlan: ethernet.vlan };
        let start = header.length();
        // The acknowledgement of input goes into a response without requested data, if there is one, so that it takes no
        // room from data.
        let fits = |h: &Head| h.carries_input_and_token() && h.is_for_application();
        let apt = |wanted: bool| plan.heads().iter().position(|h| fits(h) && h.want.is_some() == wanted);
        let place = apt(false).or_else(|| apt(true));
        let room = place.map_or(0, |place| plan.heads()[place].room);
        let understood = self.understand(plan).filter(|understood| understood.overhead() <= room);
        let mut ahead = None;
        let (mut out, mut data) = ([0; FRAME + 4], [0; FRAME]);
        for (index, head) in plan.heads().iter().enumerate() {
            let part = understood.as_ref().filter(|_| place == Some(index));
            let sealed: ArrayVec<&[u8], 2> = part.map(Understood::sealed).unwrap_or_default();
            let mut reply =
                Reply { uconts: &sealed, consumed: part.map(|part| part.consumed), ..Reply::default() };
            let room = head.room.saturating_sub(reply.overhead()).min(data.len());
            if let Some(part) = part {
                ahead = part.answer.as_ref().map(|(start, answer)| (*start, *start, answer));
            }
            if !head.is_for_application() {
            } else if head.want.is_some() {
                reply.answer = self.wanted(plan, head, &mut data[..room]);
            } else if let Some(offset) = part.and_then(|part| part.end) {
                reply.answer = Say::Data { offset, data: &[], end: true };
            } else if let Some((next, start, answer)) = &mut ahead {
                // The answer to new input can be sent at once, in responses without requested data.
                let length = answer.read(&self.site, *next - *start, &mut data[..room]);
                let last = *next - *start + length as u64 == answer.len(&self.site);
                if length > 0 {
                    let end = last && answer.closes;
                    reply.answer = Say::Data { offset: *next, data: &data[..length], end };
                    *next += length as u64;
                }
            }
            let Ok(sent) = self.transport.respond(plan, index, &reply, &self.keys, &mut out[start..]) else {
                continue;
            };
            if header.fill(&mut out, eth::IPV4) {
                self.counters.responses = self.counters.responses.wrapping_add(1);
                send(&out[..start + sent.length]);
            }
        }
    }

    /// Reads the input of a request. `None`: it has none, or none that this server can continue; the client sends it
    /// again.
    fn understand(&self, plan: &Plan<'_>) -> Option<Understood> {
        let input = plan.input(&self.keys).ok()??;
        let mut session = match &input.continuation {
            None => Session::new(u64::from(input.stream) << REGION),
            Some(c) => Session::decode(c.opaque)?,
        };
        let start = session.next;
        let report = || self.report();
        let (read, answer) = session.read(input.data, input.fin, &self.site, report);
        let at = input.offset + read as u64;
        let mut understood = Understood {
            input: ArrayVec::new(),
            output: ArrayVec::new(),
            consumed: Consumed { stream: input.stream, offset: at },
            end: (session.closed && answer.is_none()).then_some(session.next),
            answer: answer.map(|answer| (start, answer)),
        };
        let ahead = UserContinuation {
            input: true,
            stream: input.stream,
            valid_start: at,
            valid_end: at,
            identity: operation_id(plan.connection(), input.stream, at),
            opaque: &session.encode(),
        };
        self.seal(plan, &ahead, &mut understood.input)?;
        if let Some((start, answer)) = &understood.answer {
            let output = UserContinuation {
                input: false,
                stream: input.stream,
                valid_start: *start,
                valid_end: *start + answer.len(&self.site),
                identity: answer.identity(&self.identities),
                opaque: &answer.encode(),
            };
            self.seal(plan, &output, &mut understood.output)?;
        }
        Some(understood)
    }

    /// Seals a user continuation into `out`. `None`: it does not fit.
    fn seal<const N: usize>(
        &self,
        plan: &Plan<'_>,
        what: &UserContinuation<'_>,
        out: &mut ArrayVec<u8, N>,
    ) -> Option<()> {
        out.extend(core::iter::repeat_n(0, out.capacity()));
        let length = plan.seal_ucont(&self.keys, what, out).ok()?;
        out.truncate(length);
        Some(())
    }

    /// The output that a head requests, as much as fits into `data`.
    fn wanted<'d>(&self, plan: &Plan<'_>, head: &Head, data: &'d mut [u8]) -> Say<'d> {
        let Some(want) = head.want else { return Say::None };
        let c = match plan.output_continuation(&want, &self.keys) {
            Ok(c) => c,
            Err(refusal) => return refusal.answer(),
        };
        let Some(answer) = Answer::decode(c.opaque) else { return Refusal::User.answer() };
        if answer.identity(&self.identities) != c.identity {
            // Another version of the page.
            return Say::NotMine { code: 404 };
        }
        let at = want.offset - c.valid_start;
        let most = data.len().min(want.length as usize);
        let length = answer.read(&self.site, at, &mut data[..most]);
        let end = answer.closes && at + length as u64 == answer.len(&self.site);
        Say::Data { offset: want.offset, data: &data[..length], end }
    }

    fn report(&self) -> ArrayString<TEXT_BYTES> {
        let make = |report: Report| (report.make)(&self.counters);
        self.site.report.map(make).unwrap_or_default()
    }
}

impl Understood {
    /// The continuations for the client.
    fn sealed(&self) -> ArrayVec<&[u8], 2> {
        [&self.input[..], &self.output].into_iter().filter(|sealed| !sealed.is_empty()).collect()
    }

    /// Bytes of a response that its acknowledgement takes.
    fn overhead(&self) -> usize {
        Reply { uconts: &self.sealed(), consumed: Some(self.consumed), ..Reply::default() }.overhead()
    }
}
