"""Draws `make bench-wide` as the paper's Figures 13 to 15, and words its table for docs/results.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib import pyplot
from matplotlib.axes import Axes

from .stats import Json
from .words import table

COLOURS = {
    "rivulet": "#0b6e4f",
    "rivulet-cubic": "#7fb8a4",
    "reno": "#b23a48",
    "cubic": "#dda0a6",
    "bbr": "#4a6fa5",
}
LABELS = {
    "rivulet": "Rivulet, Reno",
    "rivulet-cubic": "Rivulet, Cubic",
    "reno": "kernel, Reno",
    "cubic": "kernel, Cubic",
    "bbr": "kernel, BBR",
}


def _lines(axis: Axes, rows: Sequence[Json], x: str, title: str, label: str, log: bool) -> None:
    """A line for each kind through its medians; the bar is from the smallest run to the largest."""
    rows = sorted(rows, key=lambda row: float(row[x]))
    for kind, colour in COLOURS.items():
        points = [(row[x], row["rates"][kind]) for row in rows if kind in row["rates"]]
        if not points:
            continue
        middle = [rates["median"] for _, rates in points]
        low = [rates["median"] - min(rates["runs"]) for _, rates in points]
        high = [max(rates["runs"]) - rates["median"] for _, rates in points]
        where = [value for value, _ in points]
        axis.errorbar(where, middle, yerr=[low, high], label=LABELS[kind], color=colour, marker="o", capsize=2)
    if log:
        axis.set_xscale("symlog", linthresh=1)
    axis.set_ylim(bottom=0)
    axis.set_title(title, loc="left", fontsize=10)
    axis.set_xlabel(label, fontsize=9)
    axis.set_ylabel("Mb/s", fontsize=9)
    axis.grid(alpha=0.3)
    for spine in ("top", "right"):
        axis.spines[spine].set_visible(False)


def _paths(axis: Axes, rows: Sequence[Json]) -> None:
    """Grouped bars, one group for each path."""
    kinds = [kind for kind in COLOURS if any(kind in row["rates"] for row in rows)]
    width = 0.8 / max(len(kinds), 1)
    for i, kind in enumerate(kinds):
        places = [g + (i - (len(kinds) - 1) / 2) * width for g in range(len(rows))]
        heights = [row["rates"].get(kind, {"median": 0.0})["median"] for row in rows]
        axis.bar(places, heights, width * 0.94, label=LABELS[kind], color=COLOURS[kind])
    axis.set_xticks(range(len(rows)), [row["name"].replace(", ", "\n") for row in rows], fontsize=7)
    axis.set_ylabel("Mb/s", fontsize=9)
    axis.set_yscale("log")
    axis.set_title("One connection by path (as Figure 15)", loc="left", fontsize=10)
    axis.grid(axis="y", alpha=0.3)
    axis.set_axisbelow(True)
    axis.legend(frameon=False, fontsize=8, ncols=5, loc="upper center", bbox_to_anchor=(0.5, -0.2))


def plot(path: Path, result: Json) -> None:
    """Draws the parts that were measured."""
    figure, axes = pyplot.subplot_mosaic([["background", "pipelined"], ["paths", "paths"]], figsize=(11, 7.6))
    background, pipelined = result.get("background", []), result.get("pipelined", [])
    _lines(axes["background"], background, "background", "Among Reno connections (Figure 13)", "connections", log=True)
    small = [row for row in pipelined if row["bytes"] == 20_000]
    _lines(axes["pipelined"], small, "rtt_ms", "Pipelined 20 kB (Figure 14)", "round trip, ms", log=False)
    _paths(axes["paths"], result.get("paths", []))
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def words(result: Json) -> str:
    """The section of docs/results.md."""
    rows = []
    for part in ("paths", "background", "pipelined"):
        for row in result.get(part, []):
            point = row.get("name") or (
                f"among {row['background']}"
                if part == "background"
                else f"{row['bytes'] // 1000} kB, {row['rtt_ms']:g} ms"
            )
            rates = [row["rates"].get(kind) for kind in COLOURS]
            rows.append((part, point, *(f"{rate['median']:.1f}" if rate else "–" for rate in rates)))
    said = [f"{result['setting']}; Mb/s, medians."]
    if result.get("note"):
        said.append(f"{result['note']}.")
    if result.get("missing"):
        said.append(f"Not in this kernel: {', '.join(result['missing'])}.")
    shares = [
        f"{row['median']:.2f} at {row['rtt_ms']:g} ms ({', '.join(f'{share:.2f}' for share in row['shares'])})"
        for row in result.get("cubic", [])
    ]
    share = f"\n\nRivulet by Cubic beside one connection of the kernel's Cubic: {'; '.join(shares)}." if shares else ""
    return " ".join(said) + "\n\n" + table(("part", "point", *LABELS.values()), rows) + share
