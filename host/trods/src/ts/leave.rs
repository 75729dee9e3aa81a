//! Moves the named connections of a replica that is being drained (`docs/moves.md`). With a store
//! they are recorded, and move by their records. Without one, this replica mutes them and announces
//! the adopter, which probes the client as after a death.
//!
//! The connections of a process that died on this host a moment ago move in the same way: the other
//! replicas may not know the last ones, and a client that only receives sends nothing by itself.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rivulet_bpf::trods::{FlowKey, Phase, Pin, Stamped};

use super::hints::Hint;
use super::{Names, hint, read, reading};
use crate::hold::{AT_A_TIME, HoldError, Keeper, Rounds, Watch, now_ms};

/// Number of connections that are recorded at a time, because the store has other work as well.
const AT_ONCE: usize = 256;
/// First interval at which a hint is repeated until an adopter announces the connection. It grows
/// to an eighth of the elapsed time, up to the limit below.
const AGAIN: Duration = Duration::from_millis(20);
const GIVE_UP: Duration = Duration::from_secs(60);

/// Services with named connections that move, and the adopter of each.
pub struct LeaveNamed {
    /// Services with connections that move.
    pub services: Vec<SocketAddr>,
    /// Whether all connections move (services without a store). If not, only those of the former
    /// process do.
    pub drains: bool,
    /// The adopter of a connection, given its client and service.
    pub to: Box<dyn Fn(SocketAddr, SocketAddr) -> Option<Pin> + Send>,
}

impl std::fmt::Debug for LeaveNamed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LeaveNamed({:?}, {})", self.services, self.drains)
    }
}

/// Connections that are still to move, or have moved.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    leaves: Vec<LeaveNamed>,
    /// The schedule of the moves, while there are any.
    rounds: Option<Rounds>,
    again_at: Option<Instant>,
    left: HashMap<FlowKey, Left>,
    moved: u64,
    /// Number of movable connections at the last count.
    pub movable: u64,
}

#[derive(Debug)]
struct Left {
    hint: Hint,
    /// The adopter; `None`: unknown, because it is unknown to which replica the ToR sends the
    /// client's segments.
    to: Option<Pin>,
    since: Instant,
    again_at: Instant,
}

impl Leaving {
    /// The adopter of a connection that moves.
    fn heir(&self, key: &FlowKey) -> Option<Pin> {
        let leave = self.leaves.iter().find(|leave| leave.services.contains(&key.service()))?;
        (leave.to)(key.client(), key.service())
    }
}

/// Whether timestamps name the connection, or will, so that another replica can resume it.
pub(super) fn is_movable(stamped: &Stamped) -> bool {
    matches!(stamped.phase, Phase::Asked | Phase::Named | Phase::Echoed)
}

impl Names {
    /// Sets the services with connections that move from now on.
    pub fn set_leaves(&mut self, leaves: Vec<LeaveNamed>, now: Instant) {
        let leaving = &mut self.leaving;
        let rounds = leaving.rounds.take().unwrap_or_else(|| Rounds::begin(now));
        leaving.rounds = leaves.iter().any(|leave| leave.drains).then_some(rounds);
        leaving.leaves = leaves;
    }

    /// Number of connections that moved; and of those that still have to move or have no adopter
    /// yet.
    pub fn moves(&self) -> (u64, u64) {
        (self.leaving.moved, self.leaving.movable + self.leaving.left.len() as u64)
    }

    /// Moves the connections of a process that died on this host; their sockets are closed.
    pub fn leave_formers(&mut self, formers: Vec<(FlowKey, Stamped)>, now: Instant) {
        for (key, stamped) in formers.into_iter().filter(|(_, stamped)| is_movable(stamped)) {
            self.leaving.left.insert(key, Left { hint: hint(&stamped), to: None, since: now, again_at: now });
        }
    }

    /// Moves the next few connections.
    pub(super) fn leave<K: Keeper>(&mut self, now: Instant, watch: &mut Watch<K>) -> Result<(), HoldError> {
        if !self.leaving.left.is_empty() && self.leaving.again_at.is_none_or(|at| at <= now) {
            self.leaving.again_at = Some(now + AGAIN);
            self.leave_again(now, watch)?;
        }
        let Leaving { leaves, rounds: Some(rounds), movable, .. } = &mut self.leaving else { return Ok(()) };
        let keys = rounds.step(now, || {
            let mut keys = Vec::new();
            *movable = 0;
            watch.hold().programs().stamps().each(|key, stamped| {
                *movable += u64::from(is_movable(&stamped));
                let is_its = |leave: &LeaveNamed| leave.drains && leave.services.contains(&key.service());
                let is_left = || leaves.iter().any(is_its);
                if stamped.phase == Phase::Echoed && is_left() {
                    keys.push(key);
                }
            });
            keys
        });
        let (mut room, is_early) = (AT_A_TIME, rounds.is_early(now));
        for key in keys {
            if room == 0 {
                self.leaving.rounds.iter_mut().for_each(|rounds| rounds.put_back(key));
                continue;
            }
            let programs = watch.hold().programs();
            // Read again: the state may have changed since the list of connections was made.
            let stamped = programs.stamps().get(&key)?.filter(|stamped| stamped.phase == Phase::Echoed);
            let Some(stamped) = stamped else { continue };
            let is_under_way = stamped.limits.acked.wrapping_sub(stamped.isn.wrapping_add(1)) < stamped.total;
            if (is_under_way && is_early) || !watch.may_send(&key.service()) {
                continue;
            }
            let Some(to) = self.leaving.heir(&key) else { continue };
            room -= 1;
            // The connection is muted before the hint is sent.
            self.leave_to(&key, to, watch)?;
            tracing::debug!(client = %key.client(), holder = to.holder, "left");
            let hint = hint(&stamped);
            self.hints.tell(key, Hint { left_to: Some(to.holder), ..hint });
            self.leaving.left.insert(key, Left { hint, to: Some(to), since: now, again_at: now + AGAIN });
            self.leaving.moved += 1;
            // The connection now counts in `left`; without this it would count twice.
            self.leaving.movable = self.leaving.movable.saturating_sub(1);
        }
        Ok(())
    }

    /// Repeats the hints of connections without an adopter. If the expected adopter has died,
    /// another replica, or this one, is expected instead.
    fn leave_again<K: Keeper>(&mut self, now: Instant, watch: &mut Watch<K>) -> Result<(), HoldError> {
        let programs = watch.hold().programs();
        let keys: Vec<FlowKey> = self.leaving.left.keys().copied().collect();
        for key in keys {
            let left = &self.leaving.left[&key];
            if left.again_at > now {
                continue;
            }
            let is_gone_on = self.hints.holder(&key).is_some_and(|(_, hint)| hint.is_after(&left.hint));
            let is_another = programs.stamps().get(&key)?.is_some();
            if is_gone_on || is_another || now >= left.since + GIVE_UP {
                self.leaving.left.remove(&key);
                continue;
            }
            let Left { hint, to: before, since, .. } = *left;
            let Some(to) = self.leaving.heir(&key) else {
                // A replica that may not send does not get the client's segments.
                if watch.may_send(&key.service()) {
                    self.lost.look_for(key, Some(hint), None, now, programs)?;
                    self.leaving.left.remove(&key);
                }
                continue;
            };
            if before != Some(to) {
                programs.pin(&key, to)?;
            }
            let again_at = now + AGAIN.max(now.saturating_duration_since(since) / 8);
            self.leaving.left.insert(key, Left { hint, to: Some(to), since, again_at });
            self.hints.tell(key, Hint { left_to: Some(to.holder), ..hint });
        }
        Ok(())
    }

    /// Passes the connections of these services to the watch, which stores records of them, if the
    /// client has acknowledged at least its response's head. Other clients acknowledge theirs a
    /// moment later.
    pub fn record<K: Keeper>(&self, services: &[SocketAddr], watch: &mut Watch<K>) -> Result<(), HoldError> {
        let mut keys = Vec::new();
        watch.hold().programs().stamps().each(|key, stamped| {
            if stamped.phase == Phase::Echoed && services.contains(&key.service()) {
                keys.push(key);
            }
        });
        let mut room = AT_ONCE;
        for key in keys {
            if room == 0 {
                break;
            }
            let programs = watch.hold().programs();
            // Read again: the state may have changed since the list of connections was made.
            let stamped = programs.stamps().get(&key)?.filter(|stamped| stamped.phase == Phase::Echoed);
            let Some(stamped) = stamped else { continue };
            let record = reading(&self.services, &self.at, &key)
                .and_then(|with| read::named(&key, &stamped, stamped.limits.acked, with, now_ms()));
            if let Some(record) = record {
                watch.record(&record, &stamped)?;
                room -= 1;
            }
        }
        Ok(())
    }
}
