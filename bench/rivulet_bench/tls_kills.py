"""Terminators, nginx, agents and links die under HTTPS downloads by curl: no connection breaks, and no byte is wrong.

    make bench-tls-kills
    make bench-tls-kills BENCH_FLAGS='--clients 8 --kills 100 --harms terminator'

bench/results/tls-kills.json has a row per battery (number of clients), tls-kills.csv one per kill: its harm, the
connections of the replica, and their results. After every ten kills nothing is killed until all replicas serve again.

A connection is protected when the state behind its handshake is stored, as the agents' logs report. Those that end
before count apart: nothing has their keys. A stall is a gap in which a download of one file got nothing.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from . import batteries, trods_protected
from .bars import Bar, judge
from .stats import percentile
from .tls_fetches import Fetches
from .tls_rack import Tls, TlsRack
from .trods_hangs import BOUND_MS, RATE_MBIT, REPLICAS, RTT_MS, Battery, Kills
from .trods_rack import prepared, running, spec

KILLS = 1000
"""Least number of kills for the claim."""
ALL = ("terminator", "nginx", "agent", "link", "freeze")
BEFORE_S, AFTER_S = 0.1, 5.0
"""A stall that a kill caused begins this long before the kill at most, when data was under way, and not later."""
AGES = ((0.0, 1.0), (1.0, 10.0), (10.0, 1e9))
"""Ages of a request at the kill, in seconds, for which stalls are summed up."""

Json = dict[str, Any]


class HeldKills(Kills):
    """Also notes which connections the replica had."""

    def __init__(self, rack: TlsRack, rng: random.Random, harms: list[str]) -> None:
        super().__init__(rack, rng, harms)
        self.held: list[set[int]] = []

    def _harm(self, name: str, how: str) -> None:
        self.held.append(self.rack.ports(name) & self.rack.ports("c1"))
        super()._harm(name, how)


def _row(number: int, found: HeldKills, rows: list[Json], began: float) -> Json:
    """A kill and what became of the connections that it hit."""
    strike = found.strikes[number]
    hit = [row for row in rows if row["port"] in found.held[number] and row["opened"] <= strike.at <= row["closed"]]
    stalls = [
        (end - start, age) for row in hit for start, end, age in row["stalls"] if _is_caused(strike.at, start, end)
    ]
    longest, age = max(stalls, default=(0.0, 0.0))
    return {
        "second": round(strike.at - began, 2),
        "replica": strike.what,
        "harm": strike.how,
        "away_s": round(strike.returns - strike.at, 2),
        "held": len(hit),
        "whole": sum(row["end"] == "whole" for row in hit),
        "broken": sum(row["broken"] for row in hit),
        "broken_before_protection": sum(row["lost"] and not row["broken"] for row in hit),
        "wrong": sum(row["end"] == "wrong" for row in hit),
        "ends": " ".join(f"{row['port']}:{row['end'].replace(' ', '-')}" for row in hit if row["end"] != "whole"),
        "stall_ms": round(longest * 1e3, 1),
        "age_s": round(age, 1),
        "stalls": [(gap * 1e3, age) for gap, age in stalls],
    }


def _is_caused(at: float, start: float, end: float) -> bool:
    return at - BEFORE_S <= start <= at + BEFORE_S and end > at


def _judge(rows: list[Json], logs: list[Path]) -> None:
    """Marks the connections that were lost, and those of them that were protected."""
    said = trods_protected.read(logs)
    for row in rows:
        told = [what for at, what in said.get(row["port"], []) if row["opened"] - 0.1 <= at <= row["closed"]]
        row["told"] = told
        row["lost"] = row["end"] not in ("whole", "wrong", "no handshake")
        row["broken"] = row["lost"] and any(what in ("protected", "adopted") for what in told)


def battery(clients: int, kills: int, seed: int, harms: list[str], limit_s: float) -> tuple[Json, list[Json]]:
    """What became of the downloads, and the kills."""
    os.environ.setdefault("RIVULET_LOG", trods_protected.LOG + ",rivulet_terminator=debug")
    plain = spec(REPLICAS, BOUND_MS, RATE_MBIT, RTT_MS)
    setting = Tls(**{name: getattr(plain, name) for name in plain.__dataclass_fields__})
    rng = random.Random(seed)
    with running(TlsRack(setting, prepared(f"tls-kills-{clients}"))) as rack:
        struck = HeldKills(rack, rng, harms)
        fetches = Fetches(rack, clients, rng)
        found = Battery(struck, fetches, rng)
        before = rack.exclusions()
        began = time.monotonic()
        try:
            found.run(kills, limit_s)
        finally:
            found.finish()
        exclusions = sum(rack.exclusions().values()) - sum(before.values())
        unprotected = rack.unprotected()
        _judge(fetches.rows, list(rack.folder.glob("agent-*.log")))
        (rack.folder / "connections.json").write_text(json.dumps(fetches.rows, indent=0))
    table = [_row(number, struck, fetches.rows, began) for number in range(len(struck.strikes))]
    lost = [row for row in fetches.rows if row["lost"]]
    for row in [row for row in lost if row["broken"]][:20]:
        print({key: row[key] for key in ("port", "end", "told", "transfers")}, flush=True)
    return {
        "clients": clients,
        "kills": len(table),
        "by_harm": dict(Counter(strike.how for strike in struck.strikes)),
        "bound_ms": BOUND_MS,
        "rtt_ms": RTT_MS,
        "seed": seed,
        "seconds": round(time.monotonic() - began),
        "connections": fetches.ends.total(),
        "files": sum(len(row["transfers"].split(";")) for row in fetches.rows),
        "hit": sum(row["held"] for row in table),
        "ends": dict(fetches.ends),
        "hung": fetches.ends["hung"],
        "hung_ports": fetches.hung,
        "looked_at": found.looked,
        "silent_ports": found.silent,
        "broken": sum(row["broken"] for row in lost),
        "broken_ports": [(row["port"], row["end"]) for row in lost if row["broken"]],
        "broken_before_protection": sum(not row["broken"] for row in lost),
        "no_handshake": fetches.ends["no handshake"],
        "wrong": fetches.ends["wrong"],
        "unprotected": unprotected,
        "needless_exclusions": max(0, exclusions - len(table)),
        "stalls": _stalls([stall for row in table for stall in row["stalls"]]),
    }, table


def _stalls(all_of: list[tuple[float, float]]) -> list[Json]:
    """Percentiles of the stalls, milliseconds, by the age of the request."""
    found = []
    for least, most in AGES:
        gaps = [gap for gap, age in all_of if least <= age < most]
        if gaps:
            of = {f"p{p}_ms": round(percentile(gaps, p), 1) for p in (50, 99, 100)}
            found.append({"age_s": least, "count": len(gaps), **of})
    return found


def bars(result: Json) -> list[Bar]:
    """No protected connection breaks or hangs, no byte is wrong, and stalls are as short as with plain HTTP."""
    rows = result["batteries"]

    def total(what: str) -> int:
        return sum(row[what] for row in rows)

    found = [
        Bar("kills", total("kills"), KILLS),
        Bar("connections broken after the handshake", total("broken"), 0, at_most=True),
        Bar("downloads with wrong bytes", total("wrong"), 0, at_most=True),
        Bar("downloads that hung", total("hung"), 0, at_most=True),
    ]
    for row in rows:
        bound, rtt = row["bound_ms"], row["rtt_ms"]
        for of in row["stalls"]:
            what = f"{row['clients']} clients, request at least {of['age_s']:g} s old, {of['count']} stalls"
            found.append(Bar(f"{what}: p50, ms", of["p50_ms"], bound + 5 + 2 * rtt, at_most=True))
            found.append(Bar(f"{what}: p99, ms", of["p99_ms"], bound + 30 + 4 * rtt, at_most=True))
    return found


def main() -> int:
    """One battery after the other, and their bars."""
    parser = batteries.command_line(__doc__, ALL, [4, 12], 500)
    parser.add_argument("--limit", type=float, default=36_000.0, help="longest time of a battery, s")
    options = parser.parse_args()
    harms = batteries.chosen(options.harms, ALL)

    def of(clients: int) -> tuple[Json, list[Json]]:
        row, kills = battery(clients, options.kills, options.seed, harms, options.limit)
        return row, [{key: kill[key] for key in kill if key != "stalls"} for kill in kills]

    return judge(bars(batteries.run("tls-kills", options.clients, of)))


if __name__ == "__main__":
    sys.exit(main())
