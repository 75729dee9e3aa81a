//! Evaluates announcements: which replica holds a connection, and which connections dead replicas had.

use std::net::SocketAddr;
use std::time::Instant;

use rivulet_bpf::trods::{FlowKey, Pin, Trods};
use rivulet_plain::Segment;

use super::hints::Hint;
use super::read::is_near;
use super::{HUNT, Names, drop_here, hint};
use crate::hold::{Absence, HoldError, Keeper, Watch};
use crate::lease::clock;
use crate::replica::Gone;

impl Names {
    /// A replica died, or the expected adopter of its connections changed. `is_known`: there is a
    /// record of a connection with a client near these numbers, which takes precedence.
    pub fn depart(
        &mut self,
        service: SocketAddr,
        gone: &Gone,
        is_known: impl Fn(&FlowKey, u32) -> bool,
        programs: &Trods,
    ) -> Result<(), HoldError> {
        let Some(&n) = self.at.get(&service) else { return Ok(()) };
        let Gone { replica: dead, other, waits, .. } = gone;
        let now = Instant::now();
        let had: Vec<_> = self.hints.of(service, *dead).collect();
        tracing::info!(connections = had.len(), replica = dead, "gone");
        for (key, hint) in had {
            let pin = other(key.client(), key.service());
            if programs.stamps().get(&key)?.is_some() || is_known(&key, hint.client_next) {
                continue;
            }
            self.found.remove(&key);
            match pin {
                Some(pin) if *waits || !hint.is_named => programs.pin(&key, pin)?,
                _ if hint.is_named => self.lost.look_for(key, Some(hint), pin, now, programs)?,
                _ => {}
            }
        }
        self.services[n].hunting = clock() + HUNT.as_nanos() as u64;
        self.issue(n, programs)
    }

    /// Pins the connections of other holders that this replica may get, even if this replica still has some of them.
    pub fn yield_to<K: Keeper>(&mut self, absence: &Absence, watch: &mut Watch<K>) -> Result<(), HoldError> {
        let Absence { named, tor, alive, gets, .. } = absence;
        // A dead replica may have announced the connection a moment ago, and does so until its
        // lease ends: the connection is searched for.
        let is_theirs =
            |key: &FlowKey, holder: u8| named.contains(&key.service()) && alive >> (holder & 63) & 1 == 1;
        let theirs: Vec<_> = self.hints.all().filter(|(key, holder, ..)| is_theirs(key, *holder)).collect();
        let theirs = theirs.into_iter().filter(|(key, ..)| gets(key.client(), key.service()));
        for (key, holder, theirs, told) in theirs {
            let own = watch.hold().programs().stamps().get(&key)?;
            // The replica that this one adopted from may not know yet.
            if own.is_some_and(|own| hint(&own).is_after(&theirs)) {
                continue;
            }
            // Its holder was away, maybe since the absence, and announces it again when it may
            // send.
            if self.lost.is_since(&key, told) {
                continue;
            }
            // The adopter has it, or will; it may be this replica.
            let holder = theirs.left_to.unwrap_or(holder);
            if self.own(&key) != Some(holder) {
                self.leave_to(&key, Pin { tor: *tor, holder }, watch)?;
            }
        }
        Ok(())
    }

    /// This replica's number.
    fn own(&self, key: &FlowKey) -> Option<u8> {
        self.at.get(&key.service()).map(|n| self.services[*n].named.peers.own)
    }

    /// Searches for connections that others leave to this replica: probes their clients and adopts
    /// them.
    fn follow<K: Keeper>(&mut self, now: Instant, watch: &mut Watch<K>) -> Result<(), HoldError> {
        for key in self.hints.left() {
            let Some((_, hint)) = self.hints.holder(&key) else { continue };
            let hint = *hint;
            if hint.left_to.is_none() || hint.left_to != self.own(&key) || self.lost.is_probed(&key) {
                continue;
            }
            let programs = watch.hold().programs();
            if let Some(own) = programs.stamps().get(&key)? {
                // This replica has the connection, or had it before the other one did.
                if !hint.is_after(&super::hint(&own)) {
                    continue;
                }
                drop_here(&key, watch)?;
            }
            self.found.remove(&key);
            let programs = watch.hold().programs();
            self.lost.look_for(key, Some(Hint { left_to: None, ..hint }), None, now, programs)?;
        }
        Ok(())
    }

    /// Pins a connection to its holder.
    pub(super) fn leave_to<K: Keeper>(
        &mut self,
        key: &FlowKey,
        pin: Pin,
        watch: &mut Watch<K>,
    ) -> Result<(), HoldError> {
        let programs = watch.hold().programs();
        programs.pin(key, pin)?;
        self.lost.forget(key, programs)?;
        if programs.stamps().get(key)?.is_some() {
            drop_here(key, watch)?;
        }
        Ok(())
    }

    /// Whether a packet is of a connection that a live replica holds.
    pub(super) fn is_others(&self, key: &FlowKey, packet: &[u8]) -> bool {
        let Some((_, hint)) = self.hints.holder(key).filter(|_| !self.lost.has(key)) else { return false };
        // Otherwise the packet is of the next connection between these ports.
        Segment::parse(packet).is_ok_and(|segment| is_near(segment.header.seq, hint.client_next))
    }

    /// Reads announcements. Connections that others have adopted are no longer searched for, and
    /// are dropped if this replica had them: the choice of the ToR may have changed meanwhile, and
    /// two replicas would have the connection.
    pub(crate) fn hear<K: Keeper>(&mut self, now: Instant, watch: &mut Watch<K>) -> Result<(), HoldError> {
        self.hints.hear(now);
        for key in self.hints.moved() {
            let own = watch.hold().programs().stamps().get(&key)?.map(|own| hint(&own));
            let tor = self.at.get(&key.service()).map(|n| self.services[*n].named.tor);
            let (Some((holder, theirs)), Some(tor)) = (self.hints.holder(&key), tor) else { continue };
            let holder = theirs.left_to.unwrap_or(holder);
            let is_behind = own.is_some_and(|own| theirs.is_after(&own)) || self.lost.is_behind(&key, theirs);
            if is_behind && self.own(&key) != Some(holder) {
                self.leave_to(&key, Pin { tor, holder }, watch)?;
            }
        }
        self.follow(now, watch)
    }
}
