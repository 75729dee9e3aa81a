//! Spaces the probes to a dead replica's clients: thousands at once would overflow the queues of
//! the links, and their answers those of this host.

use std::time::{Duration, Instant};

/// Number of connections of each kind that are probed without a pause.
const AT_A_TIME: u32 = 16;
/// Spacing of the probes after these. Connections with a waiting client are probed as fast as one
/// processor adopts them; the others at the pace of the local web server. A client that sends
/// something itself is served at once.
const STEP: Duration = Duration::from_millis(2);
const OTHERS_STEP: Duration = Duration::from_millis(8);

/// The probe times of one kind of connection.
#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    at: Option<Instant>,
    taken: u32,
}

/// The next probe times. Connections with a waiting client do not queue behind the others.
#[derive(Debug, Default)]
pub(super) struct Pace {
    waited_for: Lane,
    others: Lane,
}

impl Pace {
    /// Reserves the next probe time for a connection that was just found.
    pub fn next(&mut self, is_waited_for: bool, now: Instant) -> Instant {
        let (lane, step) = match is_waited_for {
            true => (&mut self.waited_for, STEP),
            false => (&mut self.others, OTHERS_STEP),
        };
        let free = match lane.at {
            Some(at) if lane.taken < AT_A_TIME => at,
            Some(at) => at + step,
            None => now,
        };
        let at = free.max(now);
        lane.taken = if lane.at == Some(at) { lane.taken + 1 } else { 1 };
        lane.at = Some(at);
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_clients_are_paced_apart_from_idle_ones() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        let steps = |pace: &mut Pace, count: u32, kind, now| -> Vec<u32> {
            let step = if kind { STEP } else { OTHERS_STEP };
            let found: Vec<Instant> = (0..count).map(|_| pace.next(kind, now)).collect();
            let first = found[0];
            let counted = found.iter().map(|at| ((*at - first).as_micros() / step.as_micros()) as usize);
            let mut counts = vec![0; counted.clone().max().unwrap() + 1];
            counted.for_each(|step| counts[step] += 1);
            assert!(found.iter().all(|at| *at >= now));
            counts
        };
        assert_eq!(steps(&mut pace, 3 * AT_A_TIME + 1, false, now), [AT_A_TIME, AT_A_TIME, AT_A_TIME, 1]);
        assert_eq!(pace.next(true, now), now);
        assert_eq!(steps(&mut pace, AT_A_TIME, true, now), [AT_A_TIME - 1, 1]);
        // Connections of the next dead replica queue behind these; much later the queue is empty.
        assert_eq!(pace.next(false, now), now + 3 * OTHERS_STEP);
        let later = now + 10 * OTHERS_STEP;
        assert_eq!(pace.next(false, later), later);
        assert_eq!(steps(&mut pace, AT_A_TIME, false, later), [AT_A_TIME - 1, 1]);
    }
}
