"""Large downloads by stateless TCP behind the ToR: through kills, and three replicas compared with one."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from rivulet_demo.deeds import Deed, of_plan
from rivulet_demo.meter import longest_gap
from rivulet_demo.plan import failover
from rivulet_demo.report import RIVULET, STATELESS, TCP, kept, three_clients
from rivulet_demo.scenario import Parameters, Standing, standing_rack
from rivulet_demo.services import SwitchView, url
from rivulet_demo.spec import BOTH_SERVICES, STATELESS_PORT

from .bars import Bar
from .rig import BUILD
from .stats import percentile

Json = dict[str, Any]

OUT = BUILD / "stateless-large"
SIZE_MB = 200.0
KILLS = 3
AWAY_S = 1.0
"""Seconds until a killed replica is restarted."""
STALL_S = 2.0
"""Seconds after a kill; a gap that begins later has another cause."""
DEMO_RATES = (100.0, 50.0)
DEMO_MB = 100.0


def _values(rate_mbit: float = 100.0, size_mb: float = SIZE_MB, replicas: int = 3) -> Parameters:
    return Parameters(
        rate_mbit=rate_mbit, rtt_ms=10.0, size_mb=size_mb, replicas=replicas, switch="embedded", out=OUT, live=False
    )


def kills(repetitions: int) -> Json:
    """A download whose replica is killed three times, alternating with one of Reno's without kills."""
    rows, stalls = [], []
    with standing_rack("kills", _values(), clients=1, services=BOTH_SERVICES, serve=("--large",)) as standing:
        for _ in range(repetitions):
            reno = _download(standing, TCP, url("file.bin"), 0)
            large = _download(standing, STATELESS, url("file.bin", STATELESS_PORT), KILLS)
            stalls += large.pop("stalls_ms")
            rows.append({"reno_mbps": reno["mbps"], **large})
            print(rows[-1], [round(stall) for stall in stalls[-KILLS:]], flush=True)
    ratio = statistics.median(row["mbps"] for row in rows) / statistics.median(row["reno_mbps"] for row in rows)
    return {
        "megabytes": SIZE_MB,
        "downloads": rows,
        "kills": len(stalls),
        "broken": sum(row["broken"] for row in rows),
        "stall_ms": {f"p{p}": round(percentile(stalls, p), 1) for p in (50, 90, 99)},
        "of_reno": ratio,
    }


def _download(standing: Standing, name: str, address: str, wanted: int) -> Json:
    """One download; kills the sending replica at the given times."""
    standing.clients.clear()
    standing.client(name, "c1", "", address=address)
    seconds = standing.parameters.size * 8 / (standing.parameters.rate_mbit * 1e6)
    dice = random.Random(standing.marks[-1][0] if standing.marks else 0.0)
    at = [(n + dice.uniform(0.3, 0.7)) * 0.9 * seconds / max(wanted, 1) for n in range(wanted)]
    back: list[tuple[float, str]] = []
    before, first = len(standing.marks), 0.0
    views: list[SwitchView] = []

    def act(standing: Standing, elapsed: float) -> None:
        nonlocal first
        now = time.monotonic()
        if standing.watch.view is not None:
            views.append(standing.watch.view)
            del views[:-10]
        if not first and standing.so_far(name):
            first = now
        if first and at and now - first >= at[0]:
            at.pop(0)
            victim = views[-1].busiest(views[0], standing.replicas.alive())
            standing.kill(victim)
            back.append((now + AWAY_S, victim))
        if back and now >= back[0][0]:
            standing.restart(back.pop(0)[1])

    standing.run(act, patience_s=60 + 6 * seconds)
    for _, victim in back:
        standing.restart(victim)
    result = standing.result(name)
    samples = [(float(when), int(count)) for when, count in result["samples"]]
    struck = [when for when, what, _ in standing.marks[before:] if what == "kill"]
    # All replicas must be live before the next download.
    time.sleep(2 * AWAY_S)
    return {
        "mbps": result["bytes"] * 8 / (result["ended"] - result["started"]) / 1e6,
        "broken": int(not result["sha256_ok"] or result["connections_opened"] != 1 or bool(result["failures"])),
        "stalls_ms": [longest_gap(samples, when, when + STALL_S) * 1e3 for when in struck],
    }


def demo(repetitions: int) -> list[Json]:
    """The three clients of `make demo`: without kills, with three replicas and with one, and the demo itself."""
    found = []
    for rate in DEMO_RATES:
        got: dict[str, dict[str, list[float]]] = {}
        broken = 0
        for _ in range(repetitions):
            for what, replicas in (("three", 3), ("one", 1), ("kills", 3)):
                values = _values(rate, DEMO_MB, replicas)
                report = three_clients(f"demo-{what}", values, _planner(what))
                for name, client in report["clients"].items():
                    got.setdefault(what, {}).setdefault(name, []).append(client["goodput_mbps"])
                    broken += name != TCP and not kept(client)
        medians = {
            what: {name: statistics.median(rates) for name, rates in clients.items()} for what, clients in got.items()
        }
        print(f"{rate:g} Mb/s: {medians}, {broken} broken", flush=True)
        found.append({"rate_mbit": rate, "mbps": got, "medians": medians, "broken": broken})
    return found


def _planner(what: str) -> Callable[[Standing, float], list[Deed]]:
    def plan(standing: Standing, seconds: float) -> list[Deed]:
        return of_plan(failover(standing.replicas.alive(), seconds)) if what == "kills" else []

    return plan


def bars(result: Json) -> list[Bar]:
    """Nothing breaks, and the cost of kills and of several replicas is bounded."""
    found = []
    if "kills" in result:
        part = result["kills"]
        found += [
            Bar("200 MB, three kills: broken downloads", part["broken"], 0, at_most=True),
            Bar("200 MB, three kills: stall p50, ms", part["stall_ms"]["p50"], 80, at_most=True),
            Bar("200 MB, three kills: stall p99, ms", part["stall_ms"]["p99"], 300, at_most=True),
            Bar("200 MB, three kills: of Reno's rate without", part["of_reno"], 0.95),
        ]
    for part in result.get("demo", []):
        rate, medians = f"three clients at {part['rate_mbit']:g} Mb/s", part["medians"]
        found.append(Bar(f"{rate}: broken", part["broken"], 0, at_most=True))
        for name in (RIVULET, STATELESS):
            found.append(
                Bar(f"{rate}: {name}, three replicas of one", medians["three"][name] / medians["one"][name], 0.97)
            )
            share = medians["kills"][name] / medians["kills"][TCP]
            found.append(Bar(f"{rate}: {name} through kills, relative to TCP that reconnects", share, 1.0))
    return found
