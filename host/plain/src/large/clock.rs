//! Measures the round-trip time (RFC 6298), and computes timeouts from it.

/// Time in microseconds.
pub(crate) type Time = u64;

const MILLISECOND: Time = 1000;
/// Assumed round-trip time before the first measurement. The client of a connection that other
/// replicas began may be waiting, so it is short.
const UNKNOWN: Time = 100 * MILLISECOND;
const UNKNOWN_FIRST: Time = 400 * MILLISECOND;
/// Shortest pause before a probe, and between timeouts; a delayed acknowledgement takes 40 ms.
const LEAST_PROBE: Time = 10 * MILLISECOND;
const DELAYED: Time = 45 * MILLISECOND;
const LEAST_TIMEOUT: Time = 200 * MILLISECOND;
/// Longest pause between the first timeouts of a silent client; later pauses double.
const LONGEST: Time = 2_000 * MILLISECOND;
const FIRST: u32 = 9;
/// Longest pause between probes of a closed window.
const LONGEST_CLOSED: Time = 30_000 * MILLISECOND;

#[derive(Clone, Debug, Default)]
pub(crate) struct Clock {
    /// A byte and the time at which it was sent, to measure the round trip.
    timed: Option<(u32, Time)>,
    srtt: Time,
    rttvar: Time,
}

impl Clock {
    /// Notes that the bytes up to `to` are sent now.
    pub(crate) fn sent(&mut self, to: u32, now: Time) {
        self.timed.get_or_insert((to, now));
    }

    /// Stops the measurement, because the acknowledgement may be for a retransmission.
    pub(crate) fn forget(&mut self) {
        self.timed = None;
    }

    pub(crate) fn acknowledged(&mut self, at: u32, now: Time) {
        let Some((_, then)) = self.timed.take_if(|(octet, _)| at >= *octet) else { return };
        let sample = now.saturating_sub(then).max(1);
        if self.srtt == 0 {
            (self.srtt, self.rttvar) = (sample, sample / 2);
        } else {
            self.rttvar = (3 * self.rttvar + self.srtt.abs_diff(sample)) / 4;
            self.srtt = (7 * self.srtt + sample) / 8;
        }
    }

    /// Time by which later data may overtake earlier data (RFC 8985 section 6.2.4): quarters of a
    /// round trip, at least one and at most four. The measured round trip may be of another
    /// replica's data, so a millisecond is the minimum.
    pub(crate) fn reordering(&self, quarters: u32) -> Time {
        let round = if self.srtt == 0 { UNKNOWN } else { self.srtt };
        (round * Time::from(quarters.clamp(1, 4)) / 4).max(MILLISECOND)
    }

    /// Bytes of a window that are sent in about half a millisecond; 0 while the round-trip
    /// time is unknown.
    pub(crate) fn octets_of_a_moment(&self, window: u32) -> u32 {
        let octets = (Time::from(window) * MILLISECOND * 3 / 5).checked_div(self.srtt);
        octets.map_or(0, |octets| octets.min(Time::from(window)) as u32)
    }

    fn timeout(&self) -> Time {
        if self.srtt == 0 { LEAST_TIMEOUT } else { (self.srtt + 4 * self.rttvar).max(LEAST_TIMEOUT) }
    }

    /// Time until a silent client is probed; `alone`: a single segment is in flight, and its
    /// acknowledgement may be delayed.
    pub(crate) fn probe(&self, first: bool, alone: bool) -> Time {
        let round = match self.srtt {
            0 if first => UNKNOWN_FIRST,
            0 => UNKNOWN,
            srtt => return (2 * srtt + if alone { DELAYED } else { 0 }).clamp(LEAST_PROBE, self.timeout()),
        };
        2 * round
    }

    /// The pause before the next timeout after `timeouts` consecutive ones; `closed`: the client's
    /// window is closed.
    pub(crate) fn pause(&self, timeouts: u32, closed: bool) -> Time {
        if closed {
            (self.timeout() << timeouts.min(8)).min(LONGEST_CLOSED)
        } else {
            let longer = timeouts.saturating_sub(FIRST).min(10);
            (self.timeout() << timeouts.saturating_sub(1).min(6)).min(LONGEST) << longer
        }
    }
}
