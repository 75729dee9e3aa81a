//! Decides when the pins are complete in a service without a store, where replicas announce their
//! connections: when every replica must have announced all of them since the absence, even if one
//! datagram was lost.

use std::time::{Duration, Instant};

use crate::hold::Absence;

/// Time after which every replica has announced all its connections, even if one datagram was lost:
/// announcements are repeated each second.
const TOLD: Duration = Duration::from_millis(1200);
/// Time after which an announcement that was sent at once has arrived.
const SOON: Duration = Duration::from_millis(50);
/// A replica that has not read announcements for this long may have lost some, because the socket's
/// buffer was full.
const DEAF: Duration = Duration::from_millis(500);

/// Absences after which the pins are not complete yet.
#[derive(Debug)]
pub(crate) struct Absences {
    waiting: Vec<(Instant, Absence)>,
    /// First and last time at which this replica read announcements.
    listens: (Instant, Instant),
}

impl Absences {
    /// Starts when the socket for announcements is open.
    pub fn new(now: Instant) -> Absences {
        Absences { waiting: Vec::new(), listens: (now, now) }
    }

    /// Notes that announcements were read.
    pub fn listen(&mut self, now: Instant) {
        let (since, last) = self.listens;
        self.listens = (if now.saturating_duration_since(last) > DEAF { now } else { since }, now);
    }

    /// Adds an absence. Changes while this replica was present were announced to it. If it has read
    /// announcements without a pause since its return, as a readmitted replica has, it also knows
    /// all other connections.
    pub fn push(&mut self, absence: Absence, now: Instant) {
        if absence.number.1 == 0 {
            self.waiting.push((now, absence));
            return;
        }
        let (soon, last) = (now + SOON, now + TOLD);
        let at = (self.listens.0 + TOLD).max(soon);
        if at < last {
            // The ToR sends clients' segments to this replica by then.
            self.waiting.extend([now, last].map(|at| (at, absence.once_more())));
        }
        self.waiting.push((at, absence));
    }

    /// Returns an absence after which the pins are complete by now.
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

    /// The absences that are due at the times `then`, if the replica read announcements at the
    /// times `listened`.
    fn due_after(listened: &[u64], then: &[u64]) -> Vec<(u64, u64)> {
        let began = Instant::now();
        let mut absences = Absences::new(began);
        assert_eq!(due(&mut absences, began, listened), []);
        absences.push(absence(2), began + Duration::from_millis(*listened.last().unwrap()));
        due(&mut absences, began, then)
    }

    #[test]
    fn listening_replica_completes_pins_early_and_rechecks() {
        let at = due_after(&[400, 800, 1200, 1600], &[1600, 1649, 1650, 2100, 2600, 2799, 2800]);
        assert_eq!(at, [(1600, 0), (1650, 2), (2800, 0)]);
    }

    #[test]
    fn paused_replica_waits_for_all_announcements() {
        let at = due_after(&[400, 800, 1200, 1701], &[1751, 2200, 2700, 2900, 2901]);
        assert_eq!(at, [(2901, 2)]);
    }
}
