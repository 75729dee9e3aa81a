"""Tests of the statistics of the figures."""

from __future__ import annotations

import math
import random

import pytest

from rivulet_bench.stats import interval, percentile
from rivulet_demo.fairness import jain


def test_interval_covers_mean_in_95_percent_of_samples() -> None:
    rng = random.Random(5)
    covered = 0
    for _ in range(2000):
        mean, half = interval([rng.gauss(10.0, 3.0) for _ in range(6)])
        covered += abs(mean - 10.0) <= half
    assert 0.93 <= covered / 2000 <= 0.97


def test_one_value_has_infinite_interval_and_none_is_error() -> None:
    assert interval([3.0]) == (3.0, math.inf)
    with pytest.raises(ValueError, match="no values"):
        interval([])


def test_percentiles_are_measured_values() -> None:
    values = [float(n) for n in range(1, 101)]
    random.Random(1).shuffle(values)
    assert (percentile(values, 50), percentile(values, 99), percentile(values, 100)) == (50.0, 99.0, 100.0)
    assert percentile([7.0], 99) == 7.0


def test_jains_index() -> None:
    assert jain([1.0, 1.0]) == pytest.approx(1.0)
    assert jain([1.0, 0.0]) == pytest.approx(0.5)
    assert jain([0.0, 0.0]) == 0.0
