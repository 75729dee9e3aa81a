//! Whose a connection is: what others told that they have, and who is gone.

use std::net::SocketAddr;
use std::time::Instant;

use rivulet_bpf::trods::{FlowKey, Pin, Trods};
use rivulet_plain::Segment;

use super::read::is_near;
use super::{HUNT, Names};
use crate::hold::{Absence, HoldError, Keeper, Watch};
use crate::lease::clock;
use crate::replica::Gone;

impl Names {
    /// A replica is gone, or who is expected to go on with its connections is another one now; `is_known` says that there is a
    /// record of a connection whose client goes on near there: that one counts.
    pub fn depart(
        &mut self,
        service: SocketAddr,
        gone: &Gone,
        is_known: impl Fn(&FlowKey, u32) -> bool,
        programs: &Trods,
    ) -> Result<(), HoldError> {
        let Some(&n) = self.at.get(&service) else { return Ok(()) };
        let Gone { replica: dead, tor, other, waits, .. } = gone;
        let now = Instant::now();
        self.hints.hear(now);
        let had: Vec<_> = self.hints.of(service, *dead).collect();
        tracing::info!(connections = had.len(), replica = dead, "gone");
        self.services[n].tor = Some(*tor);
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

    /// What others hold of the connections that this replica gets is theirs, also where it is still here.
    pub fn yield_to<K: Keeper>(&mut self, absence: &Absence, watch: &mut Watch<K>) -> Result<(), HoldError> {
        self.hints.hear(Instant::now());
        let Absence { named, tor, alive, gets, .. } = absence;
        // Who is gone may have told a moment ago, and does still while its lease lasts: its connections are looked for.
        let is_theirs =
            |key: &FlowKey, holder: u8| named.contains(&key.service()) && alive >> (holder & 63) & 1 == 1;
        let theirs: Vec<_> = self.hints.all().filter(|(key, holder, ..)| is_theirs(key, *holder)).collect();
        let theirs = theirs.into_iter().filter(|(key, ..)| gets(key.client(), key.service()));
        for (key, holder, generation, told) in theirs {
            let programs = watch.hold().programs();
            let own = programs.stamps().get(&key)?;
            // Whom this one went on for may not know yet.
            if own.is_some_and(|own| own.generation.is_after(generation)) {
                continue;
            }
            // Its holder was gone, maybe since the absence, and tells of it again when it may speak.
            if self.lost.is_since(&key, told) {
                continue;
            }
            programs.pin(&key, Pin { tor: *tor, holder })?;
            self.lost.forget(&key, programs)?;
            if own.is_some() {
                programs.free(&key)?;
                programs.stamps().forget(&key)?;
                watch.abandon(&key)?;
            }
        }
        Ok(())
    }

    /// Who else went on with a connection that is looked for.
    pub(super) fn is_elsewhere(&self, key: &FlowKey) -> Option<Pin> {
        let (holder, hint) = self.hints.holder(key)?;
        let tor = self.services[*self.at.get(&key.service())?].tor?;
        self.lost.is_behind(key, hint.generation).then_some(Pin { tor, holder })
    }

    /// Whether a packet is of a connection that somebody has who is not gone: of whom that is looked for here.
    pub(super) fn is_others(&self, key: &FlowKey, packet: &[u8]) -> bool {
        let Some((_, hint)) = self.hints.holder(key).filter(|_| !self.lost.has(key)) else { return false };
        // Else it is the next one between these ports.
        Segment::parse(packet).is_ok_and(|segment| is_near(segment.header.seq, hint.client_next))
    }

    /// What others went on with is not looked for any more. Who gets what its client sends may have changed meanwhile: two would
    /// go on with it, and neither hear of the other.
    pub(super) fn leave_to_others(&mut self, programs: &Trods) -> Result<(), HoldError> {
        for key in self.hints.moved() {
            if let Some(pin) = self.is_elsewhere(&key) {
                programs.pin(&key, pin)?;
                self.lost.forget(&key, programs)?;
            }
        }
        Ok(())
    }
}
