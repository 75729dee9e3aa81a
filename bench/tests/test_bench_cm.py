"""Tests of the bars of the Congestion Manager's benches."""

from __future__ import annotations

from typing import Any

import pytest

from rivulet_bench import cm_costs, cm_kills, cm_liar
from rivulet_bench.bars import judge


def row(size: int, tcp: float, noconnect: float, bulk: float) -> dict[str, Any]:
    return {"size": size, "tcp": (tcp, 0.1), "alf-noconnect": (noconnect, 0.1), "bulk": (bulk, 0.1)}


def test_worst_packet_size_is_judged() -> None:
    good = row(64, 3.0, 3.9, 3.3)
    assert judge(cm_costs.bars({"summary": [good, row(1400, 5.0, 5.0, 5.0)]})) == 0
    # 3.0 / 4.1 and 3.0 / 3.4 are less than three quarters and nine tenths.
    assert judge(cm_costs.bars({"summary": [good, row(1400, 3.0, 4.1, 3.3)]})) == 1
    assert judge(cm_costs.bars({"summary": [row(1400, 3.0, 3.9, 3.4), good]})) == 1


def test_one_slow_kill_fails() -> None:
    rows = [{"longest_ms": 40.0}, {"longest_ms": 399.0}]
    assert judge(cm_kills.bars({"bound_ms": cm_kills.TIMEOUTS_MS, "summary": rows})) == 0
    assert judge(cm_kills.bars({"bound_ms": cm_kills.TIMEOUTS_MS, "summary": [*rows, {"longest_ms": 401.0}]})) == 1


@pytest.mark.parametrize(("ratio", "code"), [(0.96, 0), (1.04, 0), (0.94, 1), (1.06, 1)])
def test_liar_must_not_change_throughput(ratio: float, code: int) -> None:
    assert judge(cm_liar.bars({"of_honest": ratio})) == code
