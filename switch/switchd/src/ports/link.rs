//! Converts link settings between the service for ports and the link.

use rivulet_link::Settings;
use rivulet_p4rt::{Link, PortError};

/// Converts the service's settings. Its jitter is added to the delay, while the link's is a range
/// around it.
pub(super) fn settings(l: &Link) -> Result<Settings, PortError> {
    let longest = 600_000_000_000;
    let chance = |name: &str, p: f64| {
        (0.0..=1.0).contains(&p).then_some(p).ok_or_else(|| PortError::Invalid(format!("{name} {p}: 0 to 1")))
    };
    if l.delay_ns > longest || l.jitter_ns > longest || l.rate_bps > 1_000_000_000_000 {
        return Err(PortError::Invalid("delay and jitter: at most 10 minutes; rate: at most 1 Tb/s".into()));
    }
    let default = Settings::default();
    let packets = |n: u32| (n > 0).then_some(n.min(1 << 20) as usize);
    Ok(Settings {
        rate: (l.rate_bps > 0).then_some(l.rate_bps),
        delay: l.delay_ns + l.jitter_ns / 2,
        jitter: l.jitter_ns / 2,
        loss: chance("loss", l.loss)?,
        duplicate: chance("duplicate", l.duplicate)?,
        reorder: chance("reorder", l.reorder)?,
        queue: packets(l.queue_packets).unwrap_or(default.queue),
        ecn: packets(l.ecn_packets),
        ..default
    })
}

/// The inverse of [`settings`].
pub(super) fn link_settings(s: &Settings) -> Link {
    let jitter = s.jitter.min(s.delay);
    Link {
        rate_bps: s.rate.unwrap_or(0),
        delay_ns: s.delay - jitter,
        jitter_ns: 2 * jitter,
        loss: s.loss,
        duplicate: s.duplicate,
        reorder: s.reorder,
        queue_packets: s.queue as u32,
        ecn_packets: s.ecn.unwrap_or(0) as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_the_service_go_there_and_back() {
        let link = Link {
            rate_bps: 10_000_000,
            delay_ns: 5_000_000,
            jitter_ns: 1_000_000,
            loss: 0.01,
            duplicate: 0.02,
            reorder: 0.03,
            queue_packets: 50,
            ecn_packets: 20,
        };
        assert_eq!(link_settings(&settings(&link).unwrap()), link);
        assert!(settings(&Link::default()).unwrap().is_transparent());
        for bad in [
            Link { loss: 1.5, ..link },
            Link { reorder: f64::NAN, ..link },
            Link { delay_ns: u64::MAX, ..link },
            Link { rate_bps: u64::MAX, ..link },
        ] {
            assert!(matches!(settings(&bad), Err(PortError::Invalid(_))), "{bad:?}");
        }
    }
}
