"""Draws `make bench-stateless`: processor time, requests a second, and time under loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib import pyplot

Json = dict[str, Any]

COLOURS = {"stateless": "#0b6e4f", "kernel": "#b23a48", "nginx": "#dda0a6"}
COLOURS |= {"with ring": "#0b6e4f", "without ring": "#7fb8a4"}
LABELS = {"stateless": "stateless TCP", "kernel": "same server, kernel's TCP", "with ring": "stateless, with ring"}
LABELS |= {"without ring": "stateless, without ring"}


def plot(path: Path, result: Json) -> None:
    """Draws all three panels."""
    figure, (rates, highest, loss) = pyplot.subplots(1, 3, figsize=(14, 4.2))
    size = 1_000
    points = [row for row in result["rates"]["summary"] if row["bytes"] == size and row["rate"]]
    for kind, column in (("stateless", "core_us"), ("kernel", "core_us_other")):
        # Percent of a core, as in the paper.
        used = [row[column] * row["rate"] / 1e4 for row in points]
        label = LABELS.get(kind, kind)
        rates.plot([row["rate"] for row in points], used, marker="o", color=COLOURS[kind], label=label)
    rates.set_xlabel("requests a second (Poisson)")
    rates.set_ylabel("% of the server's core")
    rates.set_title(f"Processor time, {size:,} bytes", loc="left", fontsize=10)

    points = result["nginx"]["summary"]
    for i, (kind, column) in enumerate((("stateless", "per_second"), ("nginx", "per_second_other"))):
        places = [at + (i - 0.5) * 0.4 for at in range(len(points))]
        highest.bar(
            places, [row[column] / 1e3 for row in points], 0.38, color=COLOURS[kind], label=LABELS.get(kind, kind)
        )
    highest.set_xticks(range(len(points)), [f"{row['bytes']:,} B" for row in points])
    highest.set_ylabel("1,000 requests a second")
    highest.set_title("New connection each, one core", loc="left", fontsize=10)

    for kind in ("kernel", "without ring", "with ring"):
        mine = [row for row in result["loss"]["summary"] if row["kind"] == kind]
        at, mean = [row["loss_percent"] for row in mine], [row["mean_ms"] for row in mine]
        loss.plot(at, mean, marker="o", color=COLOURS[kind], label=LABELS.get(kind, kind))
    loss.set_xlabel("% of packets lost each way")
    loss.set_ylabel("mean time, ms")
    loss.set_title(f"{result['loss']['bytes']:,} bytes, {result['loss']['rtt_ms']:g} ms", loc="left", fontsize=10)

    for axis in (rates, highest, loss):
        axis.set_ylim(bottom=0)
        axis.grid(axis="y", alpha=0.3)
        axis.set_axisbelow(True)
        axis.legend(frameon=False, fontsize=8)
        for spine in ("top", "right"):
            axis.spines[spine].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
