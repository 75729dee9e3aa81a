//! Tracks which datagrams of one flow arrived or were lost, and makes the reports to the Congestion
//! Manager.

use std::collections::VecDeque;

use libcm::{Congestion, Update};

/// A datagram counts as lost when one that was sent this many later has arrived, as in RFC 9002
/// section 6.1.1.
const LATER: u64 = 3;

#[derive(Clone, Copy, Debug)]
struct Packet {
    /// Time of sending, ns.
    at: u64,
    arrived: bool,
}

/// Datagrams in the order of sending, from the oldest that is neither answered nor lost.
#[derive(Debug)]
pub(super) struct Flight {
    /// Payload of each datagram, bytes.
    size: u64,
    packets: VecDeque<Packet>,
    /// Number of the first datagram in `packets`.
    first: u64,
    pub arrived: u64,
    pub lost: u64,
}

impl Flight {
    pub fn new(size: u32) -> Flight {
        Flight { size: u64::from(size), packets: VecDeque::new(), first: 0, arrived: 0, lost: 0 }
    }

    /// Datagrams sent.
    pub fn sent(&self) -> u64 {
        self.first + self.packets.len() as u64
    }

    /// Upper bound of the datagrams in flight: some in `packets` have arrived after a missing one.
    pub fn outstanding(&self) -> u64 {
        self.packets.len() as u64
    }

    /// Whether at least `count` datagrams have arrived or are lost.
    pub fn done(&self, count: u64) -> bool {
        self.arrived + self.lost >= count
    }

    /// Records that the next datagram is sent at `now` (ns).
    pub fn send(&mut self, now: u64) {
        self.packets.push_back(Packet { at: now, arrived: false });
    }

    /// Records the answer to a datagram and returns the report for it. `None`: the datagram counted as
    /// lost before, was answered before, or was never sent.
    pub fn answered(&mut self, number: u64, now: u64) -> Option<Update> {
        let index = number.checked_sub(self.first)?;
        let packet = self.packets.get_mut(usize::try_from(index).ok()?)?;
        if std::mem::replace(&mut packet.arrived, true) {
            return None;
        }
        // Never 0, which stands for "not measured", however coarse the clock is.
        let rtt = now.saturating_sub(packet.at).max(1);
        self.arrived += 1;
        let before = self.lost;
        while let Some(packet) = self.packets.front() {
            if !packet.arrived && self.first + LATER > number {
                break;
            }
            self.lost += u64::from(!packet.arrived);
            self.packets.pop_front();
            self.first += 1;
        }
        let lost = self.lost - before;
        let congestion = if lost > 0 { Congestion::Transient } else { Congestion::None };
        Some(Update { nsent: (1 + lost) * self.size, nrecd: self.size, congestion, rtt })
    }

    /// No answer arrived before the timeout: counts all outstanding datagrams as lost.
    pub fn expired(&mut self) -> Option<Update> {
        let lost = self.packets.iter().filter(|packet| !packet.arrived).count() as u64;
        self.first += self.packets.len() as u64;
        self.packets.clear();
        self.lost += lost;
        let update = Update { nsent: lost * self.size, nrecd: 0, congestion: Congestion::Persistent, rtt: 0 };
        (lost > 0).then_some(update)
    }
}

/// Merges two reports; the congestion of the earlier one has precedence.
pub(super) fn both(one: Option<Update>, other: Update) -> Update {
    let Some(one) = one else { return other };
    let congestion = if one.congestion == Congestion::None { other.congestion } else { one.congestion };
    Update { nsent: one.nsent + other.nsent, nrecd: one.nrecd + other.nrecd, congestion, rtt: other.rtt }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flight(count: u64) -> Flight {
        let mut flight = Flight::new(100);
        (0..count).for_each(|n| flight.send(n));
        flight
    }

    fn values(update: Option<Update>) -> (u64, u64, Congestion) {
        let update = update.unwrap();
        (update.nsent, update.nrecd, update.congestion)
    }

    #[test]
    fn datagram_overtaken_three_times_is_lost() {
        let mut f = flight(6);
        assert_eq!(values(f.answered(1, 50)), (100, 100, Congestion::None));
        assert_eq!(values(f.answered(2, 50)), (100, 100, Congestion::None));
        assert_eq!(f.lost, 0, "two may have overtaken it");
        assert_eq!(values(f.answered(3, 50)), (200, 100, Congestion::Transient));
        assert_eq!((f.arrived, f.lost), (3, 1));
        assert!(f.answered(0, 60).is_none(), "it counted as lost");
        assert!(f.answered(3, 60).is_none(), "it was answered");
        assert!(f.answered(6, 60).is_none(), "it was not sent");
        assert!(f.answered(u64::MAX, 60).is_none());
        assert_eq!(f.answered(5, 60).unwrap().rtt, 55);
        assert_eq!(values(f.expired()), (100, 0, Congestion::Persistent));
        assert!(f.expired().is_none());
        assert!(f.done(6) && (f.arrived, f.lost, f.sent()) == (4, 2, 6));
    }

    #[test]
    fn updates_report_every_sent_byte_once() {
        // Whatever order answers come in.
        for skip in 1..20 {
            let mut f = flight(97);
            let mut all = 0;
            for n in 0..97 {
                all += f.answered(n * skip % 97, 1000).map_or(0, |u| u.nsent);
            }
            all += f.expired().map_or(0, |u| u.nsent);
            assert_eq!((all, f.arrived + f.lost), (9700, 97), "{skip}");
        }
    }

    #[test]
    fn merged_updates_keep_the_loss() {
        let mut f = flight(8);
        let one = f.answered(3, 1);
        let all = both(one, f.answered(4, 2).unwrap());
        assert_eq!((all.nsent, all.nrecd, all.congestion), (400, 200, Congestion::Transient));
    }
}
