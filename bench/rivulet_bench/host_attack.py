"""Good clients beside attackers that send ten times as many packets: their remaining throughput for each kind of
attack.

First it measures the rate at which the server refuses each kind (for SYNs: answers them). Then a shaper limits the
good clients so far that ten times their packets, plus theirs, stay below 80 % of the lowest of these rates.
"""

from __future__ import annotations

import time
from typing import Any

from rivulet_lab import Process, RackError, binary

from .bars import Bar
from .host_rig import RIVULET_PORT, SERVICE, HostRig, Server, host_rig, shaped
from .rig import finish
from .stats import interval

Json = dict[str, Any]

CLASSES = ("wrong-keys", "expired-epochs", "garbage", "syn", "syn-data", "forged", "bad-mac")
ANSWERED = ("syn", "syn-data")
FLOOD = 2_000_000
"""Packets a second offered when the refusal rate is measured: more than can be sent."""
FRAME = 1514 + 24
TIMES = 10
SHARE = 0.8
DEALT = 0.9
"""Least part of the intended attack that must arrive, so that the result means something."""
KEPT = 0.9
MOST_MBIT = 100.0


def attacks(repetitions: int, seconds: float) -> Json:
    """All classes, one after the other."""
    with host_rig("attack", attackers=True) as rig:
        server = rig.start_rivulet()
        rates = {name: refusal_rate(rig, name) for name in CLASSES}
        for name, rate in rates.items():
            print(f"{name:15} {rate:9,.0f} packets/s {'answered' if name in ANSWERED else 'refused'}", flush=True)
        # One response per request: the good clients' packets to the server are as many as their received frames.
        good = SHARE * min(rates.values()) / (TIMES + 1)
        mbit = min(MOST_MBIT, good * FRAME * 8 / 1e6)
        shaped(rig, "m", "mc0", mbit)
        rows: list[Json] = []
        for repetition in range(repetitions):
            alone = good_clients(rig, mbit, seconds)
            for name in CLASSES:
                rows.append({"repetition": repetition, **beside(rig, server, name, mbit, seconds, alone)})
                row = rows[-1]
                print(
                    f"{name:15} good clients keep {100 * row['kept']:5.1f} %  ({row['attack_per_good']:.1f} attack"
                    f" packets each, memory {row['memory_bytes']:+,} bytes)",
                    flush=True,
                )
    return {
        "refused_per_second": rates,
        "good_mbit": mbit,
        "good_packets_per_second": interval([r["good_packets_per_second"] for r in rows])[0],
        "summary": [summary(name, rows) for name in CLASSES],
        "runs": rows,
    }


def flood(rig: HostRig, name: str, rate: float, seconds: float) -> Process:
    """Starts an attack from the third host."""
    command = [binary("rivulet-flood"), f"{SERVICE}:{RIVULET_PORT}", "--class", name]
    command += ["--keys", str(rig.folder / "keys.toml"), "--rate", str(max(1, round(rate)))]
    return rig.client([*command, "--seconds", f"{seconds:g}"], "a")


def taken(rig: HostRig, name: str) -> float:
    """Packets of this class that the server has handled; SYNs count with those of good clients."""
    metrics = rig.metrics()
    if name in ANSWERED:
        return metrics["rivulet_requests_total"]
    return sum(value for key, value in metrics.items() if key.startswith("rivulet_refused_total"))


def refusal_rate(rig: HostRig, name: str, seconds: float = 1.0) -> float:
    """Packets of a class that the server refuses per second under overload."""
    before = taken(rig, name)
    sent = finish(flood(rig, name, FLOOD, seconds))
    # The server publishes its counters in intervals.
    time.sleep(0.2)
    refused = taken(rig, name) - before
    if refused < 500:
        raise RackError(f"{name}: {refused:,.0f} of {sent['packets']:,} packets were counted as refused")
    return refused / float(sent["seconds"])


def good_clients(rig: HostRig, mbit: float, seconds: float) -> Json:
    """Throughput of the good clients: four, with one long download each."""
    path = rig.put(round(mbit * 1e6 / 8 * seconds / 4))
    before = taken(rig, "syn")
    result = rig.load("rivulet", path, clients=4, requests=1, seconds=60)
    return {**result, "packets": taken(rig, "syn") - before}


def beside(rig: HostRig, server: Server, name: str, mbit: float, seconds: float, alone: Json) -> Json:
    """Good clients beside attackers of one class."""
    good = alone["packets"] / alone["seconds"]
    memory, before, began = server.anonymous_bytes(), taken(rig, name), time.monotonic()
    attack = flood(rig, name, TIMES * good, 60.0)
    try:
        result = good_clients(rig, mbit, seconds)
    finally:
        # The attack ends with the good clients; the server has counted it until then.
        attack.end()
    took = time.monotonic() - began
    dealt = taken(rig, name) - before - (alone["packets"] if name in ANSWERED else 0)
    return {
        "class": name,
        "mbps": result["mbps"],
        "kept": result["mbps"] / alone["mbps"],
        "good_packets_per_second": good,
        "attack_per_good": dealt / took / good,
        "memory_bytes": server.anonymous_bytes() - memory,
    }


def bars(summaries: list[Json]) -> list[Bar]:
    """Good clients keep enough throughput beside each class, and each attack had the intended rate."""
    found = []
    for row in summaries:
        found.append(
            Bar(f"beside {row['class']}: attack packets for a good one", row["attack_per_good"], DEALT * TIMES)
        )
        found.append(Bar(f"beside {row['class']}: share that good clients keep", row["kept"], KEPT))
    return found


def summary(name: str, rows: list[Json]) -> Json:
    """Results of the attacks of one class."""
    mine = [r for r in rows if r["class"] == name]
    kept, half = interval([r["kept"] for r in mine])
    memory = max(r["memory_bytes"] for r in mine)
    row = {
        "class": name,
        "kept": kept,
        "kept_half_95": half,
        "wanted": KEPT,
        "attack_per_good": interval([r["attack_per_good"] for r in mine])[0],
        "memory_bytes_most": memory,
    }
    return {**row, "reached": all(bar.reached for bar in bars([row]))}
