"""The picture of many small objects: how long each took, over the time at which it was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import pyplot
from matplotlib.figure import Figure

from .figure import COLOURS, Mark, mark_top, quiet, rule


def draw(flows: Mapping[str, Sequence[Mapping[str, Any]]], marks: Sequence[Mark], title: str) -> Figure:
    """One panel a client, the same axes; an object that failed is a cross at the top of what was waited for it."""
    figure, axes = pyplot.subplots(
        len(flows), 1, figsize=(11, 2.6 * len(flows) + 0.6), sharex=True, sharey=True, squeeze=False
    )
    for axis, (name, objects), colour in zip(axes[:, 0], flows.items(), COLOURS, strict=False):
        came = [one for one in objects if not one["failure"]]
        failed = [one for one in objects if one["failure"]]
        axis.plot([o["at"] for o in came], [o["seconds"] * 1e3 for o in came], ".", markersize=3, color=colour)
        height = [max(o["seconds"] * 1e3, 1.0) for o in failed]
        axis.plot([o["at"] for o in failed], height, "x", markersize=6, color="#b23a48")
        axis.set_yscale("log")
        axis.set_ylabel("ms")
        axis.set_title(f"{name}: {len(came):,} came, {len(failed):,} failed", loc="left", fontsize=10, color=colour)
        quiet(axis)
        for mark in marks:
            rule(axis, mark)
    mark_top(axes[0, 0], marks)
    axes[-1, 0].set_xlabel("seconds")
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    figure.tight_layout()
    return figure
