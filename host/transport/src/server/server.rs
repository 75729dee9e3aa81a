//! The step with its soft states around it. Each can be left out, and dropped at any time.

use rivulet_packet::{RequestClass, Segment, TransportContinuation};

use super::cache::MinisocketCache;
use super::plan::{Plan, Sent};
use super::refusal::Refusal;
use super::replay::{LeftBy, ReplayKey, ReplayMemory, Use};
use super::reply::{Reply, RespondError};
use super::step::{Known, Policy, Verdict, step_knowing};
use crate::keys::KeyRing;
use crate::retired::Retired;
use crate::time::Time;
use crate::verdict::answered_before;

/// A server without connections: policy, and the soft states that it may have.
#[derive(Debug, Default)]
pub struct Server {
    /// What the service allows.
    pub policy: Policy,
    /// The replay defence. A ToR has one too, which is common to all replicas; what that could not judge, this one does.
    /// None: for a test.
    pub replay: Option<ReplayMemory>,
    /// The minisocket cache, if memory is to be spent on it.
    pub cache: Option<MinisocketCache>,
}

impl Server {
    /// A server with this policy and no soft state.
    pub fn new(policy: Policy) -> Self {
        Self { policy, ..Self::default() }
    }

    /// Judges a segment whose checksums were verified; see [`super::step()`].
    ///
    /// # Errors
    /// [`Refusal`]: the packet is to be dropped, unanswered.
    pub fn accept<'a>(
        &mut self,
        segment: &Segment<'a>,
        keys: &KeyRing,
        now: Time,
    ) -> Result<Verdict<'a>, Refusal> {
        let remembers = self.replay.as_mut().is_some_and(|memory| memory.is_whole(now));
        let mut known = Known { remembers, ..Known::default() };
        if let Some(cache) = &mut self.cache
            && let Ok(request) = segment.request()
            && let Some(sealed) = request.continuation.filter(|_| request.class != RequestClass::Restart)
        {
            // A key that is gone makes nothing genuine any more.
            known.genuine =
                cache.knows(&sealed, segment.src) && keys.seal(sealed.fields.seal_epoch).is_some();
        }
        let verdict = step_knowing(segment, keys, now, &self.policy, known)?;
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
                // A window that is not remembered could be moved twice.
                Use::Forgotten if plan.moves_window() => known.remembers = false,
                Use::Forgotten => continue,
                // The token was used: the SYN is answered as one without.
                Use::Spent if plan.spent().is_some() => known.token_spent = true,
                Use::Spent => return Err(Refusal::Replayed),
            }
            return step_knowing(segment, keys, now, &self.policy, known);
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
                    return step_knowing(segment, keys, now, &self.policy, known);
                }
            }
            _ => {}
        }
        Ok(verdict)
    }

    /// Builds a response and remembers its continuation; see [`Plan::respond`].
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

/// Whether a request comes too late for its generation. One window stays one window: who left it for another by TIMEOUT, RESTART or REKEY
/// has no use of what is still unused of it, and of the three that may follow a generation only one does: what a TIMEOUT or RESTART opens, what
/// a REKEY opens, or another connection with the window that was given back.
fn is_over(class: RequestClass, retires: bool, left: Option<LeftBy>) -> bool {
    match class {
        RequestClass::Normal | RequestClass::Probe => left.is_some(),
        RequestClass::Timeout | RequestClass::Restart => left.is_some_and(|by| by != LeftBy::Timeout),
        RequestClass::Rekey if retires => left.is_some_and(|by| by != LeftBy::Retirement),
        RequestClass::Rekey => left.is_some_and(|by| by != LeftBy::Rekey),
        RequestClass::Syn | RequestClass::Close => false,
    }
}

/// Whether a number of the window that a REKEY hands over was answered already. Its size was paid for, number by number, and the REKEY of a
/// generation is looked at so closely once an attempt.
fn is_begun(memory: &mut ReplayMemory, c: &TransportContinuation, now: Time) -> bool {
    let before = answered_before(c);
    (1..=c.number.wrapping_sub(before)).any(|i| {
        let number = before.wrapping_add(i);
        memory.knows(ReplayKey { class: RequestClass::Normal, attempt: 0, tag: c.tag, number }, now)
    })
}

/// The uses that a plan makes. A delayed acknowledgement uses two numbers.
fn replay_keys(plan: &Plan<'_>, segment: &Segment<'_>) -> [Option<ReplayKey>; 2] {
    let Some(request) = plan.request().filter(|_| !plan.challenges()) else { return [None; 2] };
    let attempt = request.attempt;
    let key = |class, tag, number| Some(ReplayKey { class, attempt, tag, number });
    if let Some((_, retired)) = plan.spent().and_then(Retired::read) {
        // One use of the window, whichever of the tokens for it is presented. No SYN has an attempt.
        return [Some(ReplayKey { class: RequestClass::Syn, attempt: 1, tag: retired.tag, number: 0 }), None];
    }
    if let Some(token) = plan.spent() {
        // The token's MAC is as good as random.
        let digest = digest(token);
        return [key(RequestClass::Syn, (digest >> 32) as u32, digest as u32), None];
    }
    let Some(c) = plan.presented() else { return [None; 2] };
    match request.class {
        // It would issue the same numbers again.
        RequestClass::Restart if plan.completes() => [key(RequestClass::Syn, segment.ack, segment.seq), None],
        // What opens the next generation, from whichever continuation.
        class @ (RequestClass::Restart | RequestClass::Timeout | RequestClass::Rekey) => {
            [key(class, c.tag, 0), None]
        }
        class if request.covers == 2 => {
            [key(class, c.tag, c.number), key(class, c.tag, c.number.wrapping_sub(1))]
        }
        class => [key(class, c.tag, c.number), None],
    }
}
