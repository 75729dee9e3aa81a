"""Duration of the stall of a download when its replica dies, by the age of its request.

The replica's link is cut, so that only the ToR's exclusion reveals the death. Three cases: TRODS, where the server
probes first; TRODS as in the paper (`--wake client`: the client's own retransmission); and kernel TCP with curl,
which gives up a connection without data and continues with a range.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from rivulet_demo.spec import SERVICE_PORT, SERVICE_V4
from rivulet_lab import prompt

from .bars import Bar
from .stats import percentile
from .trods_ages import SILENT_S
from .trods_clients import answer, pipes, tell
from .trods_rack import WWW, Plain, TrodsRack, put, spec, trods_rack

Json = dict[str, Any]

AGES = (0.3, 3.0, 30.0)
REPLICAS = 3
EACH = 6
"""Downloads of an age that a kill hits: with two cores for all hosts, adopting many at once takes milliseconds."""
BOUND_MS = 50.0
HEARTBEAT_MS = 2.0
"""Exclusion bound, the controller's default."""
RTT_MS = 10.0
SIZE = 100_000_000
KILLS = 12
KINDS: dict[str, tuple[Plain, tuple[str, ...], int, float]] = {
    "kv": ("trods", (), KILLS, 10.0),
    "wake client": ("trods", ("--wake", "client"), 2, 70.0),
    "reconnect": ("kernel", (), 2, 20.0),
}
"""Server, flags of the agents, kills, and longest wait for a download in seconds."""
HEAL_S = 60.0


def stalls(kinds: list[str], kills: int, bound_ms: float, ages: tuple[float, ...] = AGES) -> Json:
    """All cases, one after the other."""
    put(SIZE)
    rows: list[Json] = []
    excluded = 0
    for kind in kinds:
        plain, flags, usual, patience_s = KINDS[kind]
        setting = spec(REPLICAS, bound_ms, None, RTT_MS, plain, HEARTBEAT_MS)
        with trods_rack(f"stall-{kind.replace(' ', '-')}", setting, flags) as rack:
            wanted, number = min(kills or usual, usual), 0
            for attempt in range(2 * wanted):
                found, needless = _kill(rack, rack.replicas[attempt % REPLICAS], plain, ages, patience_s)
                excluded += needless
                if found:
                    rows += [{"kind": kind, "kill": number, **row} for row in found]
                    _print_row(kind, number, found)
                    number += 1
                else:
                    print(f"{kind}: no download was hit, {needless} exclusions of live replicas", flush=True)
                if number == wanted:
                    break
    return {
        "bound_ms": bound_ms,
        "rtt_ms": RTT_MS,
        "silent_s": SILENT_S,
        # Before kills: a machine that cannot keep the bound excludes live replicas.
        "needless_exclusions": excluded,
        "summary": _summary(rows),
        "runs": rows,
    }


def _kill(
    rack: TrodsRack, victim: str, plain: Plain, ages: tuple[float, ...], patience_s: float
) -> tuple[list[Json], int]:
    """One kill: the gaps of the downloads that it hit, and the exclusions of live replicas before it."""
    rack.until(rack.whole, "every replica takes plain TCP", HEAL_S)
    before = rack.exclusions()
    curl = ("--curl",) if plain == "kernel" else ()
    command = [*prompt(), sys.executable, "-m", "rivulet_bench.trods_ages", f"{SERVICE_V4}:{SERVICE_PORT}"]
    command += ["--file", str(WWW / f"{SIZE}.bin"), "--ages", *map(str, ages), "--patience", f"{patience_s:g}"]
    command += ["--connections", str((EACH if curl else 2 * EACH) * len(ages) * REPLICAS // (2 if curl else 1)), *curl]
    client = rack.start(f"ages-{time.monotonic():.0f}", command, rack.spaces["c1"], **pipes())
    ports: list[int] = answer(client)["ports"]
    held = sorted(rack.ports(victim) & set(ports))
    groups = {f"{age:g}": held[place :: len(ages)][:EACH] for place, age in enumerate(ages)}
    tell(client, {"groups": groups})
    answer(client)
    held_now = rack.ports(victim) & rack.ports("c1")
    needless = sum(rack.exclusions().values()) - sum(before.values())
    rack.harm(victim, "link")
    tell(client)
    gaps: list[Json] = answer(client, patience_s + 20.0)["gaps"]
    client.end()
    rack.heal(victim, "link")
    # curl's connections to the replica are unknown; those that were opened again had been there.
    hit = [gap for gap in gaps if (gap["connections"] > 1 if plain == "kernel" else gap["port"] in held_now)]
    return hit, needless


def _print_row(kind: str, number: int, found: list[Json]) -> None:
    for age in dict.fromkeys(row["age"] for row in found):
        gaps = [row["gap_ms"] for row in found if row["age"] == age]
        broken = [row["problem"] for row in found if row["age"] == age and row["problem"]]
        print(
            f"{kind:12} kill {number + 1} at {age:4g} s: {len(gaps):3} downloads, gap p50 {percentile(gaps, 50):7.1f}"
            f" most {max(gaps):7.1f} ms, broken {len(broken)} {broken[:1] or ''}",
            flush=True,
        )


def _summary(rows: list[Json]) -> list[Json]:
    summary = []
    for kind, age in dict.fromkeys((row["kind"], row["age"]) for row in rows):
        mine = [row for row in rows if (row["kind"], row["age"]) == (kind, age)]
        gaps = [row["gap_ms"] for row in mine]
        summary.append(
            {
                "kind": kind,
                "age_s": age,
                "downloads": len(mine),
                **{f"p{p}_ms": percentile(gaps, p) for p in (50, 90, 99, 100)},
                "broken": sum(bool(row["problem"]) for row in mine),
                "wrong": sum(row["wrong"] for row in mine),
                "not_in_time": sum(not row["goes_on"] and not row["problem"] for row in mine),
            }
        )
    return summary


def bars(result: Json) -> list[Bar]:
    """The stall and the completeness of downloads under TRODS; the other cases are for comparison."""
    found = []
    part = result.get("stall", {})
    for row in part.get("summary", []):
        if row["kind"] != "kv":
            continue
        bound, rtt = part["bound_ms"], part["rtt_ms"]
        what = f"request {row['age_s']:g} s old, {row['downloads']} downloads"
        found.append(Bar(f"{what}: p50 of the stall, ms", row["p50_ms"], bound + 5 + 2 * rtt, at_most=True))
        found.append(Bar(f"{what}: p99, ms", row["p99_ms"], bound + 30 + 4 * rtt, at_most=True))
        lost = row["broken"] + row["wrong"] + row["not_in_time"]
        found.append(Bar(f"{what}: downloads that did not continue", lost, 0, at_most=True))
    return found
