//! What the receiver's reports say became of which packets: what `cm_update` is told.
//!
//! A packet whose number is below the highest that arrived, and that is not among those counted, was lost; one that comes later
//! after all makes up for a loss in a later report. Only octets that were sent count, whatever a receiver says.

use std::collections::VecDeque;

use libcm::{Congestion, Update};

use crate::Nanos;
use crate::wire::Report;

/// Packets of which nothing is known yet.
#[derive(Debug, Default)]
pub struct Outstanding {
    /// The number of the first of them.
    first: u64,
    packets: VecDeque<(u32, Nanos)>,
    octets: u64,
    /// What the receiver has counted so far: packets, octets.
    counted: (u64, u64),
}

/// What a report says that is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learnt {
    /// Octets of packets of which it is known now what became of them.
    pub resolved: u64,
    /// Octets of them that arrived.
    pub arrived: u64,
    /// Packets that were lost.
    pub lost: u64,
    /// A round trip time, ns, without what the receiver waited.
    pub rtt: Nanos,
}

impl Outstanding {
    /// The number of the next packet.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.first + self.packets.len() as u64
    }

    /// Octets that are outstanding.
    #[must_use]
    pub fn octets(&self) -> u64 {
        self.octets
    }

    /// When the oldest one was sent.
    #[must_use]
    pub fn oldest(&self) -> Option<Nanos> {
        self.packets.front().map(|&(_, sent)| sent)
    }

    /// A packet of so many octets was sent.
    pub fn sent(&mut self, now: Nanos, octets: u32) {
        self.packets.push_back((octets, now));
        self.octets += u64::from(octets);
    }

    /// The receiver reports. None if nothing of it is new, or it is about packets that were not sent.
    pub fn report(&mut self, now: Nanos, report: &Report) -> Option<Learnt> {
        if report.highest < self.first || report.highest >= self.next() {
            return None;
        }
        let count = (report.highest - self.first + 1) as usize;
        let sent = self.packets.get(count - 1)?.1;
        let resolved = self.packets.drain(..count).map(|(octets, _)| u64::from(octets)).sum::<u64>();
        self.first += count as u64;
        self.octets -= resolved;
        let packets = report.packets.saturating_sub(self.counted.0);
        let arrived = report.octets.saturating_sub(self.counted.1).min(resolved);
        self.counted = (self.counted.0.max(report.packets), self.counted.1.max(report.octets));
        let rtt = now.saturating_sub(sent).saturating_sub(report.held).max(1);
        Some(Learnt { resolved, arrived, lost: (count as u64).saturating_sub(packets), rtt })
    }

    /// Nothing is heard: all of it counts as lost. Its octets.
    pub fn give_up(&mut self) -> u64 {
        self.first = self.next();
        self.packets.clear();
        std::mem::take(&mut self.octets)
    }
}

impl Learnt {
    /// What the manager is to be told next of it, until all is told.
    ///
    /// It grows a window by two packets a report at most (RFC 3465), since more may be a receiver's trick; a report that comes for
    /// many packets is told in parts of two, as it would have been told without the delay. One that tells of losses is told at once.
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

    fn report(highest: u64, packets: u64, octets: u64, held: u64) -> Report {
        Report { cookie: [0; 16], highest, packets, octets, held }
    }

    #[test]
    fn what_is_left_out_below_the_highest_was_lost() {
        let mut o = three();
        let learnt = o.report(200, &report(1, 1, 1000, 9)).unwrap();
        assert_eq!(learnt, Learnt { resolved: 2000, arrived: 1000, lost: 1, rtt: 200 - 101 - 9 });
        assert_eq!((o.octets(), o.next(), o.oldest()), (1000, 3, Some(102)));
        // It was only late, and the next one arrived too.
        let learnt = o.report(200, &report(2, 3, 3000, 0)).unwrap();
        assert_eq!((learnt.resolved, learnt.arrived, learnt.lost), (1000, 1000, 0));
        assert_eq!((o.octets(), o.oldest()), (0, None));
    }

    #[test]
    fn a_lost_report_is_made_up_for() {
        let mut o = three();
        let learnt = o.report(200, &report(2, 3, 3000, 0)).unwrap();
        assert_eq!((learnt.resolved, learnt.arrived, learnt.lost), (3000, 3000, 0));
        assert_eq!(o.report(201, &report(1, 2, 2000, 0)), None, "an older one");
    }

    #[test]
    fn a_receiver_cannot_report_what_was_not_sent() {
        let mut o = three();
        assert_eq!(o.report(200, &report(3, 3, 3000, 0)), None);
        assert_eq!(o.report(200, &report(u64::MAX, u64::MAX, u64::MAX, 0)), None);
        let learnt = o.report(200, &report(0, u64::MAX, u64::MAX, u64::MAX)).unwrap();
        assert_eq!(learnt, Learnt { resolved: 1000, arrived: 1000, lost: 0, rtt: 1 });
        // Having said so it has nothing more to say.
        let learnt = o.report(200, &report(2, u64::MAX, u64::MAX, 0)).unwrap();
        assert_eq!((learnt.resolved, learnt.arrived, learnt.lost), (2000, 0, 2));
    }

    #[test]
    fn what_was_given_up_is_not_reported_again() {
        let mut o = three();
        assert_eq!(o.give_up(), 3000);
        assert_eq!((o.octets(), o.next()), (0, 3));
        assert_eq!(o.report(300, &report(2, 3, 3000, 0)), None);
        o.sent(400, 500);
        let learnt = o.report(500, &report(3, 4, 3500, 0)).unwrap();
        assert_eq!((learnt.resolved, learnt.arrived, learnt.lost), (500, 500, 0));
    }

    #[test]
    fn a_report_about_many_is_told_in_parts_and_one_about_losses_at_once() {
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
