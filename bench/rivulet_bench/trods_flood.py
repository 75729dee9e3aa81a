"""A flood of spoofed acknowledgements of connections that do not exist: it must cause no look-up in the store, and
good clients must keep the throughput that nginx alone keeps under the same flood.

If a server's core cannot receive the generator's full rate, good clients get almost nothing from either, and the
ratio means nothing: then the rate is halved until nginx alone keeps a part of its throughput. The generator shares
its core with load, agent and store, which have priority (in a rack they have machines of their own).
"""

from __future__ import annotations

import subprocess
import time
from statistics import median
from typing import Any

from rivulet_lab import Process, RackError, binary

from .bars import Bar
from .host_rig import CLIENT_CORE
from .rig import finish
from .trods_cost import turns
from .trods_host import ADDRESSES, TrodsHostRig

Json = dict[str, Any]

CLASS = "plain-ack"
FULL = 5_000_000
"""Packets a second: more than can be sent."""
SIZE = 1_000
CLIENTS = 16
KEPT = 0.9
SOME = 0.2
HALVES = 6
READS = ("cmd_get", "cmd_touch", "cmd_meta", "get_hits", "get_misses", "get_expired", "get_flushed", "touch_hits")
MOST_S = 60.0


def floods(rig: TrodsHostRig, repetitions: int, seconds: float) -> Json:
    """The flood alone, then beside good clients of both servers, alternating."""
    before = rig.store_stats()
    sent = _sent(_flood(rig, "kv", seconds))
    after = rig.store_stats()
    alone = {name: after.get(name, 0) - before.get(name, 0) for name in READS}
    print(f"alone: {sent['packets_per_second']:,.0f} packets/s, look-ups {sum(alone.values())}", flush=True)
    rate = _rate(rig, sent["packets_per_second"], seconds)
    rows: list[Json] = []
    for repetition, kind in turns(repetitions):
        quiet = _good(rig, kind, seconds)
        before, began = rig.store_stats(), _received(rig, kind)
        attack = _flood(rig, kind, MOST_S, rate)
        try:
            time.sleep(0.3)
            good = _good(rig, kind, seconds)
        finally:
            attack.end()
        after = rig.store_stats()
        row = {
            "repetition": repetition,
            "kind": kind,
            "quiet_per_second": quiet["requests_per_second"],
            "per_second": good["requests_per_second"],
            "errors": good["errors"],
            "flood_per_second": (_received(rig, kind) - began) / (good["seconds"] + 0.3),
            # The store is only read when replicas die; records of good connections are written.
            "gets": sum(after.get(name, 0) - before.get(name, 0) for name in READS if name != "cmd_meta"),
        }
        rows.append(row)
        print(
            f"{kind:6} good clients {row['per_second']:8,.0f} requests/s (quiet {row['quiet_per_second']:8,.0f}), under"
            f" {row['flood_per_second']:9,.0f} packets/s of all kinds, look-ups {row['gets']}, errors {row['errors']}",
            flush=True,
        )
    summary: Json = {
        "packets_per_second": sent["packets_per_second"],
        "beside_good_per_second": rate,
        "lookups_alone": alone,
    }
    for kind in ADDRESSES:
        mine = [row for row in rows if row["kind"] == kind]
        columns = ("per_second", "quiet_per_second", "flood_per_second")
        summary[kind] = {column: median(row[column] for row in mine) for column in columns}
        summary[kind]["errors"] = sum(row["errors"] for row in mine)
    summary["lookups"] = sum(row["gets"] for row in rows)
    both = {(row["repetition"], row["kind"]): row["per_second"] for row in rows}
    summary["kept"] = median(both[r, "kv"] / both[r, "nginx"] for r in range(repetitions))
    return {"summary": summary, "runs": rows}


def _rate(rig: TrodsHostRig, full: float, seconds: float) -> float:
    """The highest rate, among the full one and its halves, at which nginx alone keeps a part of its throughput."""
    quiet, rate = _good(rig, "nginx", seconds)["requests_per_second"], full
    for halved in range(HALVES):
        rate = full / 2**halved
        attack = _flood(rig, "nginx", MOST_S, FULL if halved == 0 else rate)
        try:
            time.sleep(0.3)
            good = _good(rig, "nginx", seconds)["requests_per_second"]
        finally:
            attack.end()
        print(f"{rate:9,.0f} packets/s: nginx alone keeps {100 * good / quiet:.1f} %", flush=True)
        if good >= SOME * quiet:
            break
    return rate


def _flood(rig: TrodsHostRig, kind: str, seconds: float, rate: float = FULL) -> Process:
    command = ["taskset", "-c", str(CLIENT_CORE), binary("rivulet-flood"), f"{ADDRESSES[kind]}:80", "--class", CLASS]
    command += ["--rate", str(round(rate)), "--seconds", f"{min(seconds, MOST_S):g}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return rig.start("flood", command, rig.spaces["a"], **pipes)


def _sent(flood: Process) -> Json:
    found = finish(flood)
    if found["packets"] < 10_000:
        raise RackError(f"{found['packets']} packets are no flood")
    return found


def _received(rig: TrodsHostRig, kind: str) -> int:
    """Packets of all kinds that a server's host has received."""
    name = {"kv": "s", "nginx": "n"}[kind]
    return int(rig.run(name, ["cat", f"/sys/class/net/{name}0/statistics/rx_packets"]))


def _good(rig: TrodsHostRig, kind: str, seconds: float) -> Json:
    """Good clients with kernel TCP, a new connection for each request."""
    path = rig.put(SIZE)
    command = [binary("rivulet-load"), f"http://{ADDRESSES[kind]}:80/{path}", "--transport", "tcp", "--one-thread"]
    command += ["--expect", str(rig.www / path), "--clients", str(CLIENTS), "--seconds", f"{seconds:g}"]
    return finish(rig.client_process(command))


def bars(result: Json) -> list[Bar]:
    """The flood causes no look-ups, and the good clients keep enough throughput."""
    if "flood" not in result:
        return []
    found = result["flood"]["summary"]
    what = f"{found['packets_per_second']:,.0f} spoofed ACKs a second"
    beside = f"{found['beside_good_per_second']:,.0f} of them beside good clients"
    return [
        Bar(f"{what}: look-ups in the store", sum(found["lookups_alone"].values()) + found["lookups"], 0, at_most=True),
        Bar(f"{beside}: requests that failed", found["kv"]["errors"], 0, at_most=True),
        Bar(f"{beside}: goodput, of nginx alone under the same", found["kept"], KEPT),
    ]
