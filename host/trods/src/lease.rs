//! How long a replica may speak on protected connections: until it must reckon that the ToR has excluded it, and that another
//! one goes on with them.
//!
//! The ToR excludes a replica when it has not heard it for the bound. So whoever was heard may speak until the bound has passed
//! since it sent the last heartbeat of which it knows, by an answer, that it came: never later than the ToR excludes it, since
//! the ToR heard that heartbeat after it was sent. Silence mutes and destroys nothing; what is answered next ends it.

use std::time::{Duration, Instant};

use rivulet_bpf::trods::Lease;
use rustix::time::{ClockId, clock_gettime};

/// For so long after a member of the pool was excluded a connection that nobody knows here is not reset: its record is being
/// looked for.
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
    /// Whether it was among those that take plain TCP when last heard of, how often it was not, and of which of these times it
    /// knows what others hold since.
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
        // Who was excluded, for however short a time, takes none before the controller has it do so.
        let taking = plain & own != 0;
        self.absences += u64::from(self.taking && !taking);
        self.taking = taking;
        if alive & own != 0 && self.away().is_none() {
            self.lease.until = self.lease.until.max(sent.saturating_add(self.bound.as_nanos() as u64));
        }
        if gone != 0 {
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

    #[test]
    fn whoever_was_heard_speaks_until_it_may_be_excluded() {
        let mut term = Term::new(2, Duration::from_nanos(BOUND));
        assert_eq!(term.lease(), Lease::default(), "nobody has heard it");
        term.back(1);
        assert_eq!(term.answered(1_000, 0b110, 0b110, 9_000), 0);
        assert_eq!(term.lease(), Lease { until: 1_000 + BOUND, settling: 0 }, "from when it was sent");
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
        assert_eq!(term.answered(1, 0b1111, 0, 2), 0, "nobody was known before");
        assert_eq!(term.answered(2, 0b0101, 0, 3), 0b1010);
        assert_eq!(term.lease().settling, 3 + SETTLING.as_nanos() as u64);
        assert_eq!(term.answered(3, 0b0101, 0, 4), 0);
        assert_eq!(term.answered(4, 0b0100, 0, 5), 0, "itself is no affair of its own");
        assert_eq!(term.answered(5, 0b0001, 0, 6), 0b0100);
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
        term.answered(5_000, own | others, own | others, 6_000);
        // Excluded and back between two answers: all that it sees is that it takes no plain TCP.
        term.answered(7_000, own | others, others, 8_000);
        assert_eq!((term.away(), term.lease().until), (Some(2), 5_000 + BOUND));
        term.answered(9_000, own | others, own | others, 9_500);
        term.answered(9_600, own | others, others, 9_700);
        term.back(2);
        assert_eq!(term.away(), Some(3), "and once more, while it asked");
        term.back(3);
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
