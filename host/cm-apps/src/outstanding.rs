//! Tracks outstanding packets and turns the receiver's reports into `cm_update` calls.
//!
//! A packet below the highest arrived number counts as lost unless the report counts it as arrived.
//! If it arrives later after all, a later report offsets the loss. Only bytes that were sent count,
//! whatever a receiver reports.

use std::collections::VecDeque;

use libcm::{Congestion, Update};

use crate::Nanos;
use crate::wire::Report;

/// Packets that are sent and not reported yet.
#[derive(Debug, Default)]
pub struct Outstanding {
    /// Number of the first packet.
    first: u64,
    packets: VecDeque<(u32, Nanos)>,
    bytes: u64,
    /// The receiver's counters in its last report: packets, bytes.
    counted: (u64, u64),
}

/// New information of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learnt {
    /// Bytes now known to have arrived or to be lost.
    pub resolved: u64,
    /// Bytes that arrived.
    pub arrived: u64,
    /// Packets that were lost.
    pub lost: u64,
    /// Round trip time in ns, without the receiver's delay.
    pub rtt: Nanos,
}

impl Outstanding {
    /// The number of the next packet.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.first + self.packets.len() as u64
    }

    /// Bytes outstanding.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// When the oldest packet was sent.
    #[must_use]
    pub fn oldest(&self) -> Option<Nanos> {
        self.packets.front().map(|&(_, sent)| sent)
    }

    /// Records a sent packet of this many bytes.
    pub fn sent(&mut self, now: Nanos, bytes: u32) {
        self.packets.push_back((bytes, now));
        self.bytes += u64::from(bytes);
    }

    /// Applies a report. `None` if it has nothing new, or is about packets that were not sent.
    pub fn report(&mut self, now: Nanos, report: &Report) -> Option<Learnt> {
        if report.highest < self.first || report.highest >= self.next() {
            return None;
        }
        let count = (report.highest - self.first + 1) as usize;
        let sent = self.packets.get(count - 1)?.1;
        let resolved = self.packets.drain(..count).map(|(bytes, _)| u64::from(bytes)).sum::<u64>();
        self.first += count as u64;
        self.bytes -= resolved;
        let packets = report.packets.saturating_sub(self.counted.0);
        let arrived = report.bytes.saturating_sub(self.counted.1).min(resolved);
        self.counted = (self.counted.0.max(report.packets), self.counted.1.max(report.bytes));
        let rtt = now.saturating_sub(sent).saturating_sub(report.held).max(1);
        Some(Learnt { resolved, arrived, lost: (count as u64).saturating_sub(packets), rtt })
    }

    /// Counts all outstanding packets as lost and returns their bytes.
    pub fn give_up(&mut self) -> u64 {
        self.first = self.next();
        self.packets.clear();
        std::mem::take(&mut self.bytes)
    }
}

impl Learnt {
    /// The next part of the feedback to pass to `cm_update`; `None` when all is passed.
    ///
    /// The manager lets one report grow a window by at most two packets (RFC 3465), because a
    /// report about more may be a trick of the receiver. So a delayed report about many packets is
    /// passed in parts of two, as prompt reports would have been. A report of losses is passed at
    /// once.
    pub fn part(&mut self, mtu: u32) -> Option<Update> {
        if self.resolved == 0 {
            return None;
        }
        let lost = self.lost > 0;
        let most = if lost { u64::MAX } else { 2 * u64::from(mtu) };
        let (nsent, nrecd) = (self.resolved.min(most), self.arrived.min(most));
        self.resolved -= nsent;
        self.arrived -= nrecd;
        let congestion = if lost { Congestion::Transient } else { Congestion::None };
        Some(Update { nsent, nrecd, congestion, rtt: std::mem::take(&mut self.rtt) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> Outstanding {
        let mut o = Outstanding::default();
        for n in 0..3 {
            o.sent(100 + n, 1000);
        }
        o
    }

    fn report(highest: u64, packets: u64, bytes: u64, held: u64) -> Report {
        Report { cookie: [0; 16], highest, packets, bytes, held }
    }

    #[test]
    fn gaps_below_the_highest_count_as_lost() {
        let mut o = three();
        let learnt = o.report(200, &report(1, 1, 1000, 9)).unwrap();
        assert_eq!(learnt, Learnt { resolved: 2000, arrived: 1000, lost: 1, rtt: 200 - 101 - 9 });
        assert_eq!((o.bytes(), o.next(), o.oldest()), (1000, 3, Some(102)));
        // The packet was only late, and the next one arrived too.
        let learnt = o.report(200, &report(2, 3, 3000, 0)).unwrap();
        assert_eq!((learnt.resolved, learnt.arrived, learnt.lost), (1000, 1000, 0));
        assert_eq!((o.bytes(), o.oldest()), (0, None));
    }

    #[test]
    fn next_report_makes_up_for_a_lost_one() {
        let mut o = three();
        let learnt = o.report(200, &report(2, 3, 3000, 0)).unwrap();
        assert_eq!((learnt.resolved, learnt.arrived, learnt.lost), (3000, 3000, 0));
        assert_eq!(o.report(201, &report(1, 2, 2000, 0)), None, "an older one");
    }

    #[test]
    fn reports_of_unsent_packets_are_ignored() {
        let mut o = three();
        assert_eq!(o.report(200, &report(3, 3, 3000, 0)), None);
        assert_eq!(o.report(200, &report(u64::MAX, u64::MAX, u64::MAX, 0)), None);
        let learnt = o.report(200, &report(0, u64::MAX, u64::MAX, u64::MAX)).unwrap();
        assert_eq!(learnt, Learnt { resolved: 1000, arrived: 1000, lost: 0, rtt: 1 });
        // Its counters are at their maximum, so later reports cannot add anything.
        let learnt = o.report(200, &report(2, u64::MAX, u64::MAX, 0)).unwrap();
        assert_eq!((learnt.resolved, learnt.arrived, learnt.lost), (2000, 0, 2));
    }

    #[test]
    fn packets_given_up_are_not_reported_again() {
        let mut o = three();
        assert_eq!(o.give_up(), 3000);
        assert_eq!((o.bytes(), o.next()), (0, 3));
        assert_eq!(o.report(300, &report(2, 3, 3000, 0)), None);
        o.sent(400, 500);
        let learnt = o.report(500, &report(3, 4, 3500, 0)).unwrap();
        assert_eq!((learnt.resolved, learnt.arrived, learnt.lost), (500, 500, 0));
    }

    #[test]
    fn large_reports_are_split_and_losses_passed_at_once() {
        let mut learnt = Learnt { resolved: 4500, arrived: 4500, lost: 0, rtt: 7 };
        let parts: Vec<_> = std::iter::from_fn(|| learnt.part(1000)).collect();
        assert_eq!(
            parts.iter().map(|u| (u.nsent, u.nrecd, u.rtt)).collect::<Vec<_>>(),
            [(2000, 2000, 7), (2000, 2000, 0), (500, 500, 0)]
        );
        assert!(parts.iter().all(|u| u.congestion == Congestion::None));
        let mut learnt = Learnt { resolved: 4500, arrived: 3500, lost: 1, rtt: 7 };
        let expected = Update { nsent: 4500, nrecd: 3500, congestion: Congestion::Transient, rtt: 7 };
        assert_eq!((learnt.part(1000), learnt.part(1000)), (Some(expected), None));
    }
}
