"""The soak: kills at random moments of downloads from 1 kB to 100 MB, one to N-1 replicas at once.

Every download must be whole, over one connection. A row a download goes to bench/results/soak.csv; what a kill
cost (the longest time without a new in-order byte) is summed up in soak.json.
"""

from __future__ import annotations

import contextlib
import csv
import random
import sys
import time
from typing import Any

from rivulet_demo.meter import longest_gap
from rivulet_demo.scenario import Standing
from rivulet_demo.services import make_file

from .rig import BUILD, Setting, flags, rig
from .stats import RESULTS, percentile, save

SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)
RETURN_S = 0.5
"""A killed replica comes back after about so long: shorter would be a process that never died."""


class Chaos:
    """Kills one to N-1 of the live replicas at random moments, and brings them back."""

    def __init__(self, standing: Standing, rng: random.Random, pause_s: float) -> None:
        self.standing = standing
        self.kills: list[tuple[float, str]] = []
        self._rng = rng
        self._pause = pause_s
        self._names = [host.name for host in standing.rack.spec.of("replica")]
        self._next = time.monotonic() + pause_s
        self._back: dict[str, float] = {}

    def step(self) -> None:
        """Does what is due."""
        now = time.monotonic()
        for name in [name for name, at in self._back.items() if now >= at]:
            del self._back[name]
            self.standing.restart(name)
        # The switch takes a replica back after a few heartbeats; only what it holds for alive counts as up.
        view = self.standing.watch.view
        up = [name for name in self._names if name not in self._back and view is not None and not view.excluded(name)]
        if now >= self._next and len(up) == len(self._names):
            self._next = now + self._rng.uniform(0.5, 1.5) * self._pause
            for name in self._rng.sample(up, self._rng.randint(1, len(up) - 1)):
                self.standing.kill(name)
                self.kills.append((self.standing.marks[-1][0], name))
                self._back[name] = now + self._rng.uniform(0.5, 1.5) * RETURN_S


def main() -> int:
    """Runs until so many kills have been done; 0 if no download was broken."""
    parser = flags(__doc__ or "")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--pause", type=float, default=1.0, help="mean seconds between deeds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds after which it ends all the same")
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="bytes of the largest file")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    sizes = [size for size in SIZES if size <= options.largest]
    digests = {size: make_file(BUILD / "www", f"soak-{size}.bin", size) for size in sizes}
    rows: list[dict[str, Any]] = []
    stalls: list[float] = []
    began = time.monotonic()
    with rig("soak", Setting()) as standing:
        chaos = Chaos(standing, rng, options.pause)
        while len(chaos.kills) < options.kills and time.monotonic() - began < options.limit:
            size = rng.choice(sizes)
            first = len(chaos.kills)
            standing.client("soak", "c1", standing.via_rivulet("c1"), f"soak-{size}.bin", size)
            process, _ = standing.clients["soak"]
            while process.running():
                chaos.step()
                time.sleep(0.002)
            result = standing.result("soak")
            mine = [at for at, _ in chaos.kills[first:]]
            samples = [(float(at), int(count)) for at, count in result["samples"]]
            felt = [longest_gap(samples, at, at + 1.0) * 1e3 for at in mine if samples and at < samples[-1][0]]
            stalls += felt
            rows.append(
                {
                    "bytes": size,
                    "kills": len(mine),
                    "whole": int(result["complete"] and result["sha256"] == digests[size]),
                    "connections": result["connections_opened"],
                    "failures": len(result["failures"]),
                    "seconds": round(result["ended"] - result["started"], 3),
                    "longest_stall_ms": round(max(felt), 1) if felt else "",
                }
            )
            broken = sum(1 for row in rows if not row["whole"] or row["connections"] != 1)
            print(f"\r{len(chaos.kills)} kills, {len(rows)} downloads, {broken} broken   ", end="", flush=True)
        kills = len(chaos.kills)
    print()
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (RESULTS / "soak.csv").open("w", newline="") as file, contextlib.suppress(IndexError):
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    summary = {
        "kills": kills,
        "downloads": len(rows),
        "broken": broken,
        "stall_ms": {f"p{p}": round(percentile(stalls, p), 1) for p in (50, 90, 99, 100)} if stalls else {},
        "seed": options.seed,
    }
    print(save("soak", summary), summary)
    return 0 if broken == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
