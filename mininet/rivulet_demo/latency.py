"""Draws the time that each of many small objects took, over the time of its request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .figure import Mark, panels

Objects = Sequence[Mapping[str, Any]]


def draw(flows: Mapping[str, Objects], marks: Sequence[Mark], title: str) -> Figure:
    """Draws one panel per client with the same axes; a failed object is a cross at the top of its waiting time."""

    def paint(axis: Axes, name: str, objects: Objects, colour: str) -> None:
        came = [one for one in objects if not one["failure"]]
        failed = [one for one in objects if one["failure"]]
        axis.plot([o["at"] for o in came], [o["seconds"] * 1e3 for o in came], ".", markersize=3, color=colour)
        height = [max(o["seconds"] * 1e3, 1.0) for o in failed]
        axis.plot([o["at"] for o in failed], height, "x", markersize=6, color="#b23a48")
        axis.set_yscale("log")
        axis.set_ylabel("ms")
        axis.set_title(f"{name}: {len(came):,} loaded, {len(failed):,} failed", loc="left", fontsize=10, color=colour)

    return panels(flows, marks, title, paint)
