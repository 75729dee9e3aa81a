//! The style of rate callbacks: a timer sends, at the rate that callbacks report.

use std::time::Duration;

use libcm::{Client, Event, Thresholds};

use super::lane::{Lane, outcome};
use super::patience::{Patience, SILENCE};
use crate::cm_udp::args::SendArgs;
use crate::cm_udp::failure::Failure;
use crate::cm_udp::outcome::{Calls, Outcome};
use crate::cm_udp::socket::{Clock, TURN};

/// Relative changes of the rate that cause a callback.
const THRESHOLDS: Thresholds =
    Thresholds { rate_down: 0.95, rate_up: 1.05, rtt_down: 0.0, rtt_up: f64::INFINITY };
/// When the timer fires late, the missed packets are sent at once, but only those of the last
/// `LATE` nanoseconds.
const LATE: u64 = 1_000_000;
/// Packets that are sent before a rate is known.
const FIRST: u64 = 2;

pub(super) fn run(args: &SendArgs, client: &mut Client) -> Result<Outcome, Failure> {
    let mut lane = Lane::open(args, client, true)?;
    client.register_update(lane.flow, true)?;
    client.thresh(lane.flow, &THRESHOLDS)?;
    let mut patience = Patience::new(client, std::iter::once(&lane.socket));
    let (clock, mut calls) = (Clock::start(), Calls::default());
    let mut pacer = Pacer { interval: 0, next: 0 };
    while !lane.flight.done(args.count) {
        let mut idle = true;
        while let Some(event) = client.poll()? {
            idle = false;
            if let Event::Update(_, status) = event {
                pacer.tell(u64::from(args.size), status.rate);
            }
        }
        let mut later = SILENCE;
        for _ in 0..TURN {
            if lane.flight.sent() == args.count {
                break;
            }
            if pacer.interval == 0 && lane.flight.outstanding() >= FIRST {
                break;
            }
            let now = clock.now();
            if let Some(wait) = pacer.wait(now) {
                later = Duration::from_nanos(wait).min(SILENCE);
                break;
            }
            idle = false;
            pacer.sent(now);
            lane.send(clock)?;
        }
        idle &= !lane.hear(client, clock, &mut patience, &mut calls)?;
        if !idle {
            continue;
        }
        if later < SILENCE {
            patience.until(&mut calls, later)?;
        } else if !patience.wait(&mut calls, args)? {
            lane.expire(client, &mut calls)?;
        }
    }
    outcome(client, lane.flow, std::iter::once(&lane.flight), calls)
}

/// Computes when the next packet may be sent.
struct Pacer {
    /// Time between two packets, ns; 0: no rate is known.
    interval: u64,
    /// Time of the next packet, ns.
    next: u64,
}

impl Pacer {
    /// Sets the size of packets in bytes, and the rate in bytes a second.
    fn tell(&mut self, size: u64, rate: u64) {
        self.interval = (size * 1_000_000_000 / rate.max(1)).max(1);
    }

    /// Nanoseconds until the next packet; `None`: send it now.
    fn wait(&self, now: u64) -> Option<u64> {
        self.next.checked_sub(now).filter(|wait| *wait > 0)
    }

    fn sent(&mut self, now: u64) {
        self.next = self.next.max(now.saturating_sub(LATE)) + self.interval;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pacer_keeps_the_rate_and_limits_catching_up() {
        let mut pacer = Pacer { interval: 0, next: 0 };
        pacer.tell(1000, 10_000_000);
        assert_eq!(pacer.interval, 100_000);
        let sent = |pacer: &mut Pacer, now| {
            let mut count = 0;
            while pacer.wait(now).is_none() {
                pacer.sent(now);
                count += 1;
            }
            count
        };
        let start = 1 << 40;
        // The packets of one millisecond at once, at first.
        assert_eq!(sent(&mut pacer, start), 11);
        assert_eq!(pacer.wait(start), Some(100_000));
        assert_eq!(sent(&mut pacer, start + 500_000), 5);
        assert_eq!(sent(&mut pacer, start + 1_000_000_000), 11);
        pacer.tell(1000, 0);
        assert_eq!(pacer.interval, 1_000_000_000_000);
    }
}
