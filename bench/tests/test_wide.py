"""Tests of the wide area's bench: bounds, settings of the wire, and the CSV."""

from __future__ import annotations

from rivulet_bench import wide
from rivulet_bench.bars import judge
from rivulet_bench.stats import Json


def rates(rivulet: float, cubic: float, reno: float) -> Json:
    values = {"rivulet": rivulet, "rivulet-cubic": cubic, "reno": reno}
    return {kind: {"median": value, "runs": [value]} for kind, value in values.items()}


def result(share: float) -> Json:
    wire = {"rtt_ms": 100, "loss": 0.001, "name": "100 ms, 0.1 % lost", "rates": rates(9, 20, 10)}
    return {
        "paths": [wire],
        "background": [{"background": 4, "rates": rates(9, 9, 10)}],
        "pipelined": [{"bytes": 20_000, "rtt_ms": 10, "rates": rates(9.5, 9, 10)}],
        "cubic": [{"rtt_ms": 20, "shares": [share], "median": share}],
    }


def test_bounds_are_judged_beside_reno_and_cubic() -> None:
    assert judge(wide.bars(result(1.0))) == 0
    assert [bar.reached for bar in wide.bars(result(1.3))] == [True] * 5 + [False]
    assert judge(wide.bars(result(0.7))) == 1
    assert judge(wide.bars({})) == 1


def test_jitter_and_rate_apply_to_data_and_loss_to_both_ways() -> None:
    ways = wide.Wire(50, loss=0.01, jitter_ms=2.5, reorder=0.02).words()
    assert {"delay=25ms", "loss=0.01", "rate=100mbit", "jitter=2.5ms", "reorder=0.02"} <= set(ways["a-to-b"])
    assert {"delay=25ms", "loss=0.01"} <= set(ways["b-to-a"])
    assert not any(word.startswith(("rate", "jitter", "reorder")) for word in ways["b-to-a"])
    assert "queue=412" in ways["a-to-b"], "one bandwidth-delay product"


def test_csv_has_a_row_for_each_run() -> None:
    rows = wide.table_of(result(1.0))
    assert len(rows) == 3 * 3 + 1
    assert rows[0] == {"part": "paths", "point": "100 ms, 0.1 % lost", "kind": "rivulet", "mbps": 9}
