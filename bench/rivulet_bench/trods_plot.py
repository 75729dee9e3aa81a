"""Draws `make bench-trods`: stalls by age, requests a second, and the longest gap of each kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib import pyplot

Json = dict[str, Any]

COLOURS = {"kv": "#0b6e4f", "wake client": "#7fb8a4", "reconnect": "#b23a48", "nginx": "#b23a48"}
LABELS = {"kv": "TRODS", "wake client": "TRODS, the client wakes", "reconnect": "kernel TCP, curl tries again"}
LABELS |= {"nginx": "nginx alone"}


def plot(path: Path, result: Json) -> None:
    """Draws all three panels."""
    figure, (stalls, rates, kills) = pyplot.subplots(1, 3, figsize=(14, 4.2))
    for kind in dict.fromkeys(row["kind"] for row in result["stall"]["summary"]):
        mine = [row for row in result["stall"]["summary"] if row["kind"] == kind]
        ages = [row["age_s"] for row in mine]
        label = LABELS[kind]
        stalls.plot(ages, [row["p50_ms"] for row in mine], marker="o", color=COLOURS[kind], label=label)
        stalls.plot(ages, [row["p99_ms"] for row in mine], marker="o", ls=":", color=COLOURS[kind])
    stalls.set_xscale("log")
    stalls.set_yscale("log")
    stalls.set_xlabel("age of the request at the kill, s")
    stalls.set_ylabel("stall, ms (p50; dotted: p99)")
    stalls.set_title("The link of the replica is cut", loc="left", fontsize=10)

    points = result["cost"]["rates"]["summary"]
    for i, kind in enumerate(("kv", "nginx")):
        places = [at + (i - 0.5) * 0.4 for at in range(len(points))]
        rates.bar(places, [p[kind]["per_second"] / 1e3 for p in points], 0.38, color=COLOURS[kind], label=LABELS[kind])
    rates.set_xticks(range(len(points)), [f"{row['bytes']:,} B" for row in points])
    rates.set_ylabel("1,000 requests a second")
    rates.set_ylim(bottom=0)
    rates.set_title("New connection each, nginx on one core", loc="left", fontsize=10)

    ordered = sorted(result["kills"]["longest_ms"])
    kills.step(ordered, [(at + 1) / len(ordered) for at in range(len(ordered))], where="post", color=COLOURS["kv"])
    kills.set_xscale("log")
    kills.set_ylim(0, 1.02)
    kills.set_xlabel("longest gap of a connection that a kill hit, ms")
    kills.set_ylabel("share of kills")
    kills.set_title(f"{result['kills']['kills']:,} kills", loc="left", fontsize=10)

    for axis in (stalls, rates, kills):
        axis.grid(axis="y", alpha=0.3)
        axis.set_axisbelow(True)
        for spine in ("top", "right"):
            axis.spines[spine].set_visible(False)
    # In a corner without lines.
    stalls.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0.0, 0.46))
    rates.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
