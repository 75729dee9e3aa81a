"""The soak: kills at random times in downloads of 1 kB to 100 MB, one to N-1 replicas at once.

Every download must be complete, over one connection. A short download meets one kill, at a random time from the start
of its program to its expected end; a long one meets several. bench/results/soak.csv has a row per download; soak.json
sums up the longest time without a new in-order byte after a kill.
"""

from __future__ import annotations

import csv
import json
import math
import random
import sys
import time
from typing import Any

from rivulet_demo.meter import longest_gap
from rivulet_demo.scenario import Standing
from rivulet_demo.services import make_file
from rivulet_lab import RackError

from .bars import Bar, judge
from .rig import BUILD, Setting, flags, rig
from .stats import RESULTS, Json, percentile, save

SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)
RETURN_S = 0.5
"""Seconds until a killed replica is restarted; much less would not be an outage."""

START_S = 0.15
"""Typical seconds from the start of curl under `rivulet run` to its first byte."""

PATIENCE_S = 120.0
KILLS = 1000
"""Least number of kills for the claim."""
STALL_P99_MS = 250.0
"""Bound of the longest time without a new byte in the second after a kill, 99th percentile."""


def bars(result: Json) -> list[Bar]:
    """No download breaks, and the stall after a kill is bounded."""
    return [
        Bar("kills", result["kills"], KILLS),
        Bar("broken downloads", result["broken"], 0, at_most=True),
        Bar("stall p99, ms", result["stall_ms"].get("p99", math.nan), STALL_P99_MS, at_most=True),
    ]


class Chaos:
    """Kills one to N-1 of the live replicas at chosen times, and restarts them."""

    def __init__(self, standing: Standing, rng: random.Random) -> None:
        self.standing = standing
        self.kills: list[tuple[float, str]] = []
        self._rng = rng
        self._names = [host.name for host in standing.rack.spec.of("replica")]
        self._back: dict[str, float] = {}

    def all_up(self) -> bool:
        """Whether the switch considers every replica live; a replica returns after a few heartbeats."""
        self.bring_back()
        view = self.standing.watch.view
        return not self._back and view is not None and not any(view.excluded(name) for name in self._names)

    def bring_back(self) -> None:
        """Restarts replicas that have been dead for long enough."""
        now = time.monotonic()
        for name in [name for name, at in self._back.items() if now >= at]:
            del self._back[name]
            self.standing.restart(name)

    def strike(self) -> None:
        """Kills some replicas, at most all but one."""
        for name in self._rng.sample(self._names, self._rng.randint(1, len(self._names) - 1)):
            self.standing.kill(name)
            at = self.standing.marks[-1][0]
            self.kills.append((at, name))
            self._back[name] = at + self._rng.uniform(0.5, 1.5) * RETURN_S


def download(standing: Standing, chaos: Chaos, rng: random.Random, size: int, pause: float) -> dict[str, Any]:
    """One download with its kills; returns the client's result. RackError if it does not end."""
    standing.rack.until(chaos.all_up, "the replicas come back", 60.0)
    began = time.monotonic()
    standing.client("soak", "c1", standing.via_rivulet("c1"), f"soak-{size}.bin", size)
    process, _ = standing.clients["soak"]
    # The file with the byte count appears when curl is started.
    while process.running() and not standing.started("soak"):
        time.sleep(0.001)
    expected = START_S + size * 8 / (standing.parameters.rate_mbit * 1e6)
    strike = time.monotonic() + rng.uniform(0.0, min(expected, 2 * pause))
    while process.running():
        chaos.bring_back()
        now = time.monotonic()
        if now >= strike and chaos.all_up():
            chaos.strike()
            strike = now + rng.uniform(0.5, 1.5) * pause
        if now - began > PATIENCE_S + 10 * expected:
            raise RackError(f"a download of {size} bytes does not end; seed and logs tell which")
        time.sleep(0.001)
    return standing.result("soak")


def row(size: int, sha256: str, result: dict[str, Any], kills: list[float]) -> tuple[dict[str, Any], list[float]]:
    """A row of the table for a download, and the stalls of its kills in ms."""
    samples = [(float(at), int(count)) for at, count in result["samples"]]
    inside = [at for at in kills if result["started"] <= at < result["ended"]]
    # A kill before the first byte costs time too, so the start counts as a sample.
    samples = [(float(result["started"]), 0), *samples]
    felt = [longest_gap(samples, at, at + 1.0) * 1e3 for at in inside]
    return {
        "bytes": size,
        "kills": len(inside),
        "whole": int(result["complete"] and result["sha256"] == sha256),
        "connections": result["connections_opened"],
        "failures": len(result["failures"]),
        "seconds": round(result["ended"] - result["started"], 3),
        "longest_stall_ms": round(max(felt), 1) if felt else "",
    }, felt


def main() -> int:
    """Runs until enough kills have hit downloads; judges the bars."""
    parser = flags(__doc__ or "")
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--pause", type=float, default=1.0, help="mean seconds between kills in a long download")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=1500.0, help="time limit in seconds")
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="bytes of the largest file")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    sizes = [size for size in SIZES if size <= options.largest]
    digests = {size: make_file(BUILD / "www", f"soak-{size}.bin", size) for size in sizes}
    rows: list[dict[str, Any]] = []
    stalls: list[float] = []
    broken: list[dict[str, Any]] = []
    kills = 0
    began = time.monotonic()
    with rig("soak", Setting()) as standing:
        chaos = Chaos(standing, rng)
        while kills < options.kills and time.monotonic() - began < options.limit:
            size, first = rng.choice(sizes), len(chaos.kills)
            result = download(standing, chaos, rng, size, options.pause)
            line, felt = row(size, digests[size], result, [at for at, _ in chaos.kills[first:]])
            rows.append(line)
            stalls += felt
            kills += line["kills"]
            if not line["whole"] or line["connections"] != 1 or line["failures"]:
                deeds = [[round(at - result["started"], 4), who] for at, who in chaos.kills[first:]]
                broken.append({**line, "messages": result["failures"], "killed": deeds})
                print(f"\nbroken: {json.dumps(broken[-1])}", flush=True)
            print(f"\r{kills} kills, {len(rows)} downloads, {len(broken)} broken   ", end="", flush=True)
    print()
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (RESULTS / "soak.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    summary = {
        "kills": kills,
        "downloads": len(rows),
        "broken": len(broken),
        "broken_downloads": broken,
        "seconds": round(time.monotonic() - began),
        "stall_ms": {f"p{p}": round(percentile(stalls, p), 1) for p in (50, 90, 99, 100)} if stalls else {},
        "seed": options.seed,
    }
    print(save("soak", summary), summary)
    return judge(bars(summary))


if __name__ == "__main__":
    sys.exit(main())
