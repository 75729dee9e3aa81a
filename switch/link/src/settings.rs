//! Settings of a link, as numbers and as `key=value` text.

use std::fmt;

const NS_PER_US: u64 = 1_000;
const NS_PER_MS: u64 = 1_000_000;
const NS_PER_S: u64 = 1_000_000_000;

/// Longest delay, jitter or reordering delay (ten minutes), so that sums of times stay in range.
const MAX_TIME: u64 = 600 * NS_PER_S;

/// Largest number of packets in the queue or in flight.
const MAX_PACKETS: usize = 1 << 20;

/// Settings of one direction of a link.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Bits a second; `None` means unlimited, and then no packet waits.
    pub rate: Option<u64>,
    /// One-way delay in nanoseconds, added after the queue.
    pub delay: u64,
    /// Nanoseconds; each packet's delay is uniform in `delay ± jitter`. Order is kept.
    pub jitter: u64,
    /// Probability that a packet is lost, after the queue.
    pub loss: f64,
    /// Probability that a packet arrives twice.
    pub duplicate: f64,
    /// Probability that a packet is delayed by `reorder_by`, so that others overtake it.
    pub reorder: f64,
    /// Extra delay of a reordered packet in nanoseconds.
    pub reorder_by: u64,
    /// Queue length on arrival from which a packet is marked CE (if it is ECN-capable).
    pub ecn: Option<usize>,
    /// Length of the queue in packets, including the one in transmission; further packets are
    /// dropped.
    pub queue: usize,
    /// Largest number of packets in flight after the queue; further ones are dropped. This bounds
    /// the memory of a link without a rate.
    pub flight: usize,
    /// Bytes added to each frame for the rate (24 for Ethernet's preamble, check sequence and gap).
    pub overhead: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            rate: None,
            delay: 0,
            jitter: 0,
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            reorder_by: NS_PER_MS,
            ecn: None,
            queue: 1000,
            flight: 65536,
            overhead: 0,
        }
    }
}

/// Why a setting is invalid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// No `=`.
    #[error("{0:?} is not key=value")]
    Form(String),
    /// Unknown key.
    #[error(
        "unknown setting {0:?} (rate delay jitter loss duplicate reorder reorder-by ecn queue flight overhead)"
    )]
    Key(String),
    /// The value is out of range or malformed.
    #[error("{key}={value:?}: expected {expected}")]
    Value {
        /// The key.
        key: &'static str,
        /// The value given.
        value: String,
        /// The values allowed.
        expected: &'static str,
    },
}

impl Settings {
    /// Whether frames pass unchanged, at once, in order and without limits.
    #[must_use]
    pub fn is_transparent(&self) -> bool {
        self.rate.is_none()
            && self.delay == 0
            && self.jitter == 0
            && self.loss == 0.0
            && self.duplicate == 0.0
            && self.reorder == 0.0
    }

    /// Changes one setting from text such as `rate=100mbit`. After an error nothing has changed.
    pub fn apply(&mut self, text: &str) -> Result<(), SettingError> {
        let (key, value) = text.split_once('=').ok_or_else(|| SettingError::Form(text.into()))?;
        let err = |key, expected| SettingError::Value { key, value: value.into(), expected };
        const TIME: &str = "a time of at most 10 minutes: 5ms, 250us, 1s";
        const CHANCE: &str = "a probability: 0.01 or 1%";
        const PACKETS: &str = "packets, 1 to 1048576";
        match key {
            "rate" => {
                let rate = "bits a second (100mbit, 1gbit) or unlimited";
                self.rate = parse_rate(value).ok_or_else(|| err("rate", rate))?;
            }
            "delay" => self.delay = parse_time(value).ok_or_else(|| err("delay", TIME))?,
            "jitter" => self.jitter = parse_time(value).ok_or_else(|| err("jitter", TIME))?,
            "loss" => self.loss = parse_chance(value).ok_or_else(|| err("loss", CHANCE))?,
            "duplicate" => self.duplicate = parse_chance(value).ok_or_else(|| err("duplicate", CHANCE))?,
            "reorder" => self.reorder = parse_chance(value).ok_or_else(|| err("reorder", CHANCE))?,
            "reorder-by" => self.reorder_by = parse_time(value).ok_or_else(|| err("reorder-by", TIME))?,
            "ecn" if value == "off" => self.ecn = None,
            "ecn" => self.ecn = Some(parse_packets(value).ok_or_else(|| err("ecn", PACKETS))?),
            "queue" => self.queue = parse_packets(value).ok_or_else(|| err("queue", PACKETS))?,
            "flight" => self.flight = parse_packets(value).ok_or_else(|| err("flight", PACKETS))?,
            "overhead" => {
                let bytes = value.parse().ok().filter(|o| *o <= 1024);
                self.overhead = bytes.ok_or_else(|| err("overhead", "bytes, at most 1024"))?;
            }
            _ => return Err(SettingError::Key(key.into())),
        }
        Ok(())
    }

    /// Changes several settings, separated by white space or commas: all or none.
    pub fn apply_all(&mut self, text: &str) -> Result<(), SettingError> {
        let mut changed = self.clone();
        for one in text.split([' ', ',', '\t']).filter(|s| !s.is_empty()) {
            changed.apply(one)?;
        }
        *self = changed;
        Ok(())
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rate {
            Some(rate) => write!(f, "rate={rate}bit")?,
            None => f.write_str("rate=unlimited")?,
        }
        write!(f, " delay={}ns jitter={}ns", self.delay, self.jitter)?;
        write!(f, " loss={} duplicate={}", self.loss, self.duplicate)?;
        write!(f, " reorder={} reorder-by={}ns", self.reorder, self.reorder_by)?;
        match self.ecn {
            Some(ecn) => write!(f, " ecn={ecn}")?,
            None => f.write_str(" ecn=off")?,
        }
        write!(f, " queue={} flight={} overhead={}", self.queue, self.flight, self.overhead)
    }
}

/// Splits a number from its unit.
fn split_unit(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    Some((number, &text[end..]))
}

#[allow(clippy::option_option)]
fn parse_rate(text: &str) -> Option<Option<u64>> {
    if text == "unlimited" {
        return Some(None);
    }
    let (number, unit) = split_unit(text)?;
    let scale = match unit.to_ascii_lowercase().as_str() {
        "" | "bit" | "bps" => 1.0,
        "k" | "kbit" => 1e3,
        "m" | "mbit" => 1e6,
        "g" | "gbit" => 1e9,
        _ => return None,
    };
    let rate = number * scale;
    (1.0..=1e12).contains(&rate).then_some(Some(rate as u64))
}

fn parse_time(text: &str) -> Option<u64> {
    let (number, unit) = split_unit(text)?;
    let scale = match unit {
        "ns" => 1,
        "us" => NS_PER_US,
        "ms" => NS_PER_MS,
        "s" => NS_PER_S,
        "" if number == 0.0 => 1,
        _ => return None,
    };
    let time = number * scale as f64;
    (0.0..=MAX_TIME as f64).contains(&time).then_some(time.round() as u64)
}

fn parse_chance(text: &str) -> Option<f64> {
    let (number, unit) = split_unit(text)?;
    let chance = match unit {
        "" => number,
        "%" => number / 100.0,
        _ => return None,
    };
    (0.0..=1.0).contains(&chance).then_some(chance)
}

fn parse_packets(text: &str) -> Option<usize> {
    text.parse().ok().filter(|n| (1..=MAX_PACKETS).contains(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_and_written() {
        let mut s = Settings::default();
        s.apply_all("rate=100mbit,delay=5ms jitter=250us loss=1% duplicate=0.02 ecn=20 queue=64 overhead=24")
            .unwrap();
        assert_eq!((s.rate, s.delay, s.jitter), (Some(100_000_000), 5 * NS_PER_MS, 250 * NS_PER_US));
        assert_eq!((s.loss, s.duplicate, s.ecn, s.queue, s.overhead), (0.01, 0.02, Some(20), 64, 24));
        let mut again = Settings::default();
        again.apply_all(&s.to_string()).unwrap();
        assert_eq!(again, s);
        s.apply_all("rate=unlimited ecn=off delay=0").unwrap();
        assert_eq!((s.rate, s.ecn, s.delay), (None, None, 0));
    }

    #[test]
    fn invalid_settings_are_errors_and_change_nothing() {
        for text in [
            "rate",
            "rate=",
            "rate=0",
            "rate=fast",
            "rate=1e9",
            "rate=-1",
            "rate=9999gbit",
            "delay=5",
            "delay=-1ms",
            "delay=11m",
            "delay=601s",
            "loss=101%",
            "loss=2",
            "loss=x",
            "queue=0",
            "queue=99999999",
            "ecn=0",
            "overhead=5000",
            "speed=1",
            "=",
            "delay=1ms loss=7",
        ] {
            let mut s = Settings::default();
            assert!(s.apply_all(text).is_err(), "{text}");
            assert_eq!(s, Settings::default(), "{text}");
        }
    }
}
