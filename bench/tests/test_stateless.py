"""Tests of the results and bars of the stateless TCP bench."""

from __future__ import annotations

from typing import Any

from rivulet_bench import stateless_cost, stateless_floods, stateless_kills, stateless_loss
from rivulet_bench.bars import judge
from rivulet_bench.stateless_kills import Request


def _row(kind: str, repetition: int, core_us: float, per_second: float = 100.0) -> dict[str, Any]:
    row = {"kind": kind, "repetition": repetition, "bytes": 1, "rate": None, "core_busy": 1.0, "process_us": 1.0}
    return {**row, "core_us": core_us, "per_second": per_second}


def test_ratios_compare_the_same_round() -> None:
    # The machine was twice as slow in the second round, and disturbed in the third.
    rows = [_row("stateless", 0, 10), _row("nginx", 0, 25), _row("nginx", 1, 50), _row("stateless", 1, 20)]
    rows += [_row("stateless", 2, 70), _row("nginx", 2, 25)]
    (found,) = stateless_cost.compared(rows, "nginx", lambda row: (row["bytes"], row["rate"]))
    assert (found["core_us"], found["core_us_other"], found["core_us_ratio"]) == (20, 25, 0.4)


def test_point_without_other_server_misses_bar() -> None:
    summary = stateless_cost.compared([_row("stateless", 0, 10)] * 1, "kernel", lambda row: (row["bytes"], None))
    assert judge(stateless_cost.bars({"rates": {"summary": summary}})) == 1


def test_bars_need_twice_the_rate_at_half_the_cost() -> None:
    def judged(per_second: float, core_us: float, size: int = 100) -> int:
        row = {"bytes": size, "rate": None, "per_second_ratio": per_second, "core_us_ratio": core_us}
        return judge(stateless_cost.bars({"nginx": {"summary": [row]}}))

    assert (judged(2.0, 0.5), judged(1.9, 0.5), judged(2.0, 0.51)) == (0, 1, 1)
    # An answer of ten thousand bytes is as much work for both.
    assert (judged(1.0, 0.9, 10_000), judged(0.99, 0.5, 10_000)) == (0, 1)


def test_memory_per_connection_fails() -> None:
    def judged(process: float, kernel: float) -> int:
        row = {"kind": "stateless", "process_bytes_each": process, "kernel_bytes_each": kernel}
        return judge(stateless_cost.bars({"memory": {"summary": [row, {**row, "kind": "nginx"}]}}))

    assert (judged(0.04, 0.0), judged(1.0, 0.0), judged(0.0, 100.0)) == (0, 1, 1)


def test_one_wrong_transfer_fails() -> None:
    def judged(**changes: Any) -> int:
        row = {"loss_percent": 1, "kind": "with ring", "transfers": 10, "exact": 10, "of_kernel": 1.1}
        return judge(stateless_loss.bars({"loss": {"summary": [row | changes]}}))

    assert (judged(), judged(exact=9), judged(of_kernel=1.11)) == (0, 1, 1)
    assert judged(kind="without ring", of_kernel=1.5) == 0


def test_kill_hits_requests_in_progress() -> None:
    requests = [Request(0.5, 0.9, ""), Request(0.8, 1.4, ""), Request(0.95, 1.2, "reset"), Request(1.1, 1.3, "")]
    first, second = stateless_kills._rows([(1.0, "r1", 3), (2.0, "r2", 1)], requests)
    assert (first["under_way"], first["failed"], first["longest_ms"]) == (2, 1, 600.0)
    assert (second["at_s"], second["under_way"], second["longest_ms"]) == (1.0, 0, 0.0)


def test_too_few_kills_fail() -> None:
    def judged(kills: int, failed: int = 0, wrong: int = 0) -> int:
        return judge(stateless_kills.bars({"kills": {"kills": kills, "failed": failed, "wrong": wrong}}))

    assert (judged(1000), judged(999), judged(1000, failed=1), judged(1000, wrong=1)) == (0, 1, 1, 1)


def test_missing_flood_fails_bars() -> None:
    def judged(**changes: Any) -> int:
        row = {"class": "plain-syn", "kept": 0.9, "replica_cpu_percent": 0.1}
        row |= {"attack_per_second": 500.0, "highest_per_second": 1000.0}
        return judge(stateless_floods.bars({"floods": {"summary": [row | changes]}}))

    assert judged() == 0
    assert judged(attack_per_second=100.0) == judged(kept=0.89) == judged(replica_cpu_percent=2.0) == 1
    assert judged(**{"class": "plain-data", "replica_cpu_percent": 4.0}) == 0
