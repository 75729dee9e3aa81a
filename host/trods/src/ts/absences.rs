//! Decides when the pins of replicas that only announce their connections are complete: when all
//! have announced since the absence, with time for one lost datagram.

use std::time::{Duration, Instant};

use crate::hold::Absence;

/// After this time others have announced all their connections, even if one announcement was lost: they repeat them each
/// second.
const TOLD: Duration = Duration::from_millis(1200);
/// Time after which immediate announcements have arrived.
const SOON: Duration = Duration::from_millis(50);
/// A replica that has not read for this long may have missed datagrams for lack of room.
const DEAF: Duration = Duration::from_millis(500);

/// Absences that wait for announcements of others.
#[derive(Debug)]
pub(crate) struct Absences {
    waiting: Vec<(Instant, Absence)>,
    /// First and last time at which this replica read announcements.
    listens: (Instant, Instant),
}

impl Absences {
    /// Listens from now on.
    pub fn new(now: Instant) -> Absences {
        Absences { waiting: Vec::new(), listens: (now, now) }
    }

    /// Notes that announcements were read.
    pub fn listen(&mut self, now: Instant) {
        let (since, last) = self.listens;
        self.listens = (if now.saturating_duration_since(last) > DEAF { now } else { since }, now);
    }

    /// Adds an absence. Changes during the presence of this replica were announced to it, and so
    /// was everything else if it has read for long enough, as a readmitted replica has since its
    /// return.
    pub fn push(&mut self, absence: Absence, now: Instant) {
        if absence.number.1 == 0 {
            self.waiting.push((now, absence));
            return;
        }
        let (soon, last) = (now + SOON, now + TOLD);
        let at = (self.listens.0 + TOLD).max(soon);
        if at < last {
            // By now clients' segments come to this replica.
            self.waiting.extend([now, last].map(|at| (at, absence.once_more())));
        }
        self.waiting.push((at, absence));
    }

    /// Returns an absence for which all announcements have come.
    pub fn due(&mut self, now: Instant) -> Option<Absence> {
        let at = self.waiting.iter().position(|(at, _)| *at <= now)?;
        Some(self.waiting.swap_remove(at).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn absence(of: u64) -> Absence {
        Absence {
            number: (0, of),
            others: Vec::new(),
            servers: Vec::new(),
            named: vec!["10.9.0.1:80".parse().unwrap()],
            alive: 0b110,
            tor: [2; 6],
            gets: Box::new(|_, _| true),
        }
    }

    /// The absences that are due at each of these times, milliseconds after the first announcement.
    fn due(absences: &mut Absences, began: Instant, times: &[u64]) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        for &ms in times {
            let now = began + Duration::from_millis(ms);
            absences.listen(now);
            found.extend(std::iter::from_fn(|| absences.due(now)).map(|absence| (ms, absence.number.1)));
        }
        found
    }

    #[test]
    fn new_replica_waits_for_all_announcements() {
        let began = Instant::now();
        let mut absences = Absences::new(began);
        absences.push(absence(1), began);
        absences.push(absence(0), began);
        assert_eq!(due(&mut absences, began, &[0, 100, 500, 900, 1199, 1200, 2000]), [(0, 0), (1200, 1)]);
        assert_eq!(due(&mut absences, began, &[2500, 3000]), []);
    }

    /// The absences that are due at the times `then`, if the replica read at the times `listened`.
    fn due_after(listened: &[u64], then: &[u64]) -> Vec<(u64, u64)> {
        let began = Instant::now();
        let mut absences = Absences::new(began);
        assert_eq!(due(&mut absences, began, listened), []);
        absences.push(absence(2), began + Duration::from_millis(*listened.last().unwrap()));
        due(&mut absences, began, then)
    }

    #[test]
    fn reading_replica_has_pins_soon_and_checks_again() {
        let at = due_after(&[400, 800, 1200, 1600], &[1600, 1649, 1650, 2100, 2600, 2799, 2800]);
        assert_eq!(at, [(1600, 0), (1650, 2), (2800, 0)]);
    }

    #[test]
    fn paused_replica_waits_for_all_announcements() {
        let at = due_after(&[400, 800, 1200, 1701], &[1751, 2200, 2700, 2900, 2901]);
        assert_eq!(at, [(2901, 2)]);
    }
}
