//! Counts what arrived of a stream and decides when to report.

use crate::Nanos;
use crate::journal::Received;
use crate::layers::MOST;
use crate::time::{MILLISECOND, SECOND};
use crate::wire::{Cookie, Feedback, Report};

/// Numbers up to this far below the highest are tracked one by one.
const WINDOW: u64 = 128;
/// Interval covered by a journal line.
const LINE: Nanos = 100 * MILLISECOND;

/// The receiving end of a stream.
#[derive(Debug)]
pub struct Receiver {
    cookie: Cookie,
    feedback: Feedback,
    /// The highest number, and when it arrived.
    highest: Option<(u64, Nanos)>,
    /// Bit n: the packet n below the highest arrived.
    seen: u128,
    packets: u64,
    bytes: u64,
    again: u64,
    layers: [u64; MOST],
    layer: Option<u8>,
    switches: u64,
    reports: u64,
    /// Unreported packets, and when the first of them arrived.
    unreported: (u64, Nanos),
    /// Smallest difference seen between the two clocks, ns.
    least: i128,
    line: Line,
}

#[derive(Debug, Default)]
struct Line {
    since: Nanos,
    packets: u64,
    bytes: u64,
    delay: u128,
    longest: u128,
}

impl Receiver {
    /// Creates the receiver of a session.
    #[must_use]
    pub fn new(cookie: Cookie, feedback: Feedback) -> Receiver {
        Receiver {
            cookie,
            feedback,
            highest: None,
            seen: 0,
            packets: 0,
            bytes: 0,
            again: 0,
            layers: [0; MOST],
            layer: None,
            switches: 0,
            reports: 0,
            unreported: (0, 0),
            least: i128::MAX,
            line: Line::default(),
        }
    }

    /// Whether a packet arrived.
    #[must_use]
    pub fn began(&self) -> bool {
        self.highest.is_some()
    }

    /// Records a datagram of this many bytes. Returns whether it is new, and an event if the layer
    /// changed.
    pub fn data(
        &mut self,
        now: Nanos,
        layer: u8,
        number: u64,
        sent: Nanos,
        bytes: usize,
    ) -> (bool, Option<Received>) {
        if !self.fresh(now, number) {
            self.again += 1;
            return (false, None);
        }
        let bytes = bytes as u64;
        self.packets += 1;
        self.bytes += bytes;
        self.layers[usize::from(layer).min(MOST - 1)] += 1;
        if self.unreported.0 == 0 {
            self.unreported.1 = now;
        }
        self.unreported.0 += 1;
        self.note(now, sent, bytes);
        // A reordered packet does not show the layer sent now.
        let newest = self.highest.is_some_and(|(highest, _)| highest == number);
        if !newest || self.layer == Some(layer) {
            return (true, None);
        }
        let from = self.layer.replace(layer);
        self.switches += u64::from(from.is_some());
        (true, Some(Received::Layer { from, to: layer, number, sent }))
    }

    fn fresh(&mut self, now: Nanos, number: u64) -> bool {
        match self.highest {
            None => (self.highest, self.seen) = (Some((number, now)), 1),
            Some((highest, _)) if number > highest => {
                let by = number - highest;
                self.seen = if by < WINDOW { self.seen << by | 1 } else { 1 };
                self.highest = Some((number, now));
            }
            Some((highest, _)) => {
                let below = highest - number;
                if below >= WINDOW || self.seen >> below & 1 == 1 {
                    return false;
                }
                self.seen |= 1 << below;
            }
        }
        true
    }

    fn note(&mut self, now: Nanos, sent: Nanos, bytes: u64) {
        let took = i128::from(now) - i128::from(sent);
        self.least = self.least.min(took);
        let delay = (took - self.least) as u128;
        let line = &mut self.line;
        if line.packets == 0 && line.since == 0 {
            line.since = now;
        }
        line.packets += 1;
        line.bytes += bytes;
        line.delay += delay;
        line.longest = line.longest.max(delay);
    }

    /// When the next action is due.
    #[must_use]
    pub fn due(&self) -> Option<Nanos> {
        let report = (self.unreported.0 > 0)
            .then(|| self.unreported.1 + Nanos::from(self.feedback.delay_ms) * MILLISECOND);
        let line = (self.line.since > 0).then(|| self.line.since + LINE);
        [report, line].into_iter().flatten().min()
    }

    /// The report, if one is due.
    pub fn report(&mut self, now: Nanos) -> Option<Report> {
        let (count, first) = self.unreported;
        let late = now >= first + Nanos::from(self.feedback.delay_ms) * MILLISECOND;
        if count == 0 || !(count >= u64::from(self.feedback.every) || late) {
            return None;
        }
        self.again(now)
    }

    /// Repeats the last report, or makes one now, for a sender that may have missed it. `None`
    /// before anything arrived.
    pub fn again(&mut self, now: Nanos) -> Option<Report> {
        let (highest, at) = self.highest?;
        self.unreported.0 = 0;
        self.reports += 1;
        let held = now.saturating_sub(at);
        let Receiver { cookie, packets, bytes, .. } = *self;
        Some(Report { cookie, highest, packets, bytes, held })
    }

    /// The journal line of what arrived, if one is due.
    pub fn line(&mut self, now: Nanos) -> Option<Received> {
        let passed = now.saturating_sub(self.line.since);
        if self.line.since == 0 || passed < LINE {
            return None;
        }
        let Line { packets, bytes, delay, longest, .. } =
            std::mem::replace(&mut self.line, Line { since: now, ..Line::default() });
        let ms = |ns: u128| ns as f64 / MILLISECOND as f64;
        Some(Received::Arrived {
            layer: self.layer.unwrap_or(0),
            packets,
            bytes,
            rate: (u128::from(bytes) * 8 * u128::from(SECOND) / u128::from(passed)) as u64,
            delay_ms: ms(delay / u128::from(packets.max(1))),
            longest_ms: ms(longest),
        })
    }

    /// The final event.
    #[must_use]
    pub fn end(&self) -> Received {
        let missing =
            self.highest.map_or(0, |(highest, _)| highest.saturating_add(1).saturating_sub(self.packets));
        Received::End {
            packets: self.packets,
            bytes: self.bytes,
            missing,
            again: self.again,
            layers: self.layers.to_vec(),
            switches: self.switches,
            reports: self.reports,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receiver(every: u16, delay_ms: u16) -> Receiver {
        Receiver::new([7; 16], Feedback { every, delay_ms })
    }

    fn arrive(r: &mut Receiver, now: Nanos, number: u64) -> bool {
        r.data(now, 0, number, now, 1000).0
    }

    #[test]
    fn duplicates_and_too_old_packets_are_not_counted() {
        let mut r = receiver(1, 0);
        for (number, new) in
            [(5, true), (5, false), (3, true), (3, false), (4, true), (200, true), (72, false), (73, true)]
        {
            assert_eq!(arrive(&mut r, 1, number), new, "{number}");
        }
        let Received::End { packets, bytes, missing, again, .. } = r.end() else { panic!() };
        assert_eq!((packets, bytes, missing, again), (5, 5000, 196, 3));
        assert_eq!(
            r.report(9),
            Some(Report { cookie: [7; 16], highest: 200, packets: 5, bytes: 5000, held: 8 })
        );
    }

    #[test]
    fn reports_after_count_or_delay() {
        let mut r = receiver(3, 2000);
        assert_eq!((r.report(1), r.again(1), r.due()), (None, None, None));
        arrive(&mut r, SECOND, 0);
        assert!(r.report(SECOND + 1999 * MILLISECOND).is_none());
        assert!(r.due().unwrap() <= 3 * SECOND);
        assert_eq!(r.report(3 * SECOND).map(|r| (r.packets, r.held)), Some((1, 2 * SECOND)));
        assert!(r.report(9 * SECOND).is_none(), "nothing is new");
        for n in 1..3 {
            arrive(&mut r, 10 * SECOND, n);
            assert!(r.report(10 * SECOND).is_none());
        }
        arrive(&mut r, 10 * SECOND + 5, 3);
        assert_eq!(r.report(10 * SECOND + 7).map(|r| (r.packets, r.highest, r.held)), Some((4, 3, 2)));
        let mut each = receiver(1, 0);
        arrive(&mut each, 1, 0);
        assert!(each.report(1).is_some());
    }

    #[test]
    fn a_layer_changes_with_the_newest_packet_alone() {
        let mut r = receiver(1, 0);
        let mut changed = |number, layer| match r.data(9, layer, number, 4, 10).1 {
            Some(Received::Layer { from, to, .. }) => Some((from, to)),
            _ => None,
        };
        assert_eq!(changed(0, 1), Some((None, 1)));
        assert_eq!(changed(2, 1), None);
        assert_eq!(changed(3, 2), Some((Some(1), 2)));
        assert_eq!(changed(1, 1), None, "it was overtaken");
        assert_eq!(changed(4, 200), Some((Some(2), 200)));
        let Received::End { layers, switches, .. } = r.end() else { panic!() };
        assert_eq!((layers[1], layers[2], layers[MOST - 1], switches), (3, 1, 1, 2));
    }

    #[test]
    fn delay_is_measured_beyond_the_shortest_transit() {
        let mut r = receiver(1, 0);
        // The sender's clock is ahead.
        r.data(100 * MILLISECOND, 0, 0, 500 * MILLISECOND, 1000);
        r.data(110 * MILLISECOND, 0, 1, 500 * MILLISECOND, 1000);
        assert!(r.line(199 * MILLISECOND).is_none());
        let Some(Received::Arrived { packets, bytes, rate, delay_ms, longest_ms, .. }) =
            r.line(200 * MILLISECOND)
        else {
            panic!()
        };
        assert_eq!((packets, bytes, rate, delay_ms, longest_ms), (2, 2000, 160_000, 5.0, 10.0));
        let Some(Received::Arrived { packets, rate, .. }) = r.line(300 * MILLISECOND) else { panic!() };
        assert_eq!((packets, rate), (0, 0));
    }
}
