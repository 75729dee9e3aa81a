"""Tests of the TRODS bench: its results and bars, and the faults that its clients detect."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rivulet_bench import trods_cost, trods_crowd, trods_flood, trods_kills, trods_protected, trods_stall
from rivulet_bench.bars import judge
from rivulet_bench.trods_ages import Gap
from rivulet_bench.trods_wire import Wanted, Wire, connect

CONTENT = bytes(range(256)) * 40


class Server:
    """Sends these pieces on each connection, then closes it or waits."""

    def __init__(self, *pieces: bytes, ends: bool = False) -> None:
        self.pieces, self.ends = pieces, ends

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in self.pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        if self.ends:
            writer.close()
        await reader.read()


async def fetched(server: Server, *wanted: Wanted) -> tuple[bool, Wire]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    wire = await connect("127.0.0.1", listening.sockets[0].getsockname()[1])
    well = await wire.fetch(*wanted, patience_s=2.0)
    wire.close()
    listening.close()
    return well, wire


def head(size: int, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nServer: it\r\nContent-Length: {size}\r\n\r\n".encode()


WHOLE = Wanted("file", CONTENT)
PART = Wanted("file", CONTENT, 100, 299)


@pytest.mark.parametrize("cut", [1, 20, 60, 5000])
async def test_answers_in_a_row_are_compared_wherever_they_are_cut(cut: int) -> None:
    said = head(len(CONTENT)) + CONTENT + head(200, "206 Partial Content") + CONTENT[100:300]
    well, wire = await fetched(Server(said[:cut], said[cut:-7], said[-7:]), WHOLE, PART)
    assert well and (wire.answered, wire.problem, wire.wrong, wire.received) == (2, "", False, len(said))


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        (head(len(CONTENT)) + CONTENT[:-1] + b"\0", True),
        (head(len(CONTENT) + 1) + CONTENT, True),
        (head(len(CONTENT), "404 Not Found") + CONTENT, True),
        (head(len(CONTENT)) + CONTENT + b"x", True),
        (head(len(CONTENT)) + CONTENT[:-1], False),
        (b"", False),
    ],
)
async def test_changed_byte_is_wrong_and_missing_one_broken(said: bytes, wrong: bool) -> None:
    well, wire = await fetched(Server(said, ends=True), WHOLE)
    # Bytes behind the answer may arrive with it, or after it.
    assert (well and said[-1:] == b"x") or (wire.problem and wire.wrong is wrong), wire


async def test_unreachable_server_is_reported_as_not_opened() -> None:
    listening = await asyncio.start_server(Server().serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    listening.close()
    await listening.wait_closed()
    assert (await connect("127.0.0.1", port)).problem.startswith("not opened")


def test_longest_gap_after_kill_counts() -> None:
    gap = Gap(3.0, 1)
    for now in (0.0, 5.0, 5.01):
        gap.take(now)
    gap.kill(5.02)
    assert not gap.has_continued(5.03)
    for now in (5.02, 5.10, 5.11, 7.0):
        gap.take(now)
    result = gap.result(7.0)
    assert result["gap_ms"] == pytest.approx(1890) and result["goes_on"] and gap.has_continued(7.0)
    # No later gap is longer.
    assert gap.result(10.0)["gap_ms"] == pytest.approx(3000) and not gap.result(10.0)["goes_on"]


def _kill(at: float, *ports: int) -> trods_kills.Kill:
    return trods_kills.Kill(at, "r1", "link", 3, 9, frozenset(ports), moved=at + 0.2)


def _connection(port: int, opened: float, closed: float, problem: str = "", **more: Any) -> dict[str, Any]:
    return {
        "port": port,
        "opened": opened,
        "closed": closed,
        "problem": problem,
        "wrong": False,
        "silences": [],
        "protected": True,
        **more,
    }


def test_kill_hits_connections_of_its_replica() -> None:
    rows = [
        _connection(1, 0.0, 20.0, silences=[[1.0, 4.0], [9.9, 10.3]]),
        _connection(2, 0.0, 10.5, "reset"),
        _connection(2, 0.0, 130.0, "given up", protected=False, silences=[[9.9, 129.9]]),
        # A connection of another replica, one that had ended, and a later one between the same ports.
        _connection(3, 0.0, 10.5, "reset"),
        _connection(1, -5.0, -1.0, "reset"),
        _connection(2, 11.0, 12.0, "reset"),
    ]
    earlier, later = trods_kills._table([_kill(6.0, 2), _kill(10.0, 1, 2)], rows)
    assert (later["at_s"], later["held"], later["broken"], later["moved_ms"]) == (4.0, 2, 1, 200.0)
    assert later["longest_ms"] == pytest.approx(400)
    assert earlier["broken"] == 0, "it survived that kill"


def _judged_kills(**found: Any) -> int:
    return judge(trods_kills.bars({"kills": {"kills": trods_kills.KILLS, "broken": 0, "wrong": 0, **found}}))


def test_one_broken_connection_fails() -> None:
    assert _judged_kills() == 0
    for missed in ({"kills": 999}, {"broken": 1}, {"wrong": 1}):
        assert _judged_kills(**missed) == 1


def test_stall_bars_depend_on_bound_and_rtt() -> None:
    def judged(p50: float, p99: float, kind: str = "kv", **more: Any) -> int:
        row = {"kind": kind, "age_s": 3.0, "downloads": 9, "p50_ms": p50, "p99_ms": p99, "broken": 0, "wrong": 0}
        part = {"bound_ms": 50.0, "rtt_ms": 10.0, "summary": [{**row, "not_in_time": 0, **more}]}
        return judge(trods_stall.bars({"stall": part}))

    assert (judged(75, 120), judged(76, 120), judged(75, 121), judged(75, 120, not_in_time=1)) == (0, 1, 1, 1)
    # The other cases are for comparison and are not judged.
    assert judged(1, 1, "wake client") == 1


def test_crowd_bars_cover_stalls_and_tor_entries() -> None:
    def judged(entries: int = 5, **more: Any) -> int:
        state = [{"connections": n, "when": "open", "entries": {"a": e}} for n, e in ((10, 5), (2000, entries))]
        found = {"active": 2, "idle": 4, "idle_answered": 4, "active_broken": 0, "active_not_on": 0, "wrong": 0}
        found |= {"active_stall_ms": {"p100": 900.0}, "state": state}
        return judge(trods_crowd.bars({"crowd": {**found, **more}}))

    assert judged() == 0
    for missed in ({"entries": 6}, {"idle_answered": 3}, {"active_not_on": 1}, {"active_stall_ms": {}}):
        assert judged(**missed) == 1


def test_ratios_compare_the_same_round() -> None:
    def row(kind: str, repetition: int, per_second: float) -> dict[str, Any]:
        found = {"kind": kind, "repetition": repetition, "bytes": 1, "per_second": per_second, "total_us": 1.0}
        cores = {"core_us": 10.0, "core_busy": 1.0, "other_busy": 1.0}
        counts = {"requests": per_second, "protected": 0 if kind == "nginx" else 60}
        return {**found, **cores, **counts, "processes_us": dict.fromkeys(trods_cost.PARTS[kind], 1.0)}

    # The machine was half as fast in the second round.
    rows = [row("nginx", 0, 200), row("kv", 0, 150), row("kv", 1, 75), row("nginx", 1, 100)]
    assert trods_cost._compared(rows, 1)["ratio"] == 0.75
    # In the first round most connections were unprotected.
    assert trods_cost._compared(rows, 1)["protected"] == 60 / 150
    assert trods_cost._compared(rows[:1] + rows[2:3], 1)["ratio"] is None


def test_one_store_lookup_fails() -> None:
    def judged(kept: float = 0.9, alone: int = 0, gets: int = 0) -> int:
        found = {"packets_per_second": 1e5, "beside_good_per_second": 1e5, "lookups_alone": {"cmd_get": alone}}
        return judge(
            trods_flood.bars({"flood": {"summary": {**found, "lookups": gets, "kept": kept, "kv": {"errors": 0}}}})
        )

    assert (judged(), judged(0.89), judged(alone=1), judged(gets=1)) == (0, 1, 1, 1)


def test_protected_connections_are_found_in_logs(tmp_path: Path) -> None:
    now, ahead = time.monotonic(), time.time() - time.monotonic()

    def line(after: float, said: str, port: int) -> str:
        at = datetime.fromtimestamp(now + after + ahead, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return f"{at} DEBUG {said} client=10.0.1.1:{port}\n"

    (tmp_path / "a").write_text(
        line(1, "protected", 7) + line(1, "protected", 8) + line(3, "unprotected", 8) + line(-9, "protected", 9)
    )
    (tmp_path / "b").write_text(
        line(2, "ended early", 6) + line(2, "unprotected: it began before", 7) + line(3, "adopted", 7)
    )
    said = trods_protected.read(tmp_path.iterdir())
    opened = {"opened": now, "closed": now + 5}
    assert [trods_protected.was_protected(said, {"port": p, **opened}) for p in (6, 7, 8, 9)] == [
        False,
        True,
        False,
        False,
    ]
