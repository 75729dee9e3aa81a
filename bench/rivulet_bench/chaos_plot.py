"""Draws the chaos run: downloads of each client, and the stalls of the faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

HUES = ("#b23a48", "#0b6e4f", "#d97706", "#2563eb", "#7c3aed", "#0e7490", "#be185d", "#4d7c0f", "#57534e")


class Row(Protocol):
    """A fault."""

    @property
    def at_s(self) -> float: ...
    @property
    def store(self) -> str: ...
    @property
    def fault(self) -> str: ...
    @property
    def stall_ms(self) -> float: ...


def draw(path: Path, rows: Sequence[Row], downloads: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """Draws one panel per store: a bar per download (begin, end, broken), a mark at the stall of each fault."""
    figure, axes = pyplot.subplots(len(downloads), 1, figsize=(9, 2.9 * len(downloads)), squeeze=False)
    kinds = sorted({row.fault for row in rows})
    hue = {kind: HUES[index % len(HUES)] for index, kind in enumerate(kinds)}
    for axis, (store, ones) in zip(axes[:, 0], downloads.items(), strict=True):
        for begin, end, broken in ones:
            axis.axvspan(begin, end, ymin=0.0, ymax=0.04, color="#9ca3af", alpha=0.5, linewidth=0)
            if broken:
                axis.axvline(end, color="#dc2626", linewidth=1)
        for kind in kinds:
            mine = [row for row in rows if row.store == store and row.fault == kind]
            if mine:
                axis.scatter(
                    [r.at_s for r in mine], [max(r.stall_ms, 1.0) for r in mine], s=22, color=hue[kind], label=kind
                )
        axis.set_yscale("log")
        axis.set_ylim(0.7, 300_000)
        axis.set_ylabel("longest wait, ms")
        axis.set_title(f"{store}: {len(ones)} downloads", loc="left", fontsize=10)
        axis.grid(alpha=0.3)
        axis.legend(frameon=False, fontsize=7, ncols=3, loc="upper right")
        for spine in ("top", "right"):
            axis.spines[spine].set_visible(False)
    axes[-1, 0].set_xlabel("seconds")
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
