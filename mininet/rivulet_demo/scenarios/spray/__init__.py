"""Two clients, two servers: per-packet round robin loads the servers evenly (Figure 17 of the paper).

Both clients download over Rivulet, then both over kernel TCP, through the same links. Jain's index of the bytes that
the two had received when the first was done shows how even the shares were.
"""

from __future__ import annotations

import argparse
import dataclasses
import json

from ...fairness import jain
from ...scenario import Parameters, Standing, console, standing_rack

WORDS = __doc__ or ""


def run(values: Parameters, options: argparse.Namespace) -> int:
    """Runs the scenario; 0 if all downloads were right."""
    values = dataclasses.replace(values, replicas=2)
    report: dict[str, object] = {"scenario": "spray"}
    right = True
    with standing_rack("spray", values, policy="round_robin") as standing:
        for name in ("r1", "r2"):
            # The servers' links are the bottleneck, as in the paper.
            standing.rack.set_link(name, rate=f"{values.rate_mbit / 2:g}mbit")
        before = standing.watch.view
        for transport, via in (("rivulet", standing.via_rivulet("c1")), ("tcp", "")):
            index, good = _both(standing, transport, via)
            right = right and good
            view = standing.watch.view
            packets = [view.packets[n] - before.packets[n] for n in ("r1", "r2")] if view and before else []
            before = view
            report[transport] = {"jain": round(index, 4), "packets_of_replicas": packets}
            console.print(f"{transport:8} Jain's index {index:.4f}, packets to the replicas {packets}")
    path = values.out / "spray.json"
    path.write_text(json.dumps(report, indent=1))
    console.print(f"data: {path}", soft_wrap=True)
    return 0 if right else 1


def _both(standing: Standing, transport: str, via: str) -> tuple[float, bool]:
    standing.clients.clear()
    names = [f"{transport}-c1", f"{transport}-c2"]
    for name, host in zip(names, ("c1", "c2"), strict=True):
        standing.client(name, host, via)
    standing.run(lambda standing, elapsed: None, patience_s=600.0)
    results = [standing.result(name) for name in names]
    first = min(result["ended"] for result in results)
    shares = [max((count for at, count in r["samples"] if at <= first), default=0) for r in results]
    return jain([float(share) for share in shares]), all(r["sha256_ok"] for r in results)
