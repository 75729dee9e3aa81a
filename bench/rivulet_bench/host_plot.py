"""Draws `make bench-host`: throughput, processor time, requests a second, and good clients under attack."""

from __future__ import annotations

from math import nan
from pathlib import Path
from typing import Any

from matplotlib import pyplot
from matplotlib.axes import Axes

Json = dict[str, Any]

COLOURS = {
    "rivulet": "#0b6e4f",
    "rivulet, no delta": "#7fb8a4",
    "rivulet, token": "#7fb8a4",
    "rivulet, af_xdp": "#e0a030",
    "rivulet, both af_xdp": "#f0c878",
    "rivulet, both af_xdp, token": "#a87820",
    "tcp reno": "#b23a48",
    "tcp cubic": "#dda0a6",
    "nginx": "#b23a48",
    "nginx, fast open": "#dda0a6",
}
LABELS = {"rivulet": "Rivulet", "rivulet, no delta": "Rivulet, no delta", "rivulet, token": "Rivulet, address token"}
LABELS |= {
    "rivulet, af_xdp": "Rivulet, server by AF_XDP",
    "rivulet, both af_xdp": "both ends by AF_XDP",
    "rivulet, both af_xdp, token": "both, address token",
}
LABELS |= {"tcp reno": "kernel TCP, Reno", "tcp cubic": "kernel TCP, CUBIC", "nginx, fast open": "nginx, TCP Fast Open"}


def groups(axis: Axes, names: list[str], series: dict[str, list[tuple[float, float]]], y: str, title: str) -> None:
    """Grouped bars with 95 % intervals."""
    width = 0.8 / len(series)
    for i, (name, values) in enumerate(series.items()):
        places = [g + (i - (len(series) - 1) / 2) * width for g in range(len(names))]
        axis.bar(
            places,
            [v for v, _ in values],
            width * 0.94,
            yerr=[h for _, h in values],
            label=LABELS.get(name, name),
            color=COLOURS.get(name, "#555555"),
            error_kw={"linewidth": 0.8, "capsize": 2},
        )
    axis.set_xticks(range(len(names)), names, fontsize=8)
    axis.set_ylabel(y, fontsize=9)
    axis.set_title(title, loc="left", fontsize=10)
    axis.grid(axis="y", alpha=0.3)
    axis.set_axisbelow(True)
    for spine in ("top", "right"):
        axis.spines[spine].set_visible(False)


def below(axis: Axes, distance: float) -> None:
    """Puts the legend below the axis, where it hides no bar."""
    columns = 4 if len(axis.get_legend_handles_labels()[1]) <= 5 else 3
    axis.legend(frameon=False, fontsize=7.5, ncols=columns, loc="upper center", bbox_to_anchor=(0.5, distance))


def plot(path: Path, result: Json) -> None:
    """Draws all four panels."""
    figure, axes = pyplot.subplots(2, 2, figsize=(11, 7.2))
    rows = result["throughput"]["summary"]
    points = list(dict.fromkeys((r["rate_mbit"], r["connections"]) for r in rows))

    def name(rate: float | None, connections: int) -> str:
        link = "unshaped" if rate is None else f"{rate:g} Mb/s"
        return f"{link}\n{connections} conn."

    def of(kind: str, value: str, half: str) -> list[tuple[float, float]]:
        found = {key(r): (r[value], r[half]) for r in rows if r["kind"] == kind}
        # Kinds that were not measured at a point have no bar.
        return [found.get(p, (nan, 0.0)) for p in points]

    def key(row: Json) -> tuple[float | None, int]:
        return row["rate_mbit"], row["connections"]

    names = [name(*p) for p in points]
    kinds = list(dict.fromkeys(r["kind"] for r in rows))
    top = axes[0][0]
    goodput = {k: of(k, "of_reno", "of_reno_half_95") for k in kinds}
    groups(top, names, goodput, "share of kernel TCP (Reno)", "Throughput, in shares of Reno's in the same run")
    top.axhline(0.95, color="#333333", linewidth=0.8, linestyle=":")
    below(top, -0.15)
    cpu = {k: of(k, "cpu_s_per_gb", "cpu_s_per_gb_half_95") for k in kinds}
    groups(axes[0][1], names, cpu, "seconds per gigabyte", "Processor time of the serving process")

    rows = result["requests"]["summary"]
    sizes = list(dict.fromkeys(r["bytes"] for r in rows))
    kinds = list(dict.fromkeys(r["kind"] for r in rows))
    series = {
        k: [(r["per_second"] / 1e3, r["per_second_half_95"] / 1e3) for r in rows if r["kind"] == k] for k in kinds
    }
    words = [f"{s:,} B" for s in sizes]
    groups(axes[1][0], words, series, "1,000 requests a second", "Small objects, a new connection each, 32 clients")
    below(axes[1][0], -0.08)

    rows = result["attacks"]["summary"]
    kept = [(100 * r["kept"], 100 * r["kept_half_95"]) for r in rows]
    words = [r["class"].replace("-", "\n") for r in rows]
    axis = axes[1][1]
    groups(axis, words, {"rivulet": kept}, "% of the throughput without", "Good clients beside ten times their packets")
    axis.axhline(90, color="#333333", linewidth=0.8, linestyle=":")
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
