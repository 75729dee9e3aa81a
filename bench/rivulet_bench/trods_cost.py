"""Cost of protection beside nginx alone: rate and processor time of new connections, bulk throughput, and latency of
each phase of a request.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from math import nan
from statistics import median
from typing import Any

from .bars import Bar
from .host_rig import CLIENT_CORE, SERVER_CORE, Transport, busy_s
from .host_rig import CLIENTS as CLIENT_ADDRESSES
from .stats import percentile
from .trods_host import ADDRESSES, SPACES, TrodsHostRig

Json = dict[str, Any]

SIZES = (1, 100, 1_000, 4_000, 16_000)
CLIENTS = 64
MOST_PLAIN = 14_000
"""Most bytes of an answer to clients without sockets: more do not fit into a first window, and they acknowledge at
its end."""
CALM_S = 2.0
REPORTED_S = 1.0
"""Seconds after which the agent has reported a connection as protected; it reports every half second."""
LESS = 0.70
BULK = 100_000_000
BULK_LESS = 0.95
FETCHES = 10_000
FETCHED = 1_000
MORE_US = 119.0
PROTECTED = 0.95
RECORDS, STAMPS = (LESS, MORE_US), (0.90, 5.0)
"""Bounds with a store, and without one, where timestamps name responses."""
FILES = (*SIZES, FETCHED, BULK)
PARTS = {"nginx": ("nginx-nginx",), "kv": ("nginx-kv", "agent", "store")}
"""Processes that a kind uses."""


def turns(repetitions: int) -> list[tuple[int, str]]:
    """Every kind in every round, each first as often as last."""
    kinds = list(ADDRESSES)
    return [(r, kind) for r in range(repetitions) for kind in (kinds if r % 2 == 0 else reversed(kinds))]


class Clock:
    """Processor time since its creation: of processes, of both cores, and of ended children."""

    def __init__(self, rig: TrodsHostRig, kind: str) -> None:
        self._rig, self._kind = rig, kind
        self._began = self._read()

    def _read(self) -> dict[str, float]:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return {
            "at": time.monotonic(),
            "server_core": busy_s(SERVER_CORE),
            "other_core": busy_s(CLIENT_CORE),
            "load": used.ru_utime + used.ru_stime,
            **{name: self._rig.servers[name].cpu_s() for name in PARTS[self._kind]},
        }

    def stop(self) -> dict[str, float]:
        """Seconds of each."""
        now = self._read()
        return {name: value - self._began[name] for name, value in now.items()}


def rates(rig: TrodsHostRig, repetitions: int, seconds: float) -> Json:
    """As many new connections as possible, with one request each."""
    rows: list[Json] = []
    for size in SIZES:
        rig.put(size)
    calm_busy = 0.0
    for repetition in range(repetitions):
        kinds = [kind for r, kind in turns(repetitions) if r == repetition]
        idle: dict[str, dict[str, float]] = {}
        for kind in kinds:
            calm = Clock(rig, kind)
            time.sleep(CALM_S)
            idle[kind] = calm.stop()
            at = idle[kind]["at"]
            calm_busy = max(calm_busy, *(idle[kind][core] / at for core in ("server_core", "other_core")))
        # Compared kinds follow each other directly, because other work of the machine changes within seconds.
        for size, kind in ((size, kind) for size in SIZES for kind in kinds):
            rows.append({"repetition": repetition, **_rate(rig, kind, size, seconds, idle[kind])})
            row = rows[-1]
            print(
                f"{size:6} bytes  {kind:6}{row['per_second']:9,.0f} requests/s, nginx's core {row['core_us']:6.1f} us"
                f" ({100 * row['core_busy']:.0f} % busy), all but the load {row['total_us']:6.1f} us"
                f" {row['processes_us']}",
                flush=True,
            )
    # On a core with other work the time per request means nothing.
    return {"summary": [_compared(rows, size) for size in SIZES], "calm_busy": calm_busy, "runs": rows}


def _rate(rig: TrodsHostRig, kind: str, size: int, seconds: float, idle: dict[str, float]) -> Json:
    path = rig.put(size)
    words = ["--one-thread", "--expect", str(rig.www / path)]
    if size <= MOST_PLAIN:
        # The kernel's own clients use the first address; their timestamps would look newer to the server.
        words += [word for address in CLIENT_ADDRESSES[1:4] for word in ("--source", address)]
    before = rig.trods() if kind == "kv" else {}
    clock = Clock(rig, kind)
    transport: Transport = "plain" if size <= MOST_PLAIN else "tcp"
    load = rig.load_from(ADDRESSES[kind], transport, path, *words, clients=CLIENTS, seconds=seconds)
    used = clock.stop()
    count = load["requests"]
    # Without the idle share.
    part = used["at"] / idle["at"]
    spent = {name: max(0.0, value - part * idle[name]) for name, value in used.items() if name not in ("at", "load")}
    time.sleep(REPORTED_S)
    after = rig.trods() if kind == "kv" else {}
    return {
        "kind": kind,
        "bytes": size,
        "requests": count,
        "per_second": load["requests_per_second"],
        "core_us": spent["server_core"] / count * 1e6,
        "core_busy": used["server_core"] / used["at"],
        "other_busy": used["other_core"] / used["at"],
        # The load's process, without the kernel's work for its end of the wire.
        "total_us": (spent["server_core"] + spent["other_core"] - used["load"]) / count * 1e6,
        "processes_us": {name: round(spent[name] / count * 1e6, 1) for name in PARTS[kind]},
        "protected": after.get("protected", 0) - before.get("protected", 0),
        "latency_us": load["latency_us"],
    }


def _compared(rows: list[Json], size: int) -> Json:
    """Medians of a size, and of the ratios in the same round."""
    found: Json = {"bytes": size}
    by_kind = {kind: [row for row in rows if (row["kind"], row["bytes"]) == (kind, size)] for kind in ADDRESSES}
    for kind, mine in by_kind.items():
        found[kind] = {
            name: median(row[name] for row in mine)
            for name in ("per_second", "core_us", "core_busy", "other_busy", "total_us")
        }
        found[kind]["processes_us"] = {
            name: round(median(row["processes_us"][name] for row in mine), 1) for name in PARTS[kind]
        }
    found["protected"] = min(row["protected"] / row["requests"] for row in by_kind["kv"])
    pairs = _pairs([row for row in rows if row["bytes"] == size])
    found["ratio"] = median(kv["per_second"] / alone["per_second"] for kv, alone in pairs) if pairs else None
    # On a busy machine other work may exceed the measured work.
    cores = [alone["core_us"] / kv["core_us"] for kv, alone in pairs if kv["core_us"]]
    found["core_ratio"] = median(cores) if cores else None
    return found


def _pairs(rows: list[Json]) -> list[tuple[Json, Json]]:
    rounds = {row["repetition"]: {r["kind"]: r for r in rows if r["repetition"] == row["repetition"]} for row in rows}
    return [(found["kv"], found["nginx"]) for found in rounds.values() if len(found) == len(SPACES)]


def bulk(rig: TrodsHostRig, repetitions: int) -> Json:
    """Consecutive long downloads with offloads on."""
    path = rig.put(BULK)
    rig.offloads(True)
    rows: list[Json] = []
    try:
        for repetition, kind in turns(repetitions):
            clock = Clock(rig, kind)
            load = rig.load_from(ADDRESSES[kind], "tcp", path, clients=1, requests=3, seconds=60)
            used = clock.stop()
            rows.append(
                {
                    "repetition": repetition,
                    "kind": kind,
                    "mbps": load["mbps"],
                    "core_busy": used["server_core"] / used["at"],
                    "cpu_s": {name: round(used[name], 3) for name in PARTS[kind]},
                }
            )
            print(f"bulk  {kind:6} {rows[-1]['mbps']:9,.0f} Mb/s {rows[-1]['cpu_s']}", flush=True)
    finally:
        rig.offloads(False)
    ratios = [kv["mbps"] / alone["mbps"] for kv, alone in _pairs(rows)]
    summary = {kind: median(row["mbps"] for row in rows if row["kind"] == kind) for kind in ADDRESSES}
    return {"bytes": BULK, "mbps": summary, "ratio": median(ratios) if ratios else None, "runs": rows}


def latency(rig: TrodsHostRig, fetches: int) -> Json:
    """Serial fetches from both servers, alternating."""
    path = rig.put(FETCHED)
    command = [sys.executable, "-m", "rivulet_bench.trods_phases", "--path", path, "--size", str(FETCHED)]
    command += ["--fetches", str(fetches), *ADDRESSES.values()]
    found = json.loads(rig.client_process(command).output(600.0))
    summary: Json = {"bytes": FETCHED, "fetches": fetches}
    for kind, address in ADDRESSES.items():
        summary[kind] = {
            phase: {"p50_us": percentile(times, 50), "p99_us": percentile(times, 99)}
            for phase, times in found[address].items()
        }
    for phase in summary["kv"]:
        kv, alone = summary["kv"][phase], summary["nginx"][phase]
        print(
            f"{phase:12} nginx {alone['p50_us']:7.1f} ({alone['p99_us']:8.1f}), TRODS {kv['p50_us']:7.1f}"
            f" ({kv['p99_us']:8.1f}) us: {kv['p50_us'] - alone['p50_us']:+.1f}",
            flush=True,
        )
    return summary


def all_costs(rig: TrodsHostRig, repetitions: int, seconds: float, fetches: int) -> Json:
    """All three measurements."""
    return {
        "latency": latency(rig, fetches),
        "rates": rates(rig, repetitions, seconds),
        "bulk": bulk(rig, repetitions),
        "trods": rig.trods(),
    }


def bars(result: Json, wanted: tuple[float, float] = RECORDS) -> list[Bar]:
    """Rate of new connections, bulk throughput, and added latency of a request."""
    less, most_us = wanted
    if "cost" not in result:
        return []
    cost, found = result["cost"], []
    for row in cost["rates"]["summary"]:
        ratio = nan if row["ratio"] is None else row["ratio"]
        found.append(Bar(f"{row['bytes']:,} bytes: requests/s of new connections, of nginx alone", ratio, less))
    # The last connections are not all counted by then.
    protected = min(row.get("protected", nan) for row in cost["rates"]["summary"])
    found.append(Bar("connections of these that were protected", protected, PROTECTED))
    ratio = nan if cost["bulk"]["ratio"] is None else cost["bulk"]["ratio"]
    found.append(Bar(f"{BULK // 1_000_000} MB with offloads: throughput, of nginx alone", ratio, BULK_LESS))
    more = cost["latency"]["kv"]["whole"]["p50_us"] - cost["latency"]["nginx"]["whole"]["p50_us"]
    found.append(Bar("a fetch, more than by nginx alone (p50), us", more, most_us, at_most=True))
    return found
