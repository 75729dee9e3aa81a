"""Tests of measurements in parallel processes."""

from __future__ import annotations

import os
import time

import pytest

from rivulet_bench.beside import beside
from rivulet_lab import RackError


def test_results_keep_order_of_points() -> None:
    def at(point: int) -> tuple[int, int]:
        time.sleep(0.02 * (3 - point))
        return point, os.getpid()

    found = beside(at, [1, 2, 3])
    assert [point for point, _ in found] == [1, 2, 3]
    assert len({process for _, process in found} | {os.getpid()}) == 4


def test_failed_measurement_ends_others() -> None:
    ended, began = os.pipe()

    def at(point: int) -> None:
        if point == 1:
            os.read(ended, 1)
            raise RackError("no link")
        try:
            os.write(began, b"x")
            time.sleep(3600)
        finally:
            os.write(began, b"y")

    with pytest.raises(RackError, match="RackError: no link"):
        beside(at, [1, 2])
    assert os.read(ended, 1) == b"y"


def test_killed_measurement_is_error() -> None:
    with pytest.raises(RackError, match="without a result"):
        beside(lambda _: os._exit(3), [1])
