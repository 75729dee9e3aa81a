"""Plots of the benches, with the same colours and error bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

COLOURS = {"rivulet": "#0b6e4f", "rivulet-token": "#7fb8a4", "tcp": "#b23a48", "tcp-fastopen": "#dda0a6"}
LABELS = {
    "rivulet": "Rivulet",
    "rivulet-token": "Rivulet, address token",
    "tcp": "kernel TCP (Reno)",
    "tcp-fastopen": "kernel TCP, Fast Open",
}

Points = Sequence[tuple[float, float, float]]
"""(x, mean, half-width of the 95 % interval)."""


def lines(
    path: Path, series: Mapping[str, Points], x: str, y: str, title: str, log_x: bool = True, log_y: bool = False
) -> None:
    """Draws one line with error bars per transport."""
    figure, axis = pyplot.subplots(figsize=(8, 4.2))
    for name, points in series.items():
        axis.errorbar(
            [p[0] for p in points],
            [p[1] for p in points],
            yerr=[p[2] for p in points],
            label=LABELS.get(name, name),
            color=COLOURS.get(name),
            marker="o",
            markersize=4,
            capsize=3,
            linewidth=1.4,
        )
    if log_x:
        axis.set_xscale("log")
    if log_y:
        axis.set_yscale("log")
    else:
        axis.set_ylim(bottom=0)
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.set_title(title, loc="left", fontsize=11)
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    for spine in ("top", "right"):
        axis.spines[spine].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def histogram(path: Path, series: Mapping[str, Sequence[float]], x: str, title: str) -> None:
    """Draws the share of values below each value, one line per transport, on a logarithmic scale."""
    figure, axis = pyplot.subplots(figsize=(8, 4.2))
    for name, values in series.items():
        ordered = sorted(max(value, 0.1) for value in values)
        shares = [(place + 1) / len(ordered) for place in range(len(ordered))]
        axis.step(
            ordered, shares, where="post", label=f"{LABELS.get(name, name)} ({len(ordered)})", color=COLOURS.get(name)
        )
    axis.set_xscale("log")
    axis.set_ylim(0, 1.02)
    axis.set_xlabel(x)
    axis.set_ylabel("share of kills")
    axis.set_title(title, loc="left", fontsize=11)
    axis.grid(alpha=0.3, which="both")
    axis.legend(frameon=False, loc="lower right")
    for spine in ("top", "right"):
        axis.spines[spine].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
