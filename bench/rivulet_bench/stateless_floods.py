"""Floods of SYNs and of forged segments beside good clients of a stateless service.

The ToR answers the SYNs and drops the forged segments, so replicas should not notice.

First it measures the rate at which the ToR handles each kind; then it offers half of that. The ToR has a core;
everything else shares the other one, with priority for replicas and good clients over attackers.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from statistics import median
from typing import Any

from rivulet_demo.scenario import Parameters, Standing, standing_rack
from rivulet_demo.services import make_file, url
from rivulet_demo.spec import SERVICE_PORT, SERVICE_V4
from rivulet_lab import Process, RackError, binary, prompt

from .bars import Bar
from .host_rig import CLIENT_CORE, SERVER_CORE, Server
from .rig import finish
from .stateless_kills import OUT, SERVICES

Json = dict[str, Any]

KINDS = ("plain-syn", "plain-data")
FILE = "small.bin"
SIZE = 1_000
RATE = 300
"""Requests a second of the good clients."""
PATIENCE_S = 1.0
"""Seconds after which an answer counts as late."""
FLOOD = 5_000_000
"""Packets a second: more than can be sent."""
SHARE = 0.5
KEPT = 0.9
MOST_CPU = {"plain-syn": 0.5, "plain-data": 5.0}
"""Percent of a core that replicas may use more; for SYNs none, within the accuracy of the measurement."""
CALM_S = 0.25


def floods(repetitions: int, seconds: float) -> Json:
    """Both kinds and none, alternating."""
    values = Parameters(rate_mbit=100.0, rtt_ms=0.1, size_mb=0.001, replicas=2, switch="embedded", out=OUT, live=False)
    make_file(OUT / "www", FILE, SIZE)
    # No limits per client, so that the ToR's own rate is measured.
    with standing_rack("floods", values, clients=2, services=SERVICES, direct=True) as standing:
        _place(standing)
        # Not read for the live view, which would cost time.
        standing.watch.interval_s = CALM_S
        time.sleep(2 * CALM_S)
        rates = {kind: _highest(standing, kind, seconds) for kind in KINDS}
        for kind, rate in rates.items():
            print(f"{kind:10} {rate:9,.0f} packets/s {'answered' if kind == 'plain-syn' else 'dropped'}", flush=True)
        rows: list[Json] = []
        for repetition in range(repetitions):
            none = _good(standing, seconds)
            for kind in KINDS:
                attack = _attack(standing, kind, SHARE * rates[kind], 60.0)
                try:
                    time.sleep(0.2)
                    before, began = _dealt_with(standing, kind), time.monotonic()
                    found = _good(standing, seconds)
                    dealt = (_dealt_with(standing, kind) - before) / (time.monotonic() - began)
                finally:
                    attack.end()
                row = {
                    "repetition": repetition,
                    "class": kind,
                    "kept": found["share"] / none["share"],
                    "replica_cpu_percent": found["cpu_percent"] - none["cpu_percent"],
                    "attack_per_second": dealt,
                    "good": found,
                    "good_alone": none,
                }
                rows.append(row)
                print(
                    f"{kind:10} {dealt:9,.0f} packets/s: good clients keep {100 * row['kept']:5.1f} %, replicas"
                    f" {row['replica_cpu_percent']:+.2f} % of a core (alone {none['cpu_percent']:.2f} %)",
                    flush=True,
                )
    summary = []
    for kind in KINDS:
        mine = [row for row in rows if row["class"] == kind]
        columns = ("kept", "replica_cpu_percent", "attack_per_second")
        summary.append(
            {"class": kind, "highest_per_second": rates[kind], **{c: median(r[c] for r in mine) for c in columns}}
        )
    return {"summary": summary, "runs": rows}


def _place(standing: Standing) -> None:
    """Puts the ToR on one core, and everything that serves on the other."""
    rack = standing.rack
    for name, process in rack.processes.items():
        for task in Path(f"/proc/{process.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), {SERVER_CORE if name == "switch" else CLIENT_CORE})


def _flags() -> list[str]:
    return ["taskset", "-c", str(CLIENT_CORE)]


def _attack(standing: Standing, kind: str, rate: float, seconds: float) -> Process:
    command = [*_flags(), binary("rivulet-flood"), f"{SERVICE_V4}:{SERVICE_PORT}", "--class", kind]
    command += ["--rate", str(max(1, round(rate))), "--seconds", f"{seconds:g}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return standing.rack.start("attack", command, standing.rack.spaces["c2"], **pipes)


def _dealt_with(standing: Standing, kind: str) -> int:
    """SYNs answered, or segments dropped for a wrong cookie, so far."""
    if kind == "plain-syn":
        return int(standing.rack.spaces["c2"].run("cat", "/sys/class/net/c2-eth0/statistics/rx_packets"))
    time.sleep(2 * CALM_S)
    view = standing.watch.view
    return 0 if view is None else view.drops.get("COOKIE", 0)


def _highest(standing: Standing, kind: str, seconds: float) -> float:
    """Packets a second that the ToR handles under overload."""
    before = _dealt_with(standing, kind)
    sent = finish(_attack(standing, kind, FLOOD, seconds))
    dealt = _dealt_with(standing, kind) - before
    if dealt < sent["packets"] / 100:
        raise RackError(f"{kind}: the ToR handled {dealt:,} of {sent['packets']:,} packets")
    return dealt / float(sent["seconds"])


def _good(standing: Standing, seconds: float) -> Json:
    """Share of requests answered in time, and CPU time of the replicas' processes meanwhile."""
    log = standing.rack.folder / "good.csv"
    command = [*prompt(), *_flags(), binary("rivulet-load"), url(FILE), "--transport", "tcp", "--one-thread"]
    command += ["--clients", "500", "--rate", str(RATE), "--seconds", f"{seconds:g}", "--timeout", "10"]
    command += ["--expect", str(OUT / "www" / FILE), "--log", str(log)]
    servers = [Server(process) for process in standing.replicas.running.values()]
    before, began = sum(server.cpu_s() for server in servers), time.monotonic()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    result = finish(standing.rack.start("good", command, standing.rack.spaces["c1"], **pipes))
    took = time.monotonic() - began
    lines = [line.split(",", 2) for line in log.read_text().splitlines()[1:]]
    good = sum(not problem and int(us) <= PATIENCE_S * 1e6 for _, us, problem in lines)
    return {
        "requests": len(lines),
        "wrong": result["wrong"],
        "share": good / len(lines),
        "cpu_percent": 100 * (sum(server.cpu_s() for server in servers) - before) / took,
        "latency_us": result["latency_us"],
    }


def bars(result: Json) -> list[Bar]:
    """Good clients keep enough, replicas do not notice, and the flood had the intended rate."""
    found = []
    for row in result.get("floods", {}).get("summary", []):
        kind = row["class"]
        wanted = 0.9 * SHARE * row["highest_per_second"]
        found.append(Bar(f"{kind}: attack packets a second", row["attack_per_second"], wanted))
        found.append(Bar(f"beside {kind}: share that good clients keep", row["kept"], KEPT))
        what = f"beside {kind}: replicas' time, percent of a core more"
        found.append(Bar(what, row["replica_cpu_percent"], MOST_CPU[kind], at_most=True))
    return found
