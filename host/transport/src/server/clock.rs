//! The round trip times that a server measures, and the clock that they give to a window by Cubic.

use rivulet_packet::{Request, RequestClass, TransportContinuation};

use super::policy::Congestion;
use super::refusal::Refusal;
use crate::cubic;
use crate::cwnd::Piece;
use crate::time::stamp_age;

/// A client must REKEY, which measures anew, when the clock of its window runs this much faster than
/// its round trips: 3/2.
const FAST_CLOCK: (u64, u64) = (3, 2);
/// The same after a loss when it runs this much slower: 5/7. With a queue of one bandwidth-delay
/// product that Cubic keeps filled, round trips are 1.4 to 2 times those of the handshake.
const SLOW_CLOCK: (u64, u64) = (5, 7);
/// Requests are refused when the clock runs twice as fast.
const FALSE_CLOCK: u64 = 2;

/// Smoothed round-trip time from the ToR's clock (RFC 6298 with alpha 1/8). It is advisory,
/// except that a window by Cubic must not grow by a slower clock.
pub fn smoothed(now: u64, tor_id: u16, request: &Request<'_>, c: &TransportContinuation) -> u32 {
    let sample = stamp_age(now, c.time) - request.hold_micros() as i64;
    let usable = request.class == RequestClass::Normal && c.tor_id == tor_id && request.hold != u16::MAX;
    match u32::try_from(sample) {
        Ok(sample) if usable && sample > 0 => {
            if c.srtt == 0 {
                sample
            } else {
                c.srtt - c.srtt / 8 + sample / 8
            }
        }
        _ => c.srtt,
    }
}

/// The clock of a new generation's window by Cubic; 0 for Reno, or if the round trip time is unknown.
pub fn opening(congestion: Congestion, srtt: u32) -> u8 {
    match congestion {
        Congestion::Reno => 0,
        Congestion::Cubic => cubic::clock(srtt).unwrap_or(0),
    }
}

/// Whether the client must REKEY because the clock of its window is unknown or too fast.
///
/// A client that delays its first request gets a long round trip time sealed, by which its window
/// grows faster than its real round trips allow. Later samples, which the server takes itself, show
/// the difference.
///
/// # Errors
/// [`Refusal::Clock`]: the clock is wrong by so much that the client must have ignored the request
/// to REKEY.
pub fn is_rekey_wanted(congestion: Congestion, piece: &Piece, srtt: u32, k: u32) -> Result<bool, Refusal> {
    if srtt == 0 {
        return Ok(false);
    }
    // No clock is faster than the shortest one, so a REKEY could not help below it.
    let srtt = u64::from(srtt).max(cubic::SHORTEST_US);
    if !piece.is_cubic() {
        // A token opened this window before a round trip time was known.
        let is_wanted = congestion == Congestion::Cubic && piece.gain == 0;
        return Ok(is_wanted && piece.cwnd(k) > u32::from(piece.ssthresh));
    }
    let (clock, (times, of)) = (cubic::round_trip_us(piece.gain), FAST_CLOCK);
    if clock > FALSE_CLOCK * srtt && piece.is_ahead_of_reno(k) {
        return Err(Refusal::Clock);
    }
    let is_slow = cubic::is_epoch(piece.gain) && clock * SLOW_CLOCK.1 < srtt * SLOW_CLOCK.0;
    Ok(is_slow || clock * of > srtt * times)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window of 70 packets, 2,000 acknowledgements after a loss at 100.
    fn piece(clock: u8) -> Piece {
        Piece { tcp_base: 0, start_cwnd: 70, ssthresh: 100, gain: clock }
    }

    /// Fails without the check of the clock: the client delayed its first request by a second, and
    /// has 100 ms since.
    #[test]
    fn client_with_delayed_first_request_is_refused() {
        let slow = piece(opening(Congestion::Cubic, 1_000_000) | 1);
        let check = |srtt| is_rekey_wanted(Congestion::Cubic, &slow, srtt, 2000);
        assert_eq!(check(950_000), Ok(false));
        assert_eq!(check(600_000), Ok(true));
        assert_eq!(check(100_000), Err(Refusal::Clock));
        assert_eq!(check(0), Ok(false), "nothing measured");
        assert_eq!(check(1_500_000), Ok(true), "a queue grew");
        let honest = piece(opening(Congestion::Cubic, 100_000) | 1);
        assert!(slow.cwnd(2000) > 2 * honest.cwnd(2000), "what the delay would bring");
        assert_eq!(is_rekey_wanted(Congestion::Cubic, &honest, 100_000, 2000), Ok(false));
    }

    /// In the Reno-friendly region the clock has no effect, so no request is refused.
    #[test]
    fn clock_without_effect_is_not_refused() {
        let slow = piece(opening(Congestion::Cubic, 10_000) | 1);
        assert_eq!(is_rekey_wanted(Congestion::Cubic, &slow, 1_000, 2000), Ok(true));
    }

    /// Fails with a REKEY after each response on a path shorter than the shortest clock.
    #[test]
    fn measured_clock_is_kept() {
        for srtt in (1..2_000).step_by(7).chain((2_000..3_000_000).step_by(9_973)) {
            let piece = piece(opening(Congestion::Cubic, srtt));
            assert_eq!(is_rekey_wanted(Congestion::Cubic, &piece, srtt, 2000), Ok(false), "{srtt} us");
        }
    }

    #[test]
    fn window_without_clock_gets_one_after_slow_start() {
        let wanted = |congestion, start_cwnd| {
            let piece = Piece { tcp_base: 0, start_cwnd, ssthresh: 50, gain: 0 };
            is_rekey_wanted(congestion, &piece, 50_000, 20)
        };
        assert_eq!(wanted(Congestion::Cubic, 10), Ok(false));
        assert_eq!(wanted(Congestion::Cubic, 60), Ok(true));
        assert_eq!(wanted(Congestion::Reno, 60), Ok(false));
    }
}
