"""Kills of replicas under plain clients of every kind: no connection may break, and no byte may be wrong.

trods-kills.csv has a row per kill: kind of harm, replica, its connections, and their results.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rivulet_demo.spec import SERVICE_PORT, SERVICE_V4
from rivulet_lab import Process, RackError, prompt

from . import trods_protected
from .bars import Bar
from .stats import RESULTS, percentile
from .trods_rack import FOLDER, HARMS, WWW, Harm, TrodsRack, put, spec, trods_rack
from .trods_traffic import LONG, SIZES

Json = dict[str, Any]

KILLS = 1_000
REPLICAS = 7
LEAST = 3
"""Replicas that must take plain TCP when one of them is killed."""
BOUND_MS = 150.0
"""Exclusion bound, for eight hosts on two cores: with a tighter one live replicas would be excluded."""
RATE_MBIT, RTT_MS = 100.0, 10.0
PAUSE_S = 1.0
"""Mean seconds between two kills."""
HELD_S = 2.0
"""Longest wait until other replicas hold the connections; then the replica is restarted anyway."""
LOOK_S = 0.05
AFTER_S = 5.0
"""Seconds after a kill; a gap that begins later has another cause."""
CSV = RESULTS / "trods-kills.csv"


@dataclass(slots=True)
class Kill:
    """A kill and the connections that it hit."""

    at: float
    name: str
    how: Harm
    others: int
    open: int
    ports: frozenset[int]
    """Ports of clients with a connection to the replica."""
    moved: float = 0.0
    """Time at which other replicas held all of them."""


@dataclass(slots=True)
class Holders:
    """Assigns connections to replicas: the one whose kernel got it last."""

    rack: TrodsRack
    of: dict[int, str] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)
    _seen: dict[str, set[int]] = field(default_factory=dict)

    def look(self) -> None:
        """Reads the kernels' tables."""
        for name in self.rack.replicas:
            now = self.rack.ports(name)
            for port in now - self._seen.get(name, set()):
                self.of[port] = name
            self._seen[name] = now
        self.open = self.rack.ports("c1")
        for port in self.of.keys() - self.open:
            del self.of[port]

    def held(self, name: str) -> frozenset[int]:
        """Ports of the open connections of a replica."""
        return frozenset(port for port, holder in self.of.items() if holder == name)


def kills(wanted: int, limit_s: float, seed: int, harms: Sequence[Harm] = HARMS, stamps: bool = False) -> Json:
    """Kills one replica after the other until the number or the time is reached.

    With `stamps`, timestamps name all requested objects, one per connection, and there are no records.
    """
    files = tuple(put(size) for size in (*SIZES, *LONG))
    os.environ.setdefault("RIVULET_LOG", trods_protected.LOG)
    with trods_rack("kills", spec(REPLICAS, BOUND_MS, RATE_MBIT, RTT_MS, listed=files if stamps else ())) as rack:
        log = rack.folder / "connections.jsonl"
        load = _load(rack, log, seed, ("--once",) if stamps else ())
        time.sleep(3.0)
        before = rack.exclusions()
        unprotected: Counter[str] = Counter()
        struck = _strike(rack, wanted, limit_s, harms, random.Random(seed), load, unprotected)
        time.sleep(2.0)
        unprotected.update(rack.unprotected())
        assert load.popen.stdin is not None
        load.popen.stdin.close()
        load.popen.stdin = None
        load.output(60.0)
        exclusions = sum(rack.exclusions().values()) - sum(before.values())
        refused = sum((r["trods"] or {}).get("refused", 0) for r in rack.status().values())
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    said = trods_protected.read(log.parent.glob("agent-*.log"))
    for row in rows:
        # Named responses have no log line per connection: each connection must survive.
        row["protected"] = stamps or trods_protected.was_protected(said, row)
    # Stored beside the logs, for the search for a fault.
    told = [{**dataclasses.asdict(kill), "ports": sorted(kill.ports)} for kill in struck]
    (log.parent / "kills.json").write_text(json.dumps(told))
    table = _table(struck, rows)
    # Too few kills are no result.
    path = CSV if len(struck) >= KILLS and not stamps else FOLDER / CSV.name
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
    return _summary(struck, table, rows, unprotected, exclusions, refused, seed)


def _load(rack: TrodsRack, log: Any, seed: int, more: Sequence[str]) -> Process:
    command = [*prompt(), sys.executable, "-m", "rivulet_bench.trods_traffic", f"{SERVICE_V4}:{SERVICE_PORT}"]
    command += ["--www", str(WWW), "--out", str(log), "--seed", str(seed), *more]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return rack.start("traffic", command, rack.spaces["c1"], **pipes)


def _strike(
    rack: TrodsRack,
    wanted: int,
    limit_s: float,
    harms: Sequence[Harm],
    rng: random.Random,
    load: Process,
    unprotected: Counter[str],
) -> list[Kill]:
    struck: list[Kill] = []
    down: dict[str, Kill] = {}
    holders = Holders(rack)
    began = next_kill = time.monotonic()
    while len(struck) < wanted and (now := time.monotonic()) - began < limit_s:
        if not load.running():
            load.output()
            raise RackError("the clients ended before the kills")
        holders.look()
        for name, kill in list(down.items()):
            if not kill.moved and not kill.ports & holders.held(name) and rack.excluded(name):
                kill.moved = now
            if kill.moved or now - kill.at > HELD_S:
                rack.heal(name, kill.how)
                del down[name]
        if now >= next_kill:
            there = rack.taking() - down.keys()
            if len(there) >= LEAST:
                victim, how = rng.choice(sorted(there)), rng.choice(harms)
                if how == "agent":
                    # The agent's counts end with it.
                    unprotected.update((rack.status()[victim]["trods"] or {}).get("unprotected") or {})
                holders.look()
                kill = Kill(time.monotonic(), victim, how, len(there) - 1, len(holders.open), holders.held(victim))
                rack.harm(victim, how)
                struck.append(kill)
                down[victim] = kill
                next_kill = time.monotonic() + rng.uniform(0.3, 1.7) * PAUSE_S
                if len(struck) % 25 == 0:
                    print(f"{len(struck)} kills in {kill.at - began:.0f} s", flush=True)
            else:
                next_kill = now + 0.2
        time.sleep(LOOK_S)
    for name, kill in down.items():
        rack.heal(name, kill.how)
    return struck


def _hit(kill: Kill, row: Json) -> bool:
    """Whether the replica had this connection when it was killed."""
    return row["port"] in kill.ports and row["opened"] <= kill.at <= row["closed"]


def _table(struck: list[Kill], rows: list[Json]) -> list[Json]:
    """Rows for the kills; a broken connection counts for the last kill that hit it.

    The longest gap is that of protected connections: others get nothing until their client gives up.
    """
    hits: dict[int, list[Json]] = {number: [] for number in range(len(struck))}
    broken: Counter[int] = Counter()
    for row in rows:
        mine = [number for number, kill in enumerate(struck) if _hit(kill, row)]
        for number in mine:
            hits[number].append(row)
        if mine and row["problem"] and row["protected"]:
            broken[mine[-1]] += 1
    return [
        {
            "at_s": round(kill.at - struck[0].at, 3),
            "replica": kill.name,
            "how": kill.how,
            "others": kill.others,
            "open": kill.open,
            "held": len(kill.ports),
            "moved_ms": round((kill.moved - kill.at) * 1e3, 1) if kill.moved else "",
            "broken": broken[number],
            "wrong": sum(row["wrong"] for row in hits[number]),
            "longest_ms": round(
                max((_silence(row, kill.at) for row in hits[number] if row["protected"]), default=0.0) * 1e3, 1
            ),
        }
        for number, kill in enumerate(struck)
    ]


def _silence(row: Json, at: float) -> float:
    """The longest gap of a connection that a kill at this time may have begun."""
    return max((b - a for a, b in row["silences"] if a < at + AFTER_S and b > at), default=0.0)


def _summary(
    struck: list[Kill],
    table: list[Json],
    rows: list[Json],
    unprotected: Counter[str],
    exclusions: int,
    refused: int,
    seed: int,
) -> Json:
    problems = [r for r in rows if r["problem"] and r["protected"]]
    others = [r for r in rows if r["problem"] and not r["protected"]]
    stalls = [r["longest_ms"] for r in table if r["longest_ms"]]
    hits = [(row, kill) for kill in struck for row in rows if _hit(kill, row)]
    summary = {
        "kills": len(struck),
        "by_harm": dict(Counter(kill.how for kill in struck)),
        "replicas": REPLICAS,
        "bound_ms": BOUND_MS,
        "connections": len(rows),
        "by_kind": dict(Counter(r["kind"] for r in rows)),
        "answers": sum(r["answered"] for r in rows),
        "gigabytes": round(sum(r["octets"] for r in rows) / 1e9, 3),
        "hit": len(hits),
        "hit_in_an_answer": sum(any(a < kill.at + 1 and b > kill.at for a, b in r["silences"]) for r, kill in hits),
        "broken": len(problems),
        "broken_unprotected": len(others),
        "wrong": sum(r["wrong"] for r in rows),
        "problems": dict(Counter(_kind(r["problem"]) for r in problems).most_common(12)),
        "unprotected": dict(unprotected),
        "refused": refused,
        "needless_exclusions": max(0, exclusions - len(struck)),
        "longest_of": "protected",
        "longest_ms": stalls,
        "longest_of_a_kill_ms": {f"p{p}": round(percentile(stalls, p), 1) for p in (50, 90, 99, 100)} if stalls else {},
        "seed": seed,
    }
    for row in (*problems[:10], *others[:10]):
        print({key: value for key, value in row.items() if key != "silences"}, flush=True)
    print({key: value for key, value in summary.items() if key != "longest_ms"}, flush=True)
    return summary


def _kind(problem: str) -> str:
    """A problem without its numbers."""
    return "".join("#" if c.isdigit() else c for c in problem).replace("##", "#")[:60]


def bars(result: Json) -> list[Bar]:
    """No protected connection breaks."""
    if "kills" not in result:
        return []
    found = result["kills"]
    kills = f"{found['kills']:,} kills"
    return [
        Bar("kills under plain clients", found["kills"], KILLS),
        Bar(f"{kills}: protected connections that broke", found["broken"], 0, at_most=True),
        Bar(f"{kills}: connections with wrong bytes", found["wrong"], 0, at_most=True),
    ]
