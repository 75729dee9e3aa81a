//! The step together with its soft states, each optional and safe to drop at any time.

use rivulet_packet::{RequestClass, Segment, TransportContinuation};

use super::cache::MinisocketCache;
use super::plan::Verdict;
use super::plan::{Plan, Sent};
use super::policy::Policy;
use super::refusal::Refusal;
use super::replay::{LeftBy, ReplayKey, ReplayMemory, Use};
use super::reply::{Reply, RespondError};
use super::step::{SoftStateFacts, step_with_facts};
use crate::keys::KeyRing;
use crate::retired::Retired;
use crate::time::Time;
use crate::verdict::answered_before;

/// A server without connection state: the policy and its optional soft states.
#[derive(Debug, Default)]
pub struct Server {
    /// What the service allows.
    pub policy: Policy,
    /// The replay defence. The ToR has one for all replicas; this one covers what the ToR could not
    /// judge. `None` is for tests only.
    pub replay: Option<ReplayMemory>,
    /// The minisocket cache, if memory is spent on it.
    pub cache: Option<MinisocketCache>,
}

impl Server {
    /// A server with this policy and no soft state.
    pub fn new(policy: Policy) -> Self {
        Self { policy, ..Self::default() }
    }

    /// Judges a segment with verified checksums; see [`super::step()`].
    ///
    /// # Errors
    /// [`Refusal`]: drop the packet without an answer.
    pub fn accept<'a>(
        &mut self,
        segment: &Segment<'a>,
        keys: &KeyRing,
        now: Time,
    ) -> Result<Verdict<'a>, Refusal> {
        let remembers = self.replay.as_mut().is_some_and(|memory| memory.is_whole(now));
        let mut known = SoftStateFacts { remembers, ..SoftStateFacts::default() };
        if let Some(cache) = &mut self.cache
            && let Ok(request) = segment.request()
            && let Some(sealed) = request.continuation.filter(|_| request.class != RequestClass::Restart)
        {
            // Cached continuations sealed under a withdrawn key are no longer valid.
            known.genuine =
                cache.contains(&sealed, segment.src) && keys.seal(sealed.fields.seal_epoch).is_some();
        }
        let verdict = step_with_facts(segment, keys, now, &self.policy, known)?;
        let Verdict::Respond(plan) = &verdict else { return Ok(verdict) };
        let Some(memory) = &mut self.replay else { return Ok(verdict) };
        let leaves = plan.request().filter(|_| !plan.challenges() && !plan.completes());
        let leaves = leaves.and_then(|r| Some((r.class, plan.presented()?.tag)));
        if let Some((class, tag)) = leaves
            && is_over(class, plan.retires(), memory.left(tag, now))
        {
            return Err(Refusal::Replayed);
        }
        for key in replay_keys(plan, segment).into_iter().flatten() {
            match memory.take(key, now) {
                Use::First => continue,
                // A window whose move cannot be remembered could be moved twice.
                Use::Forgotten if plan.moves_window() => known.remembers = false,
                Use::Forgotten => continue,
                // The token was used before: answer the SYN as one without a token.
                Use::Spent if plan.spent().is_some() => known.token_spent = true,
                Use::Spent => return Err(Refusal::Replayed),
            }
            return step_with_facts(segment, keys, now, &self.policy, known);
        }
        if plan.class() == Some(RequestClass::Rekey)
            && plan.presented().is_some_and(|c| is_begun(memory, c, now))
        {
            return Err(Refusal::Replayed);
        }
        match leaves {
            Some((RequestClass::Timeout | RequestClass::Restart, tag)) => {
                memory.leave(tag, LeftBy::Timeout, now);
            }
            Some((RequestClass::Rekey, tag)) => {
                let by = if plan.retires() { LeftBy::Retirement } else { LeftBy::Rekey };
                if !memory.leave(tag, by, now) && plan.moves_window() {
                    known.remembers = false;
                    return step_with_facts(segment, keys, now, &self.policy, known);
                }
            }
            _ => {}
        }
        Ok(verdict)
    }

    /// Builds a response and caches its continuation; see [`Plan::respond`].
    ///
    /// # Errors
    /// [`RespondError`].
    pub fn respond(
        &mut self,
        plan: &Plan<'_>,
        index: usize,
        reply: &Reply<'_>,
        keys: &KeyRing,
        packet: &mut [u8],
    ) -> Result<Sent, RespondError> {
        let sent = plan.respond(index, reply, keys, packet)?;
        if let (Some(cache), Some(sealed)) = (&mut self.cache, &sent.sealed) {
            cache.insert(sealed, plan.client());
        }
        Ok(sent)
    }
}

fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

/// Whether a request is too late for its generation. A window may have only one successor, or it
/// would exist twice. After a TIMEOUT, RESTART or REKEY the unused rest of the old window is void.
/// Of three possible successors only one is valid: the generation opened by a TIMEOUT or RESTART,
/// the one opened by a REKEY, or the connection that received the returned window.
fn is_over(class: RequestClass, retires: bool, left: Option<LeftBy>) -> bool {
    match class {
        RequestClass::Normal | RequestClass::Probe => left.is_some(),
        RequestClass::Timeout | RequestClass::Restart => left.is_some_and(|by| by != LeftBy::Timeout),
        RequestClass::Rekey if retires => left.is_some_and(|by| by != LeftBy::Retirement),
        RequestClass::Rekey => left.is_some_and(|by| by != LeftBy::Rekey),
        RequestClass::Syn | RequestClass::Close => false,
    }
}

/// Whether any number of the window that a REKEY hands over was answered already. The loop is
/// bounded: the client earned the window number by number, and each attempt of a REKEY is checked
/// only once.
fn is_begun(memory: &mut ReplayMemory, c: &TransportContinuation, now: Time) -> bool {
    let before = answered_before(c);
    (1..=c.number.wrapping_sub(before)).any(|i| {
        let number = before.wrapping_add(i);
        memory.contains(ReplayKey { class: RequestClass::Normal, attempt: 0, tag: c.tag, number }, now)
    })
}

/// The uses that a plan makes of the replay memory. A delayed acknowledgement makes two.
fn replay_keys(plan: &Plan<'_>, segment: &Segment<'_>) -> [Option<ReplayKey>; 2] {
    let Some(request) = plan.request().filter(|_| !plan.challenges()) else { return [None; 2] };
    let attempt = request.attempt;
    let key = |class, tag, number| Some(ReplayKey { class, attempt, tag, number });
    if let Some((_, retired)) = plan.spent().and_then(Retired::read) {
        // The window is used once, whichever of its tokens is presented. The attempt of a SYN is
        // always 0, so 1 is free for this.
        return [Some(ReplayKey { class: RequestClass::Syn, attempt: 1, tag: retired.tag, number: 0 }), None];
    }
    if let Some(token) = plan.spent() {
        // The token ends in a MAC, so a digest spreads well.
        let digest = digest(token);
        return [key(RequestClass::Syn, (digest >> 32) as u32, digest as u32), None];
    }
    let Some(c) = plan.presented() else { return [None; 2] };
    match request.class {
        // A second completion would issue the same numbers again.
        RequestClass::Restart if plan.completes() => [key(RequestClass::Syn, segment.ack, segment.seq), None],
        // These open the next generation, whichever continuation they present.
        class @ (RequestClass::Restart | RequestClass::Timeout | RequestClass::Rekey) => {
            [key(class, c.tag, 0), None]
        }
        class if request.covers == 2 => {
            [key(class, c.tag, c.number), key(class, c.tag, c.number.wrapping_sub(1))]
        }
        class => [key(class, c.tag, c.number), None],
    }
}
