//! The server step: from (request, keys, now) to a verdict. Pure, bounded, without allocation, and nothing is kept.

use arrayvec::ArrayVec;
use rivulet_packet::{Ecn, Request, RequestClass, SealedContinuation, Segment, TransportContinuation, Want};

use super::plan::{HeadKind, Plan};
use super::refusal::Refusal;
use crate::cwnd::Piece;
use crate::keys::{KeyRing, MacKey};
use crate::nonces::sums_are_right;
use crate::opening::{self, OpenedBy};
use crate::retired::{self, Retired, Seed};
use crate::seal::is_genuine;
use crate::time::{CLOCK_MASK, MILLISECOND, Micros, SECOND, Time, stamp_age};
use crate::verdict::{
    Decision, Fresh, Go, INITIAL_SSTHRESH, INITIAL_WINDOW, LOSS_WINDOW, answered_before, decide, piece_of,
};

/// What a service allows. The defaults are those of the contracts page.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Largest TCP payload of a response, bytes; the client's MSS lowers it.
    pub payload: u16,
    /// How long an ordinary request is good.
    pub horizon: Micros,
    /// How far stamps of the common clock may lie in the future: ToRs agree to this.
    pub clock_skew: Micros,
    /// Frames come through one's own ToR alone, so its block is believed.
    pub trust_tor: bool,
    /// The ToR's CHECKED mark saves the check of the sums.
    pub trust_checked: bool,
    /// Accept requests that cover two numbers, where the memory against replay is this server's own. With `trust_tor` none is accepted: the
    /// ToR's memory counts the number answered alone, and the other could be answered once more by itself.
    pub delayed_acks: bool,
    /// Send data as ECN-capable (RFC 3168).
    pub ecn: bool,
    /// Seal into an answer what the client can predict as a difference (section 5.3).
    pub delta: bool,
    /// This request waited long at the server itself: it counts as marked (RFC 3168), unless its connection's window is
    /// small already.
    pub congested: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            payload: 1452,
            horizon: 4 * SECOND,
            clock_skew: 100 * MILLISECOND,
            trust_tor: false,
            trust_checked: true,
            delayed_acks: true,
            ecn: true,
            delta: true,
            congested: false,
        }
    }
}

/// What is sent for a request.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // a box would allocate
pub enum Verdict<'a> {
    /// Nothing: the trickle is terminated.
    Terminate,
    /// These responses.
    Respond(Plan<'a>),
}

/// Smallest and largest slot that a SYN can ask for, bytes of TCP payload.
const SLOT: std::ops::RangeInclusive<u16> = 300..=8952;
/// Windows below this many packets are not made smaller because of a queue at the server: half of this still mends a
/// loss without a timeout.
const LEAST_MARKED: u32 = 6;
/// Slots of 4.19 s, as the ToR's memory has them: RESTARTs of stale continuations within one lead to one generation.
const SLOT_SHIFT: u32 = 22;
/// Bytes by which our TCP header exceeds the 20 that an MSS counts with.
const OPTION: u16 = 8;

/// The facts about a request that the rest of the step needs.
struct Context<'s, 'a> {
    segment: &'s Segment<'a>,
    keys: &'s KeyRing,
    policy: &'s Policy,
    now: u64,
    tor_id: u16,
    seal_epoch: u16,
    nonce_epoch: u16,
    checked: bool,
}

/// Judges the segment. `now` is the common clock, used where no trusted ToR stamped the request.
///
/// # Errors
/// [`Refusal`]: the packet is to be dropped, unanswered.
pub fn step<'a>(
    segment: &Segment<'a>,
    keys: &KeyRing,
    now: Time,
    policy: &Policy,
) -> Result<Verdict<'a>, Refusal> {
    step_knowing(segment, keys, now, policy, Known::default())
}

/// What soft state beside the step knows about the request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// This replica sealed exactly this continuation: its MAC need not be computed again.
    pub genuine: bool,
    /// The address token was used before: the SYN is as one without.
    pub token_spent: bool,
    /// What was used within the horizon is remembered, all of it: a window can be moved. Where it is not, nobody could tell one that is
    /// copied.
    pub remembers: bool,
}

pub(super) fn step_knowing<'a>(
    segment: &Segment<'a>,
    keys: &KeyRing,
    now: Time,
    policy: &Policy,
    known: Known,
) -> Result<Verdict<'a>, Refusal> {
    if segment.is_bare_syn() {
        let context = Context::new(segment, keys, now, policy, None);
        return bare_syn(&context);
    }
    let request = segment.request()?;
    let context = Context::new(segment, keys, now, policy, Some(&request));
    let Some(sealed) = request.continuation else {
        return syn(&context, request, known);
    };
    if request.class == RequestClass::Restart {
        return restart(&context, request, &sealed);
    }
    let c = &sealed.fields;
    if !known.genuine {
        let seal = keys.seal(c.seal_epoch).ok_or(Refusal::SealEpoch)?;
        if !is_genuine(seal, &sealed, segment.src) {
            return Err(Refusal::Forged);
        }
    }
    if !context.is_fresh(c.time) {
        return Err(Refusal::Stale);
    }
    let nonces = keys.nonce(c.nonce_epoch).ok_or(Refusal::NonceEpoch)?;
    if !context.checked && !sums_are_right(nonces, c.tag, c.base, request.proof.ranges()) {
        return Err(Refusal::Sum);
    }
    if request.covers != 1 && (policy.trust_tor || !policy.delayed_acks) {
        return Err(Refusal::Delayed);
    }
    match decide(request.class, c, request.covers, request.proof.iter())? {
        Decision::Go(go) => go_on(&context, &request, c, &go),
        Decision::Fresh(fresh) if request.retire => {
            Ok(Verdict::Respond(retire(&context, request, c, &fresh, known)))
        }
        Decision::Fresh(fresh) => new_generation(&context, request, c, &fresh, &nonces.opening),
        Decision::Close => Ok(Verdict::Respond(close(&context, request, c))),
    }
}

impl<'s, 'a> Context<'s, 'a> {
    fn new(
        segment: &'s Segment<'a>,
        keys: &'s KeyRing,
        now: Time,
        policy: &'s Policy,
        request: Option<&Request<'a>>,
    ) -> Self {
        let tor = request.map(|r| r.tor).filter(|_| policy.trust_tor).unwrap_or_default();
        Self {
            segment,
            keys,
            policy,
            now: if tor.time_valid { tor.time } else { now.0 & CLOCK_MASK },
            tor_id: tor.id,
            seal_epoch: keys.sealing_epoch(tor.seal_epoch),
            nonce_epoch: keys.opening_epoch(tor.nonce_epoch),
            checked: tor.checked && policy.trust_checked,
        }
    }

    /// Section 2.2: a stamp of the common clock within the horizon.
    fn is_fresh(&self, stamp: u64) -> bool {
        let age = stamp_age(self.now, stamp);
        age >= -(self.policy.clock_skew as i64) && age <= self.policy.horizon as i64
    }

    /// A continuation of `c`'s connection, stamped now: number, base and piece are still those of `c`.
    fn restamp(&self, c: &TransportContinuation) -> TransportContinuation {
        TransportContinuation {
            time: self.now,
            tor_id: self.tor_id,
            seal_epoch: self.seal_epoch,
            marked: self.segment.ecn == Ecn::Ce,
            first: false,
            rekey_wanted: is_newer(self.nonce_epoch, c.nonce_epoch),
            ..*c
        }
    }

    /// Inlined, so that the room for heads, most of a plan and not filled yet, is not copied.
    #[inline(always)]
    fn plan(&self, request: Option<Request<'a>>, next: TransportContinuation) -> Plan<'a> {
        Plan {
            request,
            client: self.segment.src,
            service: self.segment.dst,
            ack: self.segment.seq.wrapping_add(self.segment.sequence_length()),
            ecn: self.policy.ecn,
            now: self.now,
            next,
            predicted: None,
            regenerated: next,
            heads: ArrayVec::new(),
            syn: None,
            fin: false,
            spent: None,
            seeded: false,
            given: None,
            tells_address: false,
            largest: usize::from(next.mss),
        }
    }
}

/// Whether a usable epoch supersedes another (serial numbers, RFC 1982).
fn is_newer(usable: u16, used: u16) -> bool {
    usable != 0 && (usable.wrapping_sub(used) as i16) > 0
}

/// Smoothed round trip time from the ToR's clock (RFC 6298 with alpha 1/8): advisory.
fn smoothed(context: &Context<'_, '_>, request: &Request<'_>, c: &TransportContinuation) -> u32 {
    let sample = stamp_age(context.now, c.time) - request.hold_micros() as i64;
    let usable =
        request.class == RequestClass::Normal && c.tor_id == context.tor_id && request.hold != u16::MAX;
    match u32::try_from(sample) {
        Ok(sample) if usable && sample > 0 => {
            if c.srtt == 0 {
                sample
            } else {
                c.srtt - c.srtt / 8 + sample / 8
            }
        }
        _ => c.srtt,
    }
}

fn go_on<'a>(
    context: &Context<'_, 'a>,
    request: &Request<'a>,
    c: &TransportContinuation,
    go: &Go,
) -> Result<Verdict<'a>, Refusal> {
    let mut stamped = context.restamp(c);
    let piece = go.piece.unwrap_or(piece_of(c));
    stamped.marked |= context.policy.congested && piece.cwnd(c.number) >= LEAST_MARKED;
    let mut next = with_piece(&TransportContinuation { base: go.base, ..stamped }, piece);
    next.srtt = smoothed(context, request, c);
    let mut plan = context.plan(Some(*request), next);
    plan.regenerated = stamped;
    let predictable = context.policy.delta && request.class == RequestClass::Normal;
    plan.predicted = predictable.then(|| predict(c, go));
    for (number, want) in go.retransmit.iter().zip(request.wants().filter(|w| w.retransmit)) {
        plan.push(HeadKind::Retransmission, number, true, Some(want));
    }
    let mut fresh = request.wants().filter(|w| !w.retransmit && go.data);
    for number in go.new.iter() {
        plan.push(HeadKind::New, number, go.prime, fresh.next());
    }
    if go.group.count > 0 {
        plan.push(HeadKind::Group { count: go.group.count }, go.group.first, true, None);
    }
    if !go.data {
        plan.heads.iter_mut().for_each(|head| head.room = 0);
    }
    Ok(if plan.heads.is_empty() { Verdict::Terminate } else { Verdict::Respond(plan) })
}

/// The continuation that a client expects of an answer, before number and the fields that a difference carries.
pub(crate) fn predict(c: &TransportContinuation, go: &Go) -> TransportContinuation {
    let piece = go.piece.unwrap_or(piece_of(c));
    with_piece(&TransportContinuation { base: go.base, first: false, ..*c }, piece)
}

fn with_piece(c: &TransportContinuation, piece: Piece) -> TransportContinuation {
    TransportContinuation {
        tcp_base: piece.tcp_base,
        start_cwnd: piece.start_cwnd,
        ssthresh: piece.ssthresh,
        gain: piece.gain,
        ..*c
    }
}

fn new_generation<'a>(
    context: &Context<'_, 'a>,
    request: Request<'a>,
    c: &TransportContinuation,
    fresh: &Fresh,
    key: &MacKey,
) -> Result<Verdict<'a>, Refusal> {
    // One next generation, from whichever continuation; from one that is too old for anything else another in each slot of time, since
    // the memory has forgotten by then which of its numbers were issued.
    let slot = if context.is_fresh(c.time) { 0 } else { 1 + (context.now >> SLOT_SHIFT) };
    let (tag, first) = opening::next_generation(key, c, fresh.rekey, slot);
    // The wire space goes on behind the window that the old generation could have filled.
    let answered = answered_before(c);
    let end = c.wire_sequence(answered.wrapping_add(1 + piece_of(c).cwnd(answered)));
    let next = TransportContinuation {
        tag,
        number: first,
        base: first,
        nonce_epoch: if fresh.rekey { context.nonce_epoch } else { c.nonce_epoch },
        generation: c.generation.wrapping_add(1),
        tcp_base: first.wrapping_sub(1),
        start_cwnd: fresh.start_cwnd,
        ssthresh: fresh.ssthresh,
        gain: 0,
        wire_base: end.wrapping_sub(first.wrapping_mul(u32::from(c.mss))),
        ..context.restamp(c)
    };
    // A generation whose nonce epoch is withdrawn opens in the usable one (RESTART).
    let next = match context.keys.nonce(next.nonce_epoch) {
        Some(_) => next,
        None => TransportContinuation { nonce_epoch: context.nonce_epoch, ..next },
    };
    if context.keys.nonce(next.nonce_epoch).is_none() {
        return Err(Refusal::NonceEpoch);
    }
    let rekey_wanted = is_newer(context.nonce_epoch, next.nonce_epoch);
    let next = TransportContinuation { first: fresh.prime, rekey_wanted, ..next };
    let mut plan = context.plan(Some(request), next);
    push_window(&mut plan, &request, first, fresh.count, fresh.prime, fresh.data);
    Ok(Verdict::Respond(plan))
}

/// The first window of a generation or connection. When it is asked for again, its last number comes alone, under K' and without
/// data, as by a PROBE: the others are lost, and their nonces stay hidden.
fn push_window(plan: &mut Plan<'_>, request: &Request<'_>, first: u32, count: u32, prime: bool, data: bool) {
    let again = request.attempt > 0;
    let data = data && !again;
    let wants: ArrayVec<Want, 16> = request.wants().filter(|w| !w.retransmit && data).collect();
    for i in if again { count - 1 } else { 0 }..count {
        plan.push(HeadKind::New, first.wrapping_add(i), prime || again, wants.get(i as usize).copied());
    }
    if !data {
        plan.heads.iter_mut().for_each(|head| head.room = 0);
    }
}

fn close<'a>(context: &Context<'_, 'a>, request: Request<'a>, c: &TransportContinuation) -> Plan<'a> {
    let mut plan = context.plan(Some(request), context.restamp(c));
    plan.fin = true;
    plan.push(HeadKind::Farewell, c.number, false, None);
    plan
}

/// A window of which nothing was used is given back: the answer has a token for it, no continuation, and the generation is over.
fn retire<'a>(
    context: &Context<'_, 'a>,
    request: Request<'a>,
    c: &TransportContinuation,
    fresh: &Fresh,
    known: Known,
) -> Plan<'a> {
    let window = piece_of(c).cwnd(answered_before(c));
    let mut plan = context.plan(Some(request), context.restamp(c));
    if known.remembers && window >= retired::LEAST {
        // It ages from when it was last used: the client may have kept it for as long as the continuation is fresh.
        let retired =
            Retired { time: c.time, tag: c.tag, window: window as u16, ssthresh: fresh.ssthresh, mss: c.mss };
        plan.given = retired.seal(context.keys, context.seal_epoch, context.segment.src.ip());
    }
    plan.push(HeadKind::Farewell, c.number, false, None);
    plan
}

/// The slot of a connection: what both sides can take.
fn slot(context: &Context<'_, '_>) -> u16 {
    let client = context.segment.syn_options.map_or(536, |o| o.mss).saturating_sub(OPTION);
    client.min(context.policy.payload).clamp(*SLOT.start(), *SLOT.end())
}

/// The first continuation of a connection, and its ISN.
fn opening_continuation(
    context: &Context<'_, '_>,
    client_isn: u32,
    mss: u16,
    by: OpenedBy<'_>,
    seed: Option<Seed>,
) -> Result<(TransportContinuation, u32), Refusal> {
    let nonces = context.keys.nonce(context.nonce_epoch).ok_or(Refusal::NonceEpoch)?;
    context.keys.seal(context.seal_epoch).ok_or(Refusal::SealEpoch)?;
    let o = opening::open_connection(nonces, context.segment.src, context.segment.dst, client_isn, by);
    let split = by != OpenedBy::Syn;
    let stamped = context.restamp(&TransportContinuation::default());
    let next = TransportContinuation {
        tag: o.tag,
        number: o.first,
        base: o.first,
        nonce_epoch: context.nonce_epoch,
        // Split at once, the window stands before the first number; else the first number's request splits.
        tcp_base: if split { o.first.wrapping_sub(1) } else { o.first },
        start_cwnd: INITIAL_WINDOW,
        ssthresh: seed.map_or(INITIAL_SSTHRESH, |seed| seed.ssthresh),
        gain: seed.map_or(0, |seed| seed.gain),
        wire_base: o.isn.wrapping_add(1).wrapping_sub(o.first.wrapping_mul(u32::from(mss))),
        mss,
        connection: u64::from(o.tag) << 32 | u64::from(o.first),
        rekey_wanted: false,
        ..stamped
    };
    Ok((next, o.isn))
}

/// RTT 1: one response no larger than the SYN, or, with a good address token, the initial window at once; where the token has a window, their
/// requests bring that back.
fn syn<'a>(context: &Context<'_, 'a>, request: Request<'a>, known: Known) -> Result<Verdict<'a>, Refusal> {
    let segment = context.segment;
    let token = request.token.filter(|token| {
        !known.token_spent && opening::proves_address(context.keys, context.now, segment.src.ip(), token)
    });
    let mss = slot(context);
    let retired = token.and_then(Retired::read).filter(|_| known.remembers);
    let seed = retired.and_then(|(_, retired)| retired.seed(context.now, context.policy.horizon, mss));
    let by = match (token, seed) {
        (_, Some(seed)) => OpenedBy::Window(seed.tag),
        (Some(token), None) => OpenedBy::Token(token),
        (None, None) => OpenedBy::Syn,
    };
    let (next, isn) = opening_continuation(context, segment.seq, mss, by, seed)?;
    let mut plan = context.plan(Some(request), next);
    plan.syn = Some(isn);
    plan.spent = token;
    plan.seeded = seed.is_some();
    plan.tells_address = true;
    if token.is_none() {
        plan.largest = segment.payload.len().min(plan.largest);
    }
    let wants: ArrayVec<Want, 16> = request.wants().filter(|w| !w.retransmit).collect();
    for i in 0..if token.is_some() { u32::from(INITIAL_WINDOW) } else { 1 } {
        plan.push(HeadKind::New, next.number.wrapping_add(i), false, wants.get(i as usize).copied());
    }
    if plan.heads.iter().any(|head| head.overhead > plan.largest) {
        return Err(Refusal::TooSmall);
    }
    Ok(Verdict::Respond(plan))
}

/// A SYN without payload is answered by one without payload, whose ISN is the cookie.
fn bare_syn<'a>(context: &Context<'_, 'a>) -> Result<Verdict<'a>, Refusal> {
    let (next, isn) =
        opening_continuation(context, context.segment.seq, slot(context), OpenedBy::Cookie, None)?;
    let mut plan = context.plan(None, next);
    plan.syn = Some(isn);
    plan.largest = 0;
    plan.push(HeadKind::Cookie, 0, false, None);
    Ok(Verdict::Respond(plan))
}

fn restart<'a>(
    context: &Context<'_, 'a>,
    request: Request<'a>,
    sealed: &SealedContinuation,
) -> Result<Verdict<'a>, Refusal> {
    let (segment, c) = (context.segment, &sealed.fields);
    if completes_a_cookie(sealed) {
        return complete(context, request, c.mss);
    }
    let seal = context.keys.seal(c.seal_epoch).ok_or(Refusal::SealEpoch)?;
    let sealed_for = request.former.unwrap_or(segment.src);
    if !is_genuine(seal, sealed, sealed_for) {
        return Err(Refusal::Forged);
    }
    if sealed_for != segment.src && !is_challenge_answered(context, &request, c) {
        // RFC 9000 section 8: no more bytes than came to an address that is not validated.
        let mut plan = context.plan(Some(request), context.restamp(c));
        plan.largest = segment.payload.len();
        plan.push(HeadKind::Challenge, c.number, true, None);
        return Ok(Verdict::Respond(plan));
    }
    let Decision::Fresh(fresh) = decide(RequestClass::Restart, c, 1, std::iter::empty())? else {
        return Ok(Verdict::Terminate);
    };
    debug_assert_eq!(fresh.start_cwnd, LOSS_WINDOW);
    let key = context.keys.nonce(c.nonce_epoch).map_or(&seal.generation, |nonces| &nonces.opening);
    let mut verdict = new_generation(context, request, c, &fresh, key)?;
    if let Verdict::Respond(plan) = &mut verdict {
        plan.largest = plan.largest.min(segment.payload.len());
        // Its address is another one now, or it did not know which.
        plan.tells_address = request.former.is_some();
    }
    Ok(verdict)
}

fn is_challenge_answered(
    context: &Context<'_, '_>,
    request: &Request<'_>,
    c: &TransportContinuation,
) -> bool {
    request.token.is_some_and(|token| {
        let (horizon, client) = (context.policy.horizon, context.segment.src);
        opening::answers_challenge(context.keys, context.now, horizon, client, c.connection, token)
    })
}

/// A RESTART whose continuation is all zero except for mss answers the cookie of a bare SYN.
fn completes_a_cookie(sealed: &SealedContinuation) -> bool {
    let blank = TransportContinuation { mss: sealed.fields.mss, ..TransportContinuation::default() };
    sealed.fields == blank && sealed.mac == [0; 12]
}

fn complete<'a>(context: &Context<'_, 'a>, request: Request<'a>, mss: u16) -> Result<Verdict<'a>, Refusal> {
    let segment = context.segment;
    let client_isn = segment.seq.wrapping_sub(1);
    let mss = mss.min(context.policy.payload).clamp(*SLOT.start(), *SLOT.end());
    // The SYN may have been answered in the epoch before.
    let (next, isn) = opening_continuation(context, client_isn, mss, OpenedBy::Cookie, None)?;
    if segment.ack.wrapping_sub(1) != isn {
        return Err(Refusal::Cookie);
    }
    let mut plan = context.plan(Some(request), next);
    plan.tells_address = true;
    push_window(&mut plan, &request, next.number, u32::from(INITIAL_WINDOW), false, true);
    Ok(Verdict::Respond(plan))
}
