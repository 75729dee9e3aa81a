//! How long a replica may speak on protected connections: until it must reckon that the ToR has excluded it, and that another
//! one goes on with them.
//!
//! The ToR excludes a replica when it has not heard it for the bound. So whoever was heard may speak until the bound has passed
//! since it sent the last heartbeat of which it knows, by an answer, that it came: never later than the ToR excludes it, since
//! the ToR heard that heartbeat after it was sent. Silence mutes and destroys nothing; what is answered next ends it.

use std::time::{Duration, Instant};

use rivulet_bpf::trods::Lease;
use rustix::time::{ClockId, clock_gettime};

/// For so long after a member of the pool was excluded, or this one was not to take plain TCP or did not know what others hold,
/// a connection that nobody knows here is not reset: its record is being looked for.
const SETTLING: Duration = Duration::from_secs(1);

/// `CLOCK_MONOTONIC`, as BPF programs read it, in nanoseconds.
#[must_use]
pub fn clock() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The lease of one place in a pool.
#[derive(Debug)]
pub struct Term {
    own: u8,
    bound: Duration,
    alive: u64,
    /// Whether it was among those that take plain TCP when last heard of, how often that changed, and since which of these
    /// changes it knows what others hold.
    taking: bool,
    absences: u64,
    known: u64,
    lease: Lease,
}

impl Term {
    /// Replica `own`, which is excluded after `bound`. Not answered yet, it is silent.
    #[must_use]
    pub fn new(own: u8, bound: Duration) -> Term {
        Term { own, bound, alive: 0, taking: false, absences: 1, known: 0, lease: Lease::default() }
    }

    /// The ToR answered, to a heartbeat that was sent at this time of [`clock`], who is alive (bit r is replica r), and who of
    /// these takes plain TCP. Gives who is not alive any more.
    pub fn answered(&mut self, sent: u64, alive: u64, plain: u64, now: u64) -> u64 {
        let own = 1 << (self.own & 63);
        let gone = self.alive & !alive & !own;
        self.alive = alive;
        // Who was excluded, for however short a time, takes none before the controller has it do so. Until then others may go on
        // with its connections, so it has to ask again when it takes them.
        let taking = plain & own != 0;
        self.absences += u64::from(self.taking != taking);
        self.taking = taking;
        if alive & own != 0 && self.away().is_none() {
            self.lease.until = self.lease.until.max(sent.saturating_add(self.bound.as_nanos() as u64));
        }
        // Whoever takes none gets clients before it hears of it, and does not know yet what others hold.
        if gone != 0 || !taking || self.away().is_some() {
            self.lease.settling = now.saturating_add(SETTLING.as_nanos() as u64);
        }
        gone
    }

    /// The number of the absence, if others may have gone on with connections of this replica and it does not know yet with
    /// which: until it does it is silent.
    #[must_use]
    pub fn away(&self) -> Option<u64> {
        (self.known != self.absences).then_some(self.absences)
    }

    /// Whether it was among those that take plain TCP when last heard of.
    #[must_use]
    pub fn is_taking(&self) -> bool {
        self.taking
    }

    /// It is known what others hold since that absence.
    pub fn back(&mut self, absence: u64) {
        self.known = self.known.max(absence);
    }

    /// What the programs are to hold to.
    #[must_use]
    pub fn lease(&self) -> Lease {
        self.lease
    }
}

/// When an instant is, of [`clock`].
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
    fn whoever_was_heard_speaks_until_it_may_be_excluded() {
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
        assert_eq!(term.lease().until, 3_000 + BOUND);
    }

    #[test]
    fn who_is_gone_is_told_once_and_its_clients_are_not_reset() {
        let mut term = Term::new(0, Duration::from_nanos(BOUND));
        assert_eq!(term.answered(1, 0b1111, 1, 2), 0, "nobody was known before");
        term.back(2);
        assert_eq!((term.answered(2, 0b1111, 1, 3), term.lease().settling), (0, 2 + SETTLED));
        assert_eq!(term.answered(3, 0b0101, 1, 4), 0b1010);
        assert_eq!(term.lease().settling, 4 + SETTLED);
        assert_eq!(term.answered(4, 0b0101, 1, 5), 0);
        assert_eq!(term.answered(5, 0b0100, 1, 6), 0, "itself is no affair of its own");
        assert_eq!((term.answered(6, 0b0001, 1, 7), term.lease().settling), (0b0100, 7 + SETTLED));
        assert_eq!((term.answered(7, 0b0001, 1, 8), term.lease().settling), (0, 7 + SETTLED));
    }

    #[test]
    fn whoever_takes_none_or_does_not_know_what_others_hold_resets_nobody() {
        let mut term = Term::new(0, Duration::from_nanos(BOUND));
        let mut settling = |now, plain, back: u64| {
            term.answered(now, 0b11, plain, now);
            term.back(back);
            term.lease().settling - SETTLED
        };
        assert_eq!([settling(1, 0, 1), settling(2, 0, 1)], [1, 2], "clients come before it hears of it");
        assert_eq!([settling(3, 1, 1), settling(4, 1, 2)], [3, 4], "it does not know");
        assert_eq!(settling(5, 1, 2), 4);
    }

    #[test]
    fn whoever_was_away_is_silent_until_it_knows_what_others_hold() {
        let (own, others) = (0b100, 0b011);
        let mut term = Term::new(2, Duration::from_nanos(BOUND));
        term.answered(1_000, own | others, others, 2_000);
        assert_eq!((term.away(), term.lease().until), (Some(1), 0), "it began");
        term.back(1);
        term.answered(3_000, own | others, others, 4_000);
        assert_eq!((term.away(), term.lease().until), (None, 3_000 + BOUND));
        assert!(!term.is_taking());
        term.answered(4_000, own | others, own | others, 4_500);
        assert_eq!((term.away(), term.lease().until), (Some(2), 3_000 + BOUND), "others went on until then");
        assert!(term.is_taking());
        term.back(2);
        term.answered(5_000, own | others, own | others, 6_000);
        assert_eq!((term.away(), term.lease().until), (None, 5_000 + BOUND));
        // Excluded and back between two answers: all that it sees is that it takes no plain TCP.
        term.answered(7_000, own | others, others, 8_000);
        assert_eq!((term.away(), term.lease().until), (Some(3), 5_000 + BOUND));
        term.answered(9_000, own | others, own | others, 9_500);
        term.back(3);
        assert_eq!(term.away(), Some(4), "and once more, while it asked");
        term.back(4);
        term.answered(10_000, own | others, own | others, 11_000);
        assert_eq!((term.away(), term.lease().until), (None, 10_000 + BOUND));
    }

    #[test]
    fn an_instant_is_the_same_by_both_clocks() {
        let (before, instant, after) = (clock(), Instant::now(), clock());
        let at = at(instant);
        // As exactly as two clocks are read one behind the other on a busy machine.
        assert!(at + 1_000_000_000 > before && at < after + 1_000_000_000);
    }
}
