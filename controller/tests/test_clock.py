"""The common clock with late events, jumps of the wall clock, restarts and several ToRs."""

import random

from rivulet_controller.clock import FIRST_SAMPLES, OffsetEstimate, RackClock, signed

HOUR = 3_600_000_000


def test_signed_difference_wraps() -> None:
    assert signed((1 << 48) - 5) == -5 and signed(5 - (1 << 48)) == 5
    assert signed(10 - ((1 << 48) - 10)) == 20


def test_first_offset_uses_least_delayed_event() -> None:
    estimate, rng = OffsetEstimate(), random.Random(5)
    for number in range(FIRST_SAMPLES):
        assert estimate.wanted(None, number * 0.01) is None, "one event may have been late"
        late = rng.randint(100_000, 900_000) if number != 3 else 200
        estimate.sample(number * 0.01, HOUR + number * 10_000 + late, number * 10_000)
    assert estimate.wanted(None, 0.05) == HOUR + 200
    alone = OffsetEstimate()
    alone.sample(0.0, HOUR, 0)
    assert alone.wanted(None, 0.5) is None and alone.wanted(None, 1.0) == HOUR, "a quiet rack waits no longer"


def test_offset_within_tolerance_is_kept() -> None:
    estimate = OffsetEstimate()
    estimate.sample(0.0, HOUR, 0)
    assert estimate.wanted(HOUR + 15_000, 0.0) is None
    assert estimate.wanted(HOUR + 25_000, 0.0) == HOUR


def test_rack_clock_follows_reference_not_wall_clock() -> None:
    clock = RackClock()
    assert clock.now(10.0, 1000.0) == 1_000_000_000
    assert clock.now(11.0, 5000.0) == 1_001_000_000, "a jump of the wall clock is nothing"
    clock.observe("tor1", 12.0, 1_002_300_000)
    clock.observe("tor2", 12.0, 77)
    assert clock.reference == "tor1" and clock.now(12.0, 0.0) == 1_002_300_000
    clock.observe("tor1", 13.0, 1_003_000_000)
    assert clock.now(13.0, 0.0) == 1_003_300_000, "a late event does not set the clock back"
    for second in range(14, 60):
        clock.observe("tor1", float(second), 1_003_000_000 + (second - 13) * 999_900)
    assert abs(signed(clock.now(60.0, 0.0) - (1_003_000_000 + 47 * 999_900))) < 5_000, "drift is followed"
