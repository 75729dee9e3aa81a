//! A layered stream: the same content at several rates, one of which is sent (the paper's §3.4).
//!
//! *Request and callback* ([`Alf`], Figure 8): each grant chooses the layer by the rate at that
//! moment. Packets are sent as fast as they are granted, and the receiver buffers them. *Rate
//! callback* ([`Clocked`], Figure 9): the application's clock sends one period of content at the
//! layer's rate, and the layer changes when the manager reports that the rate crossed a threshold.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use libcm::{Status, Thresholds};

use crate::source::{Dropped, Next, Source};
use crate::time::SECOND;
use crate::wire::HEADER;
use crate::{Nanos, time::MILLISECOND};

/// Largest number of layers.
pub const MOST: usize = 16;

/// Rates of the layers, bits a second, rising.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layers(Arc<[u64]>);

/// Why a list of layers is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadLayers {
    /// An entry is not a rate.
    #[error("`{0}` is not a rate: give bits a second, such as 250k or 2M")]
    Rate(String),
    /// Each must be more than the one before.
    #[error("the rates of layers must rise, and `{0}` is not more than the one before")]
    Order(String),
    /// Too few or too many.
    #[error("{0} layers: give 1 to {MOST}")]
    Count(usize),
}

impl FromStr for Layers {
    type Err = BadLayers;

    fn from_str(text: &str) -> Result<Layers, BadLayers> {
        let mut rates: Vec<u64> = vec![];
        for word in text.split(',') {
            let rate = parse_rate(word).ok_or_else(|| BadLayers::Rate(word.to_owned()))?;
            if rates.last().is_some_and(|last| *last >= rate) {
                return Err(BadLayers::Order(word.to_owned()));
            }
            rates.push(rate);
        }
        if rates.len() > MOST { Err(BadLayers::Count(rates.len())) } else { Ok(Layers(rates.into())) }
    }
}

impl fmt::Display for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.0.iter().map(u64::to_string).collect();
        f.write_str(&words.join(","))
    }
}

/// Parses a rate in bits a second, from 1,000 to 100 Gb/s.
fn parse_rate(word: &str) -> Option<u64> {
    let (digits, unit) = match word.as_bytes().last()? {
        b'k' => (&word[..word.len() - 1], 1_000),
        b'M' => (&word[..word.len() - 1], 1_000_000),
        _ => (word, 1),
    };
    // `parse` alone would accept a sign.
    let number = digits.bytes().all(|c| c.is_ascii_digit()).then(|| digits.parse::<u64>().ok())??;
    number.checked_mul(unit).filter(|rate| (1_000..=100_000_000_000).contains(rate))
}

impl Layers {
    /// Rate of a layer in bits a second; of the highest layer if there is no such number.
    #[must_use]
    pub fn rate(&self, layer: u8) -> u64 {
        self.0[usize::from(layer).min(self.0.len() - 1)]
    }

    /// The highest layer within a rate in bytes a second, or the lowest layer.
    #[must_use]
    pub fn fitting(&self, rate: u64) -> u8 {
        let fit = self.0.iter().take_while(|bits| **bits <= rate.saturating_mul(8)).count();
        fit.saturating_sub(1) as u8
    }
}

/// Request and callback.
#[derive(Debug)]
pub struct Alf {
    layers: Layers,
}

impl Alf {
    /// Creates a source with these layers.
    #[must_use]
    pub fn new(layers: Layers) -> Alf {
        Alf { layers }
    }
}

impl Source for Alf {
    /// One at a time, as in the paper: the next request follows when this datagram is sent.
    fn ready(&self) -> u32 {
        1
    }

    fn asks(&self) -> bool {
        true
    }

    fn next(&mut self, _now: Nanos, status: Option<Status>, room: &mut [u8]) -> Option<Next> {
        let layer = status.map_or(0, |status| self.layers.fitting(status.rate));
        Some(Next { layer, bytes: room.len() })
    }
}

/// Settings of the rate callback.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clock {
    /// Nanoseconds of content sent at a time.
    pub period: Nanos,
    /// Callback when the rate is at most this times the last reported one (`cm_thresh`).
    pub down: f64,
    /// Callback when the rate is at least this times the last reported one.
    pub up: f64,
}

impl Default for Clock {
    fn default() -> Clock {
        Clock { period: 200 * MILLISECOND, down: 0.75, up: 1.25 }
    }
}

/// Periods of content that may wait for grants.
const BUFFER: u64 = 2;

/// Rate callback.
#[derive(Debug)]
pub struct Clocked {
    layers: Layers,
    clock: Clock,
    layer: u8,
    /// The last reported rate in bytes a second.
    reported: u64,
    due: Nanos,
    /// Bytes of a datagram, header and content.
    size: u64,
    /// Bytes due by the clock that do not fill a datagram yet.
    rest: u64,
    /// The layers of the datagrams that wait for grants.
    waiting: VecDeque<u8>,
    dropped: u64,
}

impl Clocked {
    /// Creates a source with these layers and datagrams of `size` bytes; its clock starts at `now`.
    #[must_use]
    pub fn new(layers: Layers, clock: Clock, size: usize, now: Nanos) -> Clocked {
        let (size, waiting) = (size.max(HEADER + 1) as u64, VecDeque::new());
        Clocked { layers, clock, layer: 0, reported: 0, due: now, size, rest: 0, waiting, dropped: 0 }
    }

    /// Bytes of one period at a layer's rate.
    fn content(&self, layer: u8) -> u64 {
        (u128::from(self.layers.rate(layer)) * u128::from(self.clock.period) / u128::from(8 * SECOND)) as u64
    }
}

impl Source for Clocked {
    fn ready(&self) -> u32 {
        self.waiting.len() as u32
    }

    fn next(&mut self, _now: Nanos, _status: Option<Status>, room: &mut [u8]) -> Option<Next> {
        let layer = self.waiting.pop_front()?;
        Some(Next { layer, bytes: room.len() })
    }

    /// The downward callback comes at the layer's own rate if that is closer than the factor:
    /// otherwise a layer that no longer fits would be sent on. Upwards only the factor counts, so
    /// that the layer does not follow each probe of the controller.
    fn thresholds(&self) -> Option<Thresholds> {
        let Clock { down, up, .. } = self.clock;
        let edge = self.layers.rate(self.layer) as f64 / (self.reported.saturating_mul(8).max(1)) as f64;
        let down = if edge <= 1.0 { down.max(edge) } else { down };
        Some(Thresholds { rate_down: down, rate_up: up, rtt_down: 0.0, rtt_up: f64::INFINITY })
    }

    /// On a lower layer, keeps the same playing time of content: the higher layer's datagrams would
    /// leave too slowly.
    fn changed(&mut self, _now: Nanos, status: &Status) {
        let (before, layer) = (self.layer, self.layers.fitting(status.rate));
        (self.layer, self.reported) = (layer, status.rate);
        if layer < before && !self.waiting.is_empty() {
            let had = self.waiting.len();
            let share = self.layers.rate(layer) as f64 / self.layers.rate(before) as f64;
            let keep = ((had as f64 * share) as usize).max(1);
            self.waiting.truncate(keep);
            self.waiting.iter_mut().for_each(|one| *one = layer);
            self.dropped += (had - self.waiting.len()) as u64;
        }
    }

    fn due(&self) -> Option<Nanos> {
        Some(self.due)
    }

    fn tick(&mut self, now: Nanos) {
        if now < self.due {
            return;
        }
        // A clock that was late for long skips the missed periods instead of sending them at once.
        self.due = (self.due + self.clock.period).max(now);
        self.rest += self.content(self.layer);
        let most = (BUFFER * self.content(self.layer) / self.size).max(1) as usize;
        while self.rest >= self.size {
            self.rest -= self.size;
            if self.waiting.len() < most {
                self.waiting.push_back(self.layer);
            } else {
                self.dropped += 1;
            }
        }
    }

    fn dropped(&self) -> Dropped {
        Dropped { buffer: self.dropped, ..Dropped::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAPER: &str = "250k,500k,1M,2M";

    fn status(bits: u64) -> Status {
        Status { rate: bits / 8, rtt: 1, ..Status::default() }
    }

    fn layers() -> Layers {
        PAPER.parse().unwrap()
    }

    #[test]
    fn rates_parse_and_errors_name_the_entry() {
        assert_eq!(layers().to_string(), "250000,500000,1000000,2000000");
        assert_eq!("64000".parse::<Layers>().unwrap().rate(9), 64_000);
        for bad in ["", "1M,", "x", "+1M", "-1", "999", "200000M", "18446744073709551615k", "1.5M", "k", "1é"]
        {
            assert!(matches!(bad.parse::<Layers>(), Err(BadLayers::Rate(_))), "{bad}");
        }
        assert_eq!("1M,1000k".parse::<Layers>(), Err(BadLayers::Order("1000k".into())));
        let many: Vec<String> = (1..=17).map(|n| format!("{n}k")).collect();
        assert_eq!(many.join(",").parse::<Layers>(), Err(BadLayers::Count(17)));
        assert!(many[..16].join(",").parse::<Layers>().is_ok());
    }

    #[test]
    fn the_highest_layer_that_fits_is_taken_and_the_lowest_where_none_does() {
        let layers = layers();
        for (bits, layer) in
            [(0, 0), (249_999, 0), (499_999, 0), (500_000, 1), (1_999_999, 2), (2_000_000, 3), (u64::MAX, 3)]
        {
            assert_eq!(layers.fitting(bits.div_ceil(8) - u64::from(bits % 8 != 0)), layer, "{bits}");
        }
    }

    #[test]
    fn by_request_each_grant_is_for_the_layer_of_the_moment() {
        let mut alf = Alf::new(layers());
        let mut sent = |bits: Option<u64>| alf.next(0, bits.map(status), &mut [0; 1000]).unwrap();
        assert_eq!(sent(None), Next { layer: 0, bytes: 1000 });
        assert_eq!(sent(Some(1_000_000)).layer, 2);
        assert_eq!(sent(Some(999_999)).layer, 1);
        assert_eq!(sent(Some(5_000_000)).layer, 3);
    }

    fn clocked() -> Clocked {
        Clocked::new(layers(), Clock { period: SECOND / 5, ..Clock::default() }, 1000, 50)
    }

    fn take(source: &mut Clocked) -> Vec<u8> {
        std::iter::from_fn(|| source.next(0, None, &mut [0; 980])).map(|next| next.layer).collect()
    }

    #[test]
    fn by_callback_a_period_brings_the_layers_bytes_in_whole_datagrams() {
        let mut source = clocked();
        source.tick(49);
        assert_eq!(source.ready(), 0);
        for n in 0..4 {
            let due = source.due().unwrap();
            assert_eq!(due, 50 + n * SECOND / 5);
            source.tick(due);
            // 6,250 bytes a period.
            assert_eq!(take(&mut source).len(), [6, 6, 6, 7][n as usize]);
        }
        source.changed(0, &status(2_000_000));
        source.tick(source.due().unwrap());
        assert_eq!(take(&mut source), [3; 50]);
        // After a second of delay there are no five periods at once.
        source.tick(10 * SECOND);
        assert_eq!(take(&mut source).len(), 50);
        assert_eq!(source.due(), Some(10 * SECOND));
    }

    #[test]
    fn callback_comes_before_the_rate_falls_below_the_layers() {
        let mut source = clocked();
        let mut down = |bits| {
            source.changed(0, &status(bits));
            let thresholds = source.thresholds().unwrap();
            assert_eq!(thresholds.rate_up, 1.25);
            thresholds.rate_down
        };
        assert_eq!(down(1_250_000), 0.8);
        assert_eq!(down(1_000_000), 1.0);
        assert_eq!(down(1_900_000), 0.75, "the factor comes first");
        assert_eq!(down(200_000), 0.75, "no layer is lower");
    }

    #[test]
    fn waiting_datagrams_shrink_when_the_layer_falls() {
        let mut source = clocked();
        source.changed(0, &status(2_000_000));
        source.tick(50);
        source.changed(0, &status(600_000));
        assert_eq!(source.dropped().buffer, 38);
        assert_eq!(take(&mut source), [1; 12]);
        // A change to a higher layer keeps the waiting datagrams.
        source.tick(source.due().unwrap());
        source.changed(0, &status(1_000_000));
        assert_eq!(take(&mut source), [1; 12]);
    }

    #[test]
    fn ungranted_content_is_bounded() {
        let mut source = clocked();
        for _ in 0..100 {
            source.tick(source.due().unwrap());
        }
        assert_eq!((source.ready(), source.dropped().buffer), (12, 625 - 12));
    }
}
