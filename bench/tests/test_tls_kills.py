"""Which connections count for a kill, and which bars a battery misses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rivulet_bench.tls_kills import _judge, _row, bars
from rivulet_bench.trods_hangs import Strike

Json = dict[str, Any]

LOG = """\
2026-11-28T21:00:10.000000Z DEBUG protected client=10.0.1.1:20001
2026-11-28T21:00:10.000000Z DEBUG protected client=10.0.1.1:20002
2026-11-28T21:00:11.000000Z DEBUG unprotected client=10.0.1.1:20002 reason=Closed
"""


def connection(port: int, end: str, opened: float = -1e12, closed: float = 1e12) -> Json:
    return {"port": port, "end": end, "opened": opened, "closed": closed, "stalls": [(50.0, 50.3, 2.0)]}


def test_connection_that_was_ever_protected_counts_as_broken(tmp_path: Path) -> None:
    log = tmp_path / "agent-r1.log"
    log.write_text(LOG)
    rows = [connection(20001, "whole"), connection(20002, "curl 56"), connection(20003, "curl 35")]
    _judge(rows, [log])
    assert [row["lost"] for row in rows] == [False, True, True]
    # The end of the protection after the kill is no excuse.
    assert [row["broken"] for row in rows] == [False, True, False]
    rows.append({**connection(20001, "curl 56", opened=60.0), "lost": True, "broken": True})
    strikes = [Strike(50.05, "r1", "nginx", 50.5)]
    kills: Any = SimpleNamespace(strikes=strikes, held=[{20001, 20002, 20003}])
    row = _row(0, kills, rows, 0.0)
    assert (row["held"], row["whole"], row["broken"], row["broken_before_protection"]) == (3, 1, 1, 1)
    assert row["ends"] == "20002:curl-56 20003:curl-35"
    assert row["stall_ms"] == 300.0


def test_each_bar_has_its_figure_and_bound() -> None:
    stall = {"age_s": 0.0, "count": 9, "p50_ms": 175.0, "p99_ms": 220.0, "p100_ms": 300.0}
    good = {"clients": 8, "kills": 1000, "broken": 0, "wrong": 0, "hung": 0}
    row = {**good, "bound_ms": 150.0, "rtt_ms": 10.0, "stalls": [stall]}
    assert all(bar.reached for bar in bars({"batteries": [row]}))
    for worse in ({"kills": 999}, {"broken": 1}, {"wrong": 1}, {"hung": 1}):
        assert sum(not bar.reached for bar in bars({"batteries": [row | worse]})) == 1
    for slower in ({"p50_ms": 175.1}, {"p99_ms": 220.1}):
        assert sum(not bar.reached for bar in bars({"batteries": [row | {"stalls": [stall | slower]}]})) == 1
