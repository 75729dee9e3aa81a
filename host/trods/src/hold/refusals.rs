//! Probes clients of connections that this host's kernel does not know. The kernel's first RST to
//! such a client is held back, because a record of the connection may be on its way; the next RST
//! is sent. The client's retransmission timer doubles each time, so its next segment may take
//! minutes; by then this process may have been restarted, or the ToR sends the client elsewhere. So
//! this process probes the client with a segment before its window, which every TCP acknowledges
//! (RFC 9293 section 3.10.7.4). The ACK reaches the connection's holder, or makes the kernel send
//! the RST that is let through.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::{Duration, Instant};

use rivulet_bpf::trods::FlowKey;

/// Times of the probes, milliseconds after the RST was held back: shortly after RSTs may be sent
/// (`REFUSED_AFTER`, `REFUSED_AT_LAST` in `refusals.h`), and one more in case that one was lost.
const QUESTIONS: [u64; 3] = [1050, 2100, 4000];
/// Limit on the clients that are probed: more than one replica has connections. More clients are a
/// flood.
const MOST: usize = 16_384;
/// Interval at which a due probe checks whether this replica may send, and the limit on that wait.
const RETRY: Duration = Duration::from_millis(250);
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug)]
struct Refusal {
    seq: u32,
    noted: Instant,
    /// Start of the probe times: when the RST was held back, or when this replica could send again.
    since: Instant,
    asked: usize,
}

/// The clients to probe: a RST to each was held back.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    of: HashMap<FlowKey, Refusal>,
    due: BinaryHeap<Reverse<(Instant, FlowKey)>>,
}

impl Refusals {
    /// Notes that a RST was held back; `seq` is its sequence number, which is the client's
    /// acknowledgement number.
    pub(crate) fn note(&mut self, key: FlowKey, seq: u32, now: Instant) {
        if self.of.len() >= MOST || self.of.contains_key(&key) {
            return;
        }
        self.of.insert(key, Refusal { seq, noted: now, since: now, asked: 0 });
        self.due.push(Reverse((now + Duration::from_millis(QUESTIONS[0]), key)));
    }

    /// Time of the next probe.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.due.peek().map(|Reverse((at, _))| *at)
    }

    /// The clients to probe now, with their acknowledgement numbers. `is_known`: this replica has
    /// the connection by now, or searches for it; `may_send`: the lease of its service is valid.
    pub(crate) fn due(
        &mut self,
        now: Instant,
        is_known: impl Fn(&FlowKey) -> bool,
        may_send: impl Fn(&FlowKey) -> bool,
    ) -> Vec<(FlowKey, u32)> {
        let mut ask = Vec::new();
        while let Some(&Reverse((at, key))) = self.due.peek()
            && at <= now
        {
            self.due.pop();
            let Some(refusal) = self.of.get_mut(&key) else { continue };
            if is_known(&key) || now >= refusal.noted + PATIENCE {
                self.of.remove(&key);
                continue;
            }
            if !may_send(&key) {
                (refusal.since, refusal.asked) = (now, 0);
                self.due.push(Reverse((now + RETRY, key)));
                continue;
            }
            ask.push((key, refusal.seq));
            refusal.asked += 1;
            match QUESTIONS.get(refusal.asked) {
                // A late call sends one probe, not all that were due.
                Some(ms) => {
                    let at = (refusal.since + Duration::from_millis(*ms)).max(now + RETRY);
                    self.due.push(Reverse((at, key)));
                }
                None => {
                    self.of.remove(&key);
                }
            }
        }
        ask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(port: u16) -> FlowKey {
        FlowKey::new(([192, 0, 2, 7], port).into(), "10.9.0.1:80".parse().unwrap())
    }

    #[test]
    fn refused_client_is_probed_until_known() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        refusals.note(key(1), 5, now);
        refusals.note(key(1), 9, now + Duration::from_millis(1));
        let at = |ms| now + Duration::from_millis(ms);
        assert_eq!(refusals.deadline(), Some(at(QUESTIONS[0])));
        for ms in QUESTIONS {
            assert_eq!(refusals.due(at(ms - 1), |_| false, |_| true), []);
            assert_eq!(refusals.due(at(ms), |_| false, |_| true), [(key(1), 5)]);
        }
        assert_eq!((refusals.deadline(), refusals.of.len()), (None, 0));
        refusals.note(key(1), 6, now);
        assert_eq!(refusals.due(at(QUESTIONS[0]), |_| true, |_| true), []);
        assert_eq!((refusals.deadline(), refusals.of.len()), (None, 0));
    }

    #[test]
    fn probe_waits_for_the_lease() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        let at = |ms| now + Duration::from_millis(ms);
        refusals.note(key(1), 5, now);
        let late = 3 * QUESTIONS[2];
        assert_eq!(refusals.due(at(QUESTIONS[0]), |_| false, |_| true), [(key(1), 5)]);
        assert_eq!(refusals.due(at(late), |_| false, |_| false), []);
        // Once the replica may send, all probes are repeated: the answer to the first may draw the
        // first RST, which is held back again.
        let retry = late + RETRY.as_millis() as u64;
        for ms in [retry, late + QUESTIONS[1], late + QUESTIONS[2]] {
            assert_eq!(refusals.due(at(ms - 1), |_| false, |_| true), []);
            assert_eq!(refusals.due(at(ms), |_| false, |_| true), [(key(1), 5)]);
        }
        refusals.note(key(1), 5, now);
        assert_eq!(refusals.due(now + PATIENCE, |_| false, |_| false), []);
        assert_eq!((refusals.deadline(), refusals.of.len()), (None, 0));
    }

    #[test]
    fn flood_of_refused_clients_is_bounded() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        (0..=MOST as u16).for_each(|port| refusals.note(key(port), 5, now));
        assert_eq!((refusals.of.len(), refusals.due.len()), (MOST, MOST));
    }
}
