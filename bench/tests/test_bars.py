"""Tests of bars: a missed bar fails the bench, and so does a bench without bars."""

from __future__ import annotations

import math

import pytest

from rivulet_bench.bars import Bar, judge


@pytest.mark.parametrize(
    ("measured", "at_most", "reached"),
    [(2.0, False, True), (1.99, False, False), (2.0, True, True), (2.01, True, False)],
)
def test_bar_is_reached_within_bound(measured: float, at_most: bool, reached: bool) -> None:
    bar = Bar("a figure", measured, 2.0, at_most)
    assert bar.reached is reached
    assert judge([bar]) == (0 if reached else 1)


def test_missed_bar_fails_and_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert judge([Bar("good", 3.0, 2.0), Bar("bad", 1.0, 2.0)]) == 1
    said = capsys.readouterr().out
    assert "reached good: 3, at least 2" in said and "MISSED  bad: 1, at least 2" in said


def test_nan_and_no_bars_fail() -> None:
    assert judge([]) == 1
    for at_most in (False, True):
        assert not Bar("a figure", math.nan, 1.0, at_most).reached


def test_growth_is_judged_over_whole_range() -> None:
    from rivulet_bench.figure11 import CONNECTIONS, bars

    def rows(*grown: tuple[int, int]) -> list[dict[str, object]]:
        return [{"repetition": 0, "transport": "rivulet", "connections": n, "bytes": b} for n, b in grown]

    most = CONNECTIONS[-1]
    assert judge(bars(rows((1, 700_000), (most, 900_000)))) == 0
    assert judge(bars(rows((1, 700_000), (most, 1_700_001)))) == 1
    # Growth at a point between counts, although the last point is smaller.
    assert judge(bars(rows((1, 700_000), (100, 1_800_000), (most, 900_000)))) == 1
    # A range too small for the claim.
    assert judge(bars(rows((most, 900_000)))) == 1
    assert judge(bars(rows((1, 700_000), (100, 700_000)))) == 1


def test_missing_attack_fails_bars() -> None:
    from rivulet_bench.host_attack import KEPT, TIMES, bars

    row = {"class": "forged", "kept": KEPT, "attack_per_good": float(TIMES)}
    assert judge(bars([row])) == 0
    assert judge(bars([{**row, "kept": KEPT - 0.01}])) == 1
    assert judge(bars([{**row, "attack_per_good": 0.1}])) == 1
