"""Kills of replicas under plain clients: only the client's kernel holds a connection, so none may fail.

stateless-kills.csv has a row per kill: the requests in progress, and their results.
"""

from __future__ import annotations

import csv
import random
import subprocess
import time
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rivulet_demo.scenario import Parameters, Standing, standing_rack
from rivulet_demo.services import make_file, url
from rivulet_demo.spec import SERVICE_PORT
from rivulet_lab import Process, RackError, binary, prompt

from .bars import Bar
from .rig import BUILD, finish
from .stats import RESULTS, percentile

Json = dict[str, Any]

OUT = BUILD / "stateless"
SERVICES = (("files", SERVICE_PORT, "stateless"),)
REPLICAS = 4
KILLS = 1_000
CLIENTS = ("c1", "c2")
PAUSE_S = 0.15
"""Least seconds between two kills."""
RETURN_S = 0.1
"""Seconds until a killed replica is restarted."""


@dataclass(frozen=True, slots=True)
class Load:
    """Load of a client: file, requests a second, parallel requests."""

    size: int
    rate: float
    at_a_time: int
    timeout_s: int = 60

    @property
    def file(self) -> str:
        """Name of the file."""
        return f"{self.size}.bin"


@dataclass(frozen=True, slots=True)
class Mix:
    """Loads that run while replicas die."""

    name: str
    loads: tuple[Load, ...]
    serve: tuple[str, ...] = ()


SMALL = Mix("stateless-kills", (Load(10_000, 100, 500),))
LARGE = Mix(
    "stateless-large-kills",
    (
        Load(1_000, 20, 100),
        Load(100_000, 5, 50),
        Load(1_000_000, 1, 10),
        Load(10_000_000, 0.1, 4, 300),
        Load(100_000_000, 0.02, 1, 600),
    ),
    ("--large",),
)


@dataclass(frozen=True, slots=True)
class Request:
    """One request of the log, with seconds of the monotonic clock."""

    began: float
    ended: float
    problem: str


def kills(wanted: int, limit_s: float, seed: int, mix: Mix = SMALL) -> Json:
    """Kills one replica after the other while another is live, until the number or the time is reached."""
    values = Parameters(
        rate_mbit=100.0, rtt_ms=10.0, size_mb=0.001, replicas=REPLICAS, switch="embedded", out=OUT, live=False
    )
    www = OUT / mix.name
    for load in mix.loads:
        make_file(www, load.file, load.size)
    with standing_rack("kills", values, clients=len(CLIENTS), services=SERVICES, serve=mix.serve, www=www) as standing:
        loads = {(host, load): _load(standing, host, load, www, limit_s + 30) for host in CLIENTS for load in mix.loads}
        time.sleep(1.0)
        struck = _strike(standing, wanted, limit_s, random.Random(seed), loads)
        time.sleep(1.0)
        results, requests = [], []
        for (host, load), process in loads.items():
            # Ends its requests as if its time were over.
            results.append(_ended(process, load.timeout_s + 30.0))
            requests += _read(standing.rack.folder / f"requests-{host}-{load.size}.csv")
    rows = _rows(struck, requests)
    # Too few kills are no result.
    path = (RESULTS if len(rows) >= KILLS else OUT) / f"{mix.name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    times = [(r.ended - r.began) * 1e3 for r in requests if not r.problem]
    under_way = [row["longest_ms"] for row in rows if row["under_way"]]
    summary = {
        "kills": len(rows),
        "requests": len(requests),
        "failed": sum(result["errors"] for result in results),
        "wrong": sum(result["wrong"] for result in results),
        "first_error": next((r["first_error"] for r in results if r["first_error"]), None),
        "under_way": sum(row["under_way"] for row in rows),
        "request_ms": {f"p{p}": round(percentile(times, p), 1) for p in (50, 90, 99, 100)},
        "longest_of_a_kill_ms": {f"p{p}": round(percentile(under_way, p), 1) for p in (50, 90, 99, 100)},
        "seed": seed,
    }
    print(summary, flush=True)
    return summary


def _load(standing: Standing, host: str, load: Load, www: Path, seconds: float) -> Process:
    log = standing.rack.folder / f"requests-{host}-{load.size}.csv"
    command = [*prompt(), binary("rivulet-load"), url(load.file), "--transport", "tcp", "--one-thread"]
    command += ["--clients", str(load.at_a_time), "--rate", f"{load.rate:g}", "--seconds", f"{seconds:g}"]
    command += ["--timeout", str(load.timeout_s)]
    command += ["--expect", str(www / load.file), "--log", str(log), "--until-input-ends"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return standing.rack.start(f"load-{host}-{load.size}", command, standing.rack.spaces[host], **pipes)


def _ended(load: Process, patience_s: float) -> Json:
    assert load.popen.stdin is not None
    load.popen.stdin.close()
    load.popen.stdin = None
    return finish(load, patience_s)


def _strike(
    standing: Standing, wanted: int, limit_s: float, rng: random.Random, loads: dict[tuple[str, Load], Process]
) -> list[tuple[float, str, int]]:
    """Kills: time, replica, number of other live ones."""
    names = [host.name for host in standing.rack.spec.of("replica")]
    struck: list[tuple[float, str, int]] = []
    back: dict[str, float] = {}
    returned = dict.fromkeys(names, 0)
    began = next_kill = time.monotonic()
    while len(struck) < wanted and (now := time.monotonic()) - began < limit_s:
        ended = [load for load in loads.values() if not load.running()]
        if ended:
            finish(ended[0])
            raise RackError("the load ended before the kills")
        for name in [name for name, at in back.items() if now >= at]:
            del back[name]
            standing.restart(name)
        view = standing.watch.view
        # A restarted replica counts as live after the switch has readmitted it.
        there = [
            name
            for name in names
            if name not in back
            and view is not None
            and not view.excluded(name)
            and view.returns[name] >= returned[name]
        ]
        if now >= next_kill and len(there) >= 2:
            victim = rng.choice(there)
            assert view is not None
            returned[victim] = view.returns[victim] + 1
            standing.kill(victim)
            struck.append((standing.marks[-1][0], victim, len(there) - 1))
            back[victim] = now + rng.uniform(0.5, 1.5) * RETURN_S
            next_kill = now + rng.uniform(0.5, 1.5) * PAUSE_S
            if len(struck) % 50 == 0:
                print(f"{len(struck)} kills in {now - began:.0f} s", flush=True)
        time.sleep(0.002)
    return struck


def _read(log: Path) -> list[Request]:
    found = []
    for line in log.read_text().splitlines()[1:]:
        began, took, problem = line.split(",", 2)
        found.append(Request(int(began) / 1e6, (int(began) + int(took)) / 1e6, problem))
    return found


def _rows(struck: list[tuple[float, str, int]], requests: list[Request]) -> list[Json]:
    """Requests in progress at each kill."""
    requests = sorted(requests, key=lambda r: r.began)
    begins = [r.began for r in requests]
    start = struck[0][0] if struck else 0.0
    rows = []
    for at, name, others in struck:
        # No request takes longer than its timeout.
        first, last = bisect_left(begins, at - 600.0), bisect_left(begins, at)
        hit = [r for r in requests[first:last] if r.ended > at]
        longest = max((r.ended - r.began for r in hit), default=0.0)
        rows.append(
            {
                "at_s": round(at - start, 3),
                "replica": name,
                "others": others,
                "under_way": len(hit),
                "failed": sum(bool(r.problem) for r in hit),
                "longest_ms": round(longest * 1e3, 1),
            }
        )
    return rows


def bars(result: Json) -> list[Bar]:
    """No request fails."""
    found = result.get("kills")
    if not found:
        return []
    return [
        Bar("kills under load", found["kills"], KILLS),
        Bar(f"{found['kills']:,} kills: requests that failed", found["failed"], 0, at_most=True),
        Bar(f"{found['kills']:,} kills: answers with wrong bytes", found["wrong"], 0, at_most=True),
    ]
