//! Evaluates hints: which replica holds a connection, and which connections dead replicas had.

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
    /// Searches for a dead replica's announced connections, or changes their expected adopter.
    /// `is_known`: a connection with a client near these numbers has a record, which takes
    /// precedence.
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

    /// Pins the connections of other holders if their segments may reach this replica, even if this
    /// replica still has some of them.
    pub fn yield_to<K: Keeper>(&mut self, absence: &Absence, watch: &mut Watch<K>) -> Result<(), HoldError> {
        let Absence { named, tor, alive, gets, .. } = absence;
        // A replica that just died announced the connection, or still announces it until its lease
        // ends: its connections are searched for.
        let is_theirs =
            |key: &FlowKey, holder: u8| named.contains(&key.service()) && alive >> (holder & 63) & 1 == 1;
        let theirs: Vec<_> = self.hints.all().filter(|(key, holder, ..)| is_theirs(key, *holder)).collect();
        let theirs = theirs.into_iter().filter(|(key, ..)| gets(key.client(), key.service()));
        for (key, holder, theirs, told) in theirs {
            let own = watch.hold().programs().stamps().get(&key)?;
            // This replica adopted the connection, and the former holder may not know that yet.
            if own.is_some_and(|own| hint(&own).is_after(&theirs)) {
                continue;
            }
            // Its holder was excluded, perhaps since this absence, and announces it again when it
            // may send.
            if self.lost.is_since(&key, told) {
                continue;
            }
            // A connection that was left belongs to the adopter, which may be this replica.
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

    /// Searches for connections that other replicas leave to this one: probes their clients and
    /// adopts them.
    fn follow<K: Keeper>(&mut self, now: Instant, watch: &mut Watch<K>) -> Result<(), HoldError> {
        for key in self.hints.left() {
            let Some((_, hint)) = self.hints.holder(&key) else { continue };
            let hint = *hint;
            if hint.left_to.is_none() || hint.left_to != self.own(&key) || self.lost.is_probed(&key) {
                continue;
            }
            let programs = watch.hold().programs();
            if let Some(own) = programs.stamps().get(&key)? {
                // This replica has the connection now, or had it before the replica that left it.
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

    /// Whether a packet belongs to a connection that a live replica holds.
    pub(super) fn is_others(&self, key: &FlowKey, packet: &[u8]) -> bool {
        let Some((_, hint)) = self.hints.holder(key).filter(|_| !self.lost.has(key)) else { return false };
        // A segment with distant numbers belongs to the next connection between these ports.
        Segment::parse(packet).is_ok_and(|segment| is_near(segment.header.seq, hint.client_next))
    }

    /// Processes hints. Connections that others have adopted are no longer searched for, and are
    /// dropped if this replica had them: the ToR's choice may have changed, and two replicas must
    /// not send on one connection.
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
