//! The server step: computes a verdict from the request, the keys and the time. It is pure and
//! bounded, allocates nothing and stores nothing.

use arrayvec::ArrayVec;
use rivulet_packet::{Ecn, Request, RequestClass, SealedContinuation, Segment, TransportContinuation, Want};

use super::clock;
use super::plan::{HeadKind, Plan, Verdict};
use super::policy::Policy;
use super::refusal::Refusal;
use crate::cwnd::Piece;
use crate::keys::{KeyRing, MacKey};
use crate::nonces::sums_are_right;
use crate::opening::{self, OpenedBy};
use crate::retired::{self, Retired, Seed};
use crate::seal::is_genuine;
use crate::time::{CLOCK_MASK, Time, stamp_age};
use crate::verdict::{
    Decision, Fresh, Go, INITIAL_SSTHRESH, INITIAL_WINDOW, LOSS_WINDOW, answered_before, decide, opens,
    piece_of,
};

/// Smallest and largest slot that a SYN can ask for, in bytes of TCP payload.
const SLOT: core::ops::RangeInclusive<u16> = 300..=8952;
/// Windows below this many packets are not reduced because of a queue at the server: half of it is
/// the least with which a loss is recovered without a timeout.
const LEAST_MARKED: u32 = 6;
/// log2 of the slot length in microseconds (4.19 s, as in the ToR's memory). RESTARTs of stale
/// continuations within one slot open the same generation.
const SLOT_SHIFT: u32 = 22;
/// Bytes of TCP options that the MSS does not account for: it assumes a TCP header of 20.
const OPTION: u16 = 8;

/// Facts about a request that the rest of the step needs.
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

/// Judges the segment. `now` is the common clock; it is used where no trusted ToR stamped the
/// request.
///
/// # Errors
/// [`Refusal`]: drop the packet without an answer.
pub fn step<'a>(
    segment: &Segment<'a>,
    keys: &KeyRing,
    now: Time,
    policy: &Policy,
) -> Result<Verdict<'a>, Refusal> {
    step_with_facts(segment, keys, now, policy, SoftStateFacts::default())
}

/// Facts about the request from soft state outside of the step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SoftStateFacts {
    /// This replica sealed exactly this continuation, so its MAC need not be verified.
    pub genuine: bool,
    /// The address token was used before, so the SYN counts as one without.
    pub token_spent: bool,
    /// The replay memory covers the whole horizon, so a window can be moved. Otherwise a copied
    /// window could not be detected.
    pub remembers: bool,
}

pub(super) fn step_with_facts<'a>(
    segment: &Segment<'a>,
    keys: &KeyRing,
    now: Time,
    policy: &Policy,
    known: SoftStateFacts,
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
        Decision::Go(go) => continue_trickle(&context, &request, c, &go),
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

    /// Whether a stamp of the common clock is within the horizon (section 2.2).
    fn is_fresh(&self, stamp: u64) -> bool {
        let age = stamp_age(self.now, stamp);
        age >= -(self.policy.clock_skew as i64) && age <= self.policy.horizon as i64
    }

    /// A continuation of `c`'s connection, stamped now. Number, base and piece remain those of `c`.
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

    /// Inlined so that the array of heads, which is most of a plan and still empty, is not copied.
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

/// Whether a usable epoch is newer than another (serial number arithmetic, RFC 1982).
fn is_newer(usable: u16, used: u16) -> bool {
    usable != 0 && (usable.wrapping_sub(used) as i16) > 0
}

fn continue_trickle<'a>(
    context: &Context<'_, 'a>,
    request: &Request<'a>,
    c: &TransportContinuation,
    go: &Go,
) -> Result<Verdict<'a>, Refusal> {
    let mut stamped = context.restamp(c);
    let mut piece = go.piece.unwrap_or(piece_of(c));
    stamped.marked |= context.policy.congested && piece.cwnd(c.number) >= LEAST_MARKED;
    let srtt = clock::smoothed(context.now, context.tor_id, request, c);
    // Only the request that opens the first window has one round trip time for all of its numbers.
    let congestion = context.policy.congestion;
    let opened = if opens(c) && piece.gain == 0 { clock::opening(congestion, srtt) } else { 0 };
    piece.gain |= opened;
    stamped.rekey_wanted |= clock::is_rekey_wanted(congestion, &piece, srtt, c.number)?;
    let mut next = with_piece(&TransportContinuation { base: go.base, ..stamped }, piece);
    next.srtt = srtt;
    let mut plan = context.plan(Some(*request), next);
    plan.regenerated = stamped;
    // A client does not know the clock of its window before it gets it.
    let predictable = context.policy.delta && request.class == RequestClass::Normal && opened == 0;
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

/// The continuation that a client predicts, except the number and the fields that a difference
/// carries.
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
    // All continuations of a generation lead to the same next generation. One too old for anything
    // but a RESTART leads to another in each time slot, because the replay memory no longer holds
    // which of its numbers were issued.
    let slot = if context.is_fresh(c.time) { 0 } else { 1 + (context.now >> SLOT_SHIFT) };
    let (tag, first) = opening::next_generation(key, c, fresh.rekey, slot);
    // TCP sequence numbers continue after the window that the old generation could have filled.
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
        gain: clock::opening(context.policy.congestion, c.srtt),
        wire_base: end.wrapping_sub(first.wrapping_mul(u32::from(c.mss))),
        ..context.restamp(c)
    };
    // If the generation's nonce epoch is withdrawn, a RESTART opens the next one in the usable
    // epoch.
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

/// Pushes the first window of a generation or connection. A repeated request gets only the last
/// number, under K' and without data, like a PROBE. The other numbers count as lost, and their
/// nonces are not revealed.
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

/// Answers a REKEY that returns an unused window. The response has a token for the window and no
/// continuation, and the generation is over.
fn retire<'a>(
    context: &Context<'_, 'a>,
    request: Request<'a>,
    c: &TransportContinuation,
    fresh: &Fresh,
    known: SoftStateFacts,
) -> Plan<'a> {
    let window = piece_of(c).cwnd(answered_before(c));
    let mut plan = context.plan(Some(request), context.restamp(c));
    if known.remembers && window >= retired::LEAST {
        // The window ages from its last use: the client may have kept it for as long as the
        // continuation is fresh.
        let retired =
            Retired { time: c.time, tag: c.tag, window: window as u16, ssthresh: fresh.ssthresh, mss: c.mss };
        plan.given = retired.seal(context.keys, context.seal_epoch, context.segment.src.ip());
    }
    plan.push(HeadKind::Farewell, c.number, false, None);
    plan
}

/// The slot of a connection: the largest payload that both sides accept.
fn slot(context: &Context<'_, '_>) -> u16 {
    let client = context.segment.syn_options.map_or(536, |o| o.mss).saturating_sub(OPTION);
    client.min(context.policy.payload).clamp(*SLOT.start(), *SLOT.end())
}

/// Makes the first continuation of a connection, and the ISN.
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
        // With an immediate split the window is issued before the first number; otherwise the
        // request for the first number splits.
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

/// Answers a SYN: one response no larger than the SYN, or with a valid address token the initial
/// window at once. If the token has a window, the requests for the initial window restore it.
fn syn<'a>(
    context: &Context<'_, 'a>,
    request: Request<'a>,
    known: SoftStateFacts,
) -> Result<Verdict<'a>, Refusal> {
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

/// Answers a SYN without payload with a SYN-ACK without payload, whose ISN is the cookie.
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
        // RFC 9000 section 8: an unvalidated address gets no more bytes than arrived from it.
        let mut plan = context.plan(Some(request), context.restamp(c));
        plan.largest = segment.payload.len();
        plan.push(HeadKind::Challenge, c.number, true, None);
        return Ok(Verdict::Respond(plan));
    }
    let Decision::Fresh(fresh) = decide(RequestClass::Restart, c, 1, core::iter::empty())? else {
        return Ok(Verdict::Terminate);
    };
    debug_assert_eq!(fresh.start_cwnd, LOSS_WINDOW);
    let key = context.keys.nonce(c.nonce_epoch).map_or(&seal.generation, |nonces| &nonces.opening);
    let mut verdict = new_generation(context, request, c, &fresh, key)?;
    if let Verdict::Respond(plan) = &mut verdict {
        plan.largest = plan.largest.min(segment.payload.len());
        // The client's address changed, or the client did not know it.
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

/// Answers a RESTART that completes the cookie of a bare SYN; its continuation is all zero except
/// for `mss`.
fn completes_a_cookie(sealed: &SealedContinuation) -> bool {
    let blank = TransportContinuation { mss: sealed.fields.mss, ..TransportContinuation::default() };
    sealed.fields == blank && sealed.mac == [0; 12]
}

fn complete<'a>(context: &Context<'_, 'a>, request: Request<'a>, mss: u16) -> Result<Verdict<'a>, Refusal> {
    let segment = context.segment;
    let client_isn = segment.seq.wrapping_sub(1);
    let mss = mss.min(context.policy.payload).clamp(*SLOT.start(), *SLOT.end());
    // The SYN may have been answered in the previous epoch.
    let (next, isn) = opening_continuation(context, client_isn, mss, OpenedBy::Cookie, None)?;
    if segment.ack.wrapping_sub(1) != isn {
        return Err(Refusal::Cookie);
    }
    let mut plan = context.plan(Some(request), next);
    plan.tells_address = true;
    push_window(&mut plan, &request, next.number, u32::from(INITIAL_WINDOW), false, true);
    Ok(Verdict::Respond(plan))
}
