//! The step with its soft states around it. Each can be left out, and dropped at any time.

use rivulet_packet::{RequestClass, Segment};

use super::cache::MinisocketCache;
use super::plan::{Plan, Sent};
use super::refusal::Refusal;
use super::replay::{ReplayKey, ReplayMemory, Use};
use super::reply::{Reply, RespondError};
use super::step::{Known, Policy, Verdict, step_knowing};
use crate::keys::KeyRing;
use crate::time::Time;

/// A server without connections: policy, and the soft states that it may have.
#[derive(Debug, Default)]
pub struct Server {
    /// What the service allows.
    pub policy: Policy,
    /// The replay defence; None where the ToR has it, or for a test.
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
        let mut known = Known::default();
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
        for key in replay_keys(plan, segment).into_iter().flatten() {
            if memory.take(key, now) != Use::Spent {
                continue;
            }
            if key.class == RequestClass::Syn && plan.class() == Some(RequestClass::Syn) {
                // The token was used: the SYN is answered as one without.
                known.token_spent = true;
                return step_knowing(segment, keys, now, &self.policy, known);
            }
            return Err(Refusal::Replayed);
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

/// The uses that a plan makes. A delayed acknowledgement uses two numbers.
fn replay_keys(plan: &Plan<'_>, segment: &Segment<'_>) -> [Option<ReplayKey>; 2] {
    let Some(request) = plan.request().filter(|_| !plan.challenges()) else { return [None; 2] };
    let key = |class, epoch: u32, tag, number| Some(ReplayKey { class, epoch, tag, number });
    if let Some(token) = plan.spent() {
        // The token's MAC is as good as random.
        let digest = digest(token);
        return [key(RequestClass::Syn, 0, (digest >> 32) as u32, digest as u32), None];
    }
    let Some(c) = plan.presented() else { return [None; 2] };
    let epoch = u32::from(c.nonce_epoch) << 16 | u32::from(c.generation);
    match request.class {
        RequestClass::Restart if plan.completes() => {
            // The completion of a cookie, once: it would issue the same numbers again.
            [key(RequestClass::Syn, 1, segment.ack, segment.seq), None]
        }
        RequestClass::Restart => [key(RequestClass::Restart, epoch, c.tag, 0), None],
        class if request.covers == 2 => {
            [key(class, epoch, c.tag, c.number), key(class, epoch, c.tag, c.number.wrapping_sub(1))]
        }
        class => [key(class, epoch, c.tag, c.number), None],
    }
}
