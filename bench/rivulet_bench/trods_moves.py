"""Each of three replicas is drained, gets its agent restarted and is readmitted, under 200 connections."""

from __future__ import annotations

import signal
import sys
import time
from typing import Any

from rivulet_controller.drain_progress import progress
from rivulet_demo.spec import SERVICE_PORT, SERVICE_V4
from rivulet_lab import Process, prompt

from .bars import Bar
from .stats import percentile
from .trods_clients import answer, pipes, tell
from .trods_rack import PATIENCE_S, WWW, TrodsRack, put, spec, trods_rack

Json = dict[str, Any]

REPLICAS = 3
BOUND_MS = 150.0
RATE_MBIT, RTT_MS = 1000.0, 10.0
DOWNLOADS, ASKING = 20, 180
SMALL, LARGE = 1_000, 100_000_000
QUIET_S = 3.0
"""Seconds without an upgrade, for comparison."""
STALL_MS = 50.0 + 2 * RTT_MS


def moves(rounds: int) -> Json:
    """Upgrades each replica this many times."""
    put(SMALL)
    put(LARGE)
    with trods_rack("moves", spec(REPLICAS, BOUND_MS, RATE_MBIT, RTT_MS)) as rack:
        command = [*prompt(), sys.executable, "-m", "rivulet_bench.trods_moves_clients"]
        command += [f"{SERVICE_V4}:{SERVICE_PORT}", "--www", str(WWW), "--small", f"{SMALL}.bin"]
        command += ["--large", f"{LARGE}.bin", "--downloads", str(DOWNLOADS), "--asking", str(ASKING)]
        clients = rack.start("moves", command, rack.spaces["c1"], **pipes())
        answer(clients, PATIENCE_S)
        time.sleep(QUIET_S)
        _phase(clients)
        time.sleep(QUIET_S)
        quiet = _phase(clients)
        before = rack.exclusions()
        upgrades = [_upgrade(rack, clients, name) for _ in range(rounds) for name in rack.replicas]
        status = rack.status()
        left_out = sum(rack.exclusions().values()) - sum(before.values())
        last = _phase(clients)
    hit = [gap for one in upgrades for gap in one.pop("hit")]
    restart = [gap for one in upgrades for gap in one.pop("restarted")]
    result = {
        "replicas": REPLICAS,
        "bound_ms": BOUND_MS,
        "connections": DOWNLOADS + ASKING,
        "upgrades": upgrades,
        "moved": len(hit),
        "moved_stall_ms": _percentiles(hit),
        "restart_stall_ms": _percentiles(restart),
        "quiet_ms": _percentiles(list(quiet["gaps"].values())),
        "broken": len(last["problems"]),
        "problems": last["problems"],
        "answers": last["answers"],
        "refused": sum((r["trods"] or {}).get("refused", 0) for r in status.values()),
        "left_out": left_out,
    }
    print(result, flush=True)
    return result


def _upgrade(rack: TrodsRack, clients: Process, name: str) -> Json:
    rack.until(rack.whole, "every replica takes plain TCP", PATIENCE_S)
    incarnation = rack.status()[name]["incarnation"]
    _phase(clients)
    held = rack.ports(name)
    rack.client.post(f"/api/replicas/{name}/drain")

    def is_left() -> bool:
        found = rack.status().get(name)
        return found is not None and found["draining"] and not rack.ports(name)

    took = rack.until(is_left, f"{name} is left", PATIENCE_S)
    moved = _phase(clients)["gaps"]
    rack.until(lambda: progress(rack.status()[name]).done, "its agent reports it", PATIENCE_S)
    rack.end(f"agent-{name}", signal.SIGTERM)
    rack.start_agent(name)
    rack.until(lambda: rack.status()[name]["incarnation"] not in (0, incarnation), "another agent", PATIENCE_S)
    rack.client.post(f"/api/replicas/{name}/undrain")
    rack.until(rack.whole, "it takes plain TCP again", PATIENCE_S)
    restarted = list(_phase(clients)["gaps"].values())
    hit = [gap for port, gap in moved.items() if int(port) in held]
    print(f"{name}: {len(hit)} moved in {took:.2f} s: {_percentiles(hit)} ms", flush=True)
    return {"replica": name, "moved": len(hit), "seconds": round(took, 2), "hit": hit, "restarted": restarted}


def _phase(clients: Process) -> Json:
    tell(clients)
    return answer(clients, PATIENCE_S)


def _percentiles(gaps: list[float]) -> Json:
    return {f"p{p}": round(percentile(gaps, p), 1) for p in (50, 90, 99, 100)} if gaps else {}


def bars(result: Json) -> list[Bar]:
    """No connection breaks, no live replica is excluded, and moves take little time."""
    if "moves" not in result:
        return []
    found = result["moves"]
    what = f"rolling restart of {found['replicas']} replicas under {found['connections']} connections"
    return [
        Bar(f"{what}: broken", found["broken"] + found["refused"], 0, at_most=True),
        Bar(f"{what}: connections that moved", found["moved"], found["connections"] / 2, at_most=False),
        Bar(f"{what}: stall of those that move, p99, ms", found["moved_stall_ms"]["p99"], STALL_MS, at_most=True),
        Bar(f"{what}: replicas that the ToR excluded", found["left_out"], 0, at_most=True),
    ]
