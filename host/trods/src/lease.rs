//! The lease: until when a replica may send on protected connections. After that the ToR may have
//! excluded it, and other replicas may have adopted its connections.
//!
//! The ToR excludes a replica when no heartbeat has arrived for the bound. An answer shows that a
//! heartbeat arrived, so the replica may send until the bound has passed since it sent that
//! heartbeat: the heartbeat arrived after it was sent, so the ToR cannot exclude the replica
//! earlier. When the lease ends, the replica is muted, and no state is lost. The next answer renews
//! the lease, unless the replica was or may have been excluded: then other replicas search for its
//! connections until it gets plain TCP again.

use std::time::{Duration, Instant};

use rivulet_bpf::trods::Lease;
use rustix::time::{ClockId, clock_gettime};

/// For this long no RST is sent for an unknown connection, because its record is searched for:
/// after a member of the pool was excluded, and while this replica gets no plain TCP or lacks the
/// pins.
const SETTLING: Duration = Duration::from_secs(1);

/// `CLOCK_MONOTONIC` in nanoseconds, the clock that BPF programs read.
#[must_use]
pub fn clock() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The lease of one replica in a pool.
#[derive(Debug)]
pub struct Term {
    own: u8,
    bound: Duration,
    alive: u64,
    /// Whether the last answer listed it among the replicas that get plain TCP; and whether others
    /// may have adopted its connections since then.
    taking: bool,
    out: bool,
    /// Time ([`clock`]) before which the ToR cannot have excluded it.
    sure: u64,
    /// Number of absences and returns so far, and the last of them after which the pins were
    /// complete.
    absences: u64,
    known: u64,
    lease: Lease,
}

impl Term {
    /// The lease of replica `own` with this bound; it is valid only after the first answer.
    #[must_use]
    pub fn new(own: u8, bound: Duration) -> Term {
        let (alive, taking, out, sure, absences, known) = (0, false, true, 0, 1, 0);
        Term { own, bound, alive, taking, out, sure, absences, known, lease: Lease::default() }
    }

    /// Processes the ToR's answer to a heartbeat that was sent at time `sent` ([`clock`]): the set
    /// of live members (bit r is replica r), and of those that get plain TCP. Returns the members
    /// that are no longer alive.
    pub fn answered(&mut self, sent: u64, alive: u64, plain: u64, now: u64) -> u64 {
        let own = 1 << (self.own & 63);
        let gone = self.alive & !alive & !own;
        // A replica that was excluded, even briefly, gets no plain TCP before the controller
        // readmits it. Until then others may adopt its connections, so it must read the pins once
        // it gets plain TCP again, and sends nothing before. A drained replica merely gets no new
        // plain TCP, and knows that it was not excluded.
        let (here, taking) = (alive & own != 0, plain & own != 0);
        let was_here = self.alive & own != 0;
        self.absences += u64::from(self.taking != taking || was_here != here);
        self.out = (self.out || now > self.sure || !here) && !taking;
        (self.alive, self.taking) = (alive, taking);
        if here {
            self.sure = self.sure.max(sent.saturating_add(self.bound.as_nanos() as u64));
        }
        if here && !self.out && self.away().is_none() {
            self.lease.until = self.sure;
        }
        // A replica without plain TCP may get clients before it learns of the change, and lacks the
        // pins.
        if gone != 0 || !taking || self.away().is_some() {
            self.lease.settling = now.saturating_add(SETTLING.as_nanos() as u64);
        }
        gone
    }

    /// The number of the absence, if others may have adopted connections of this replica and it
    /// lacks the pins; it sends nothing until it has them.
    #[must_use]
    pub fn away(&self) -> Option<u64> {
        (self.known != self.absences).then_some(self.absences)
    }

    /// Whether the ToR's latest answer listed this replica among those that get plain TCP.
    #[must_use]
    pub fn is_taking(&self) -> bool {
        self.taking
    }

    /// Notes that the pins are complete after this absence.
    pub fn back(&mut self, absence: u64) {
        self.known = self.known.max(absence);
    }

    /// The lease in the form that the BPF programs read.
    #[must_use]
    pub fn lease(&self) -> Lease {
        self.lease
    }
}

/// Converts an instant to [`clock`].
#[must_use]
pub fn at(instant: Instant) -> u64 {
    let (now, clock) = (Instant::now(), clock());
    let before = now.saturating_duration_since(instant).as_nanos() as u64;
    clock.saturating_sub(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: u64 = 20_000_000;
    const SETTLED: u64 = SETTLING.as_nanos() as u64;

    #[test]
    fn lease_lasts_until_replica_may_be_excluded() {
        let mut term = Term::new(2, Duration::from_nanos(BOUND));
        assert_eq!(term.lease(), Lease::default(), "nobody has heard it");
        term.answered(100, 0b110, 0b110, 200);
        term.back(2);
        assert_eq!(term.answered(1_000, 0b110, 0b110, 9_000), 0);
        assert_eq!(
            term.lease(),
            Lease { until: 1_000 + BOUND, settling: 200 + SETTLED, ..Lease::default() },
            "from when it was sent"
        );
        term.answered(500, 0b110, 0b110, 9_500);
        assert_eq!(term.lease().until, 1_000 + BOUND, "what comes late does not shorten it");
        term.answered(2_000, 0b010, 0b110, 9_600);
        assert_eq!(term.lease().until, 1_000 + BOUND, "excluded");
        term.answered(3_000, 0b110, 0b110, 9_700);
        term.back(4);
        term.answered(4_000, 0b110, 0b110, 9_800);
        assert_eq!(term.lease().until, 4_000 + BOUND);
    }

    #[test]
    fn departure_is_reported_once_and_sends_no_rst() {
        let mut term = Term::new(0, Duration::from_nanos(BOUND));
        assert_eq!(term.answered(1, 0b1111, 1, 2), 0, "nobody was known before");
        term.back(2);
        assert_eq!((term.answered(2, 0b1111, 1, 3), term.lease().settling), (0, 2 + SETTLED));
        assert_eq!(term.answered(3, 0b0101, 1, 4), 0b1010);
        assert_eq!(term.lease().settling, 4 + SETTLED);
        assert_eq!(term.answered(4, 0b0101, 1, 5), 0);
        assert_eq!(term.answered(5, 0b0100, 1, 6), 0, "itself is no affair of its own");
        assert_eq!((term.answered(6, 0b0001, 1, 7), term.lease().settling), (0b0100, 7 + SETTLED));
        term.back(4);
        assert_eq!((term.answered(7, 0b0001, 1, 8), term.lease().settling), (0, 7 + SETTLED));
    }

    #[test]
    fn no_rst_without_plain_tcp_or_pins() {
        let mut term = Term::new(0, Duration::from_nanos(BOUND));
        let mut settling = |now, plain, back: u64| {
            term.answered(now, 0b11, plain, now);
            term.back(back);
            term.lease().settling - SETTLED
        };
        assert_eq!([settling(1, 0, 1), settling(2, 0, 1)], [1, 2], "clients come before it hears of it");
        assert_eq!([settling(3, 1, 2), settling(4, 1, 3)], [3, 4], "it does not know");
        assert_eq!(settling(5, 1, 3), 4);
    }

    #[test]
    fn returning_replica_sends_nothing_before_it_has_the_pins() {
        let (own, others) = (0b100, 0b011);
        let mut term = Term::new(2, Duration::from_nanos(BOUND));
        term.answered(1_000, own | others, own | others, 2_000);
        assert_eq!((term.away(), term.lease().until), (Some(2), 0), "it began");
        term.back(2);
        term.answered(3_000, own | others, own | others, 4_000);
        assert_eq!((term.away(), term.lease().until), (None, 3_000 + BOUND));
        // A drained replica gets no new connections and serves those that it has, however long the
        // query for pins takes.
        term.answered(4_000, own | others, others, 4_500);
        assert_eq!((term.away(), term.lease().until), (Some(3), 3_000 + BOUND));
        assert!(!term.is_taking());
        let late = 2 * BOUND;
        for now in (5_000..late).step_by(1_000_000) {
            term.answered(now, own | others, others, now + 500);
        }
        term.back(3);
        term.answered(late, own | others, others, late + 500);
        assert_eq!((term.away(), term.lease().until), (None, late + BOUND));
        term.answered(late + 1_000, own | others, own | others, late + 1_500);
        assert_eq!((term.away(), term.lease().until), (Some(4), late + BOUND), "others went on until then");
        assert!(term.is_taking());
        term.answered(late + 2_000, own | others, others, late + 2_500);
        term.back(4);
        assert_eq!(term.away(), Some(5), "and once more, while it asked");
        term.back(5);
        term.answered(late + 3_000, own | others, others, late + 3_500);
        assert_eq!((term.away(), term.lease().until), (None, late + 3_000 + BOUND));
    }

    /// Others search for its connections, and its pins are outdated.
    #[test]
    fn possibly_excluded_replica_is_mute_until_readmitted() {
        let (own, others) = (0b100, 0b011);
        // The ToR's answer excludes it; or no answer arrives for longer than the bound, and then
        // one without plain TCP.
        for plain in [Some(others), Some(own | others), None] {
            let mut term = Term::new(2, Duration::from_nanos(BOUND));
            term.answered(1_000, own | others, own | others, 2_000);
            term.back(2);
            term.answered(3_000, own | others, own | others, 4_000);
            let until = 3_000 + BOUND;
            assert_eq!(term.lease().until, until);
            let told = plain.is_some();
            if let Some(plain) = plain {
                term.answered(4_000, others, plain, 5_000);
                assert_eq!(term.away(), Some(3));
                term.back(3);
            }
            // The result of an earlier query for pins changes nothing, and the query is repeated.
            for now in [until + 1, until + 2, 9 * BOUND, 9 * BOUND + 1] {
                term.answered(now, own | others, others, now);
                assert_eq!(term.lease().until, until, "{plain:?} {now}");
                term.back(3 + u64::from(told));
                assert_eq!(term.away(), None);
            }
            let now = 10 * BOUND;
            term.answered(now, own | others, own | others, now);
            assert_eq!((term.away(), term.lease().until), (Some(4 + u64::from(told)), until));
            term.back(4 + u64::from(told));
            term.answered(now + 1, own | others, own | others, now + 1);
            assert_eq!(term.lease().until, now + 1 + BOUND);
        }
    }

    #[test]
    fn instant_converts_to_monotonic_clock() {
        let (before, instant, after) = (clock(), Instant::now(), clock());
        let at = at(instant);
        // The tolerance is generous, because on a busy machine time passes between the reads of two
        // clocks.
        assert!(at + 1_000_000_000 > before && at < after + 1_000_000_000);
    }
}
