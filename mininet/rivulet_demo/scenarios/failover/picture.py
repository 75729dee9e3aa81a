"""The figure: throughput of each client over all, and beside it each kill and each return enlarged.

A row belongs to a client. The page shows the parts one below the other on a phone; the PNG has them side by side.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...figure import throughput
from ...moments import AFTER_S, BEFORE_S, events
from ...report import AGAIN, RIVULET, STATELESS, TCP

COLOURS = {RIVULET: "#0b5c42", STATELESS: "#1f4e8c", TCP: "#9c1c2e", AGAIN: "#b98a92"}
"""Dark for what matters: also without colour the reconnecting client is the pale one."""
EVENT = "#555555"
NAMES = {
    RIVULET: "curl under rivulet run",
    STATELESS: "plain curl on stateless TCP",
    TCP: "plain curl on kernel TCP",
    AGAIN: "plain curl on kernel TCP, reconnects",
}
BIN_S = 0.2
STALL_MS = 15.0
"""A shorter stall is not written on the figure."""

Client = Mapping[str, Any]
Report = Mapping[str, Any]


def strips(axes: Sequence[Axes], report: Report) -> None:
    """Throughput of each client over the whole run."""
    clients: Mapping[str, Client] = report["clients"]
    end = max((one["samples"][-1][0] for one in clients.values() if one["samples"]), default=1.0)
    top = 1.25 * float(report["parameters"]["rate_mbit"])
    for axis, (name, one) in zip(axes, clients.items(), strict=True):
        samples = [(float(at), int(count)) for at, count in one["samples"]]
        last = samples[-1][0] if samples else 0.0
        x, y = throughput(samples, 0.0, end, BIN_S)
        shown = [(at, mbit) for at, mbit in zip(x, y, strict=True) if at <= last + BIN_S]
        times, rates = [at for at, _ in shown], [mbit for _, mbit in shown]
        axis.fill_between(times, rates, step="mid", alpha=0.2, color=COLOURS[name], linewidth=0)
        axis.step(times, rates, where="mid", color=COLOURS[name], linewidth=1.4)
        axis.set_title(NAMES[name], loc="left", fontsize=10, pad=4 if axis is not axes[0] else 17)
        axis.set(xlim=(0, end), ylim=(0, top), ylabel="Mb/s")
        if one["failures"] and not one["complete"]:
            _end(axis, last, 0.06 * top, one["failures"][-1]["exit"], room=last < 0.6 * end)
        _frame(axis)
        for mark in report["marks"]:
            _mark(axis, mark["at_s"], mark["what"])
    for place, mark in enumerate(report["marks"], 1):
        words = f"{place}: {'✗' if mark['what'] == 'kill' else '↑'} {mark['replica']}"
        axes[0].annotate(words, (mark["at_s"], top), xytext=(0, 4), textcoords="offset points", fontsize=8, ha="center")
    axes[-1].set_xlabel("seconds since the clients started")


def enlarged(axes: Sequence[Axes], report: Report, place: int, names: bool) -> None:
    """One kill or return: bytes in order at each client, and the switch's events. `names`: of the clients, too."""
    one = report["moments"][place]
    full = max(report["parameters"]["rate_mbit"] * 1e6 / 8 * (BEFORE_S + AFTER_S) / 1e3, 1.0)
    for axis, (name, client) in zip(axes, one["clients"].items(), strict=True):
        points = [(ms, count / 1e3) for ms, count in client["bytes"]]
        axis.set(xlim=(-BEFORE_S * 1e3, AFTER_S * 1e3), ylim=(0, 1.15 * full), ylabel="kB")
        if points:
            # From the left edge, where the count begins.
            points.insert(0, (-BEFORE_S * 1e3, 0.0))
            axis.step(*zip(*points, strict=True), where="post", color=COLOURS[name], linewidth=1.8)
        elif client["over"]:
            axis.text(0.5, 0.5, "ended before", transform=axis.transAxes, ha="center", va="center", fontsize=9)
        if client["exit"] is not None:
            at, height = points[-1] if points else (0.0, 0.0)
            _end(axis, at, height, client["exit"], room=at < 150)
        elif points:
            _stall(axis, points, client["stall_ms"], full)
        if names:
            axis.set_title(NAMES[name], loc="left", fontsize=10, pad=4)
        _frame(axis)
        _mark(axis, 0.0, one["what"])
        for ms, _ in events(one):
            if -BEFORE_S * 1e3 <= ms <= AFTER_S * 1e3:
                axis.axvline(ms, color=EVENT, linewidth=0.9, linestyle=(0, (1, 2)))
    kind = "kill -9 of" if one["what"] == "kill" else "return of"
    lines = [f"{place + 1}: {kind} {one['replica']} at {one['at']:.1f} s"]
    lines += [f"{ms:+.0f} ms {words}" for ms, words in events(one)]
    lines += [""] * (5 - len(lines))
    axes[0].annotate(
        "\n".join(lines),
        (0.0, 1.0),
        xycoords="axes fraction",
        xytext=(0, 22 if names else 6),
        textcoords="offset points",
        fontsize=8.5,
        va="bottom",
    )
    axes[-1].set_xlabel("ms from the kill" if one["what"] == "kill" else "ms from the readmission")


def _frame(axis: Axes) -> None:
    axis.grid(axis="y", alpha=0.3)
    axis.tick_params(labelsize=8)
    for spine in ("top", "right"):
        axis.spines[spine].set_visible(False)


def _mark(axis: Axes, at: float, what: str) -> None:
    axis.axvline(at, color="black", linewidth=1.2, linestyle="-" if what == "kill" else "--")


def _end(axis: Axes, at: float, height: float, code: int, room: bool) -> None:
    axis.plot([at], [height], marker="X", color="black", markersize=8, clip_on=False, zorder=5)
    axis.annotate(
        f"curl ends: exit code {code}",
        (at, height),
        xytext=(8 if room else -12, 4),
        textcoords="offset points",
        fontsize=8.5,
        ha="left" if room else "right",
        va="bottom",
    )


def _stall(axis: Axes, points: Sequence[tuple[float, float]], stall_ms: float, full: float) -> None:
    """Shades the longest gap after the action and writes its duration."""
    ends = [*points, (AFTER_S * 1e3, points[-1][1])]
    gaps = [(b[0] - a[0], a, b) for a, b in itertools.pairwise(ends) if b[0] > 0]
    if not gaps or stall_ms < STALL_MS:
        return
    _, (start, height), (end, _) = max(gaps)
    axis.axvspan(start, end, color="#000000", alpha=0.1, linewidth=0)
    below = height > 0.6 * full
    axis.annotate(
        f"{stall_ms:.0f} ms",
        ((start + end) / 2, height),
        xytext=(0, -6 if below else 6),
        textcoords="offset points",
        fontsize=8.5,
        ha="center",
        va="top" if below else "bottom",
    )


def whole(report: Report, title: str) -> Figure:
    """The parts side by side."""
    rows, moments = len(report["clients"]), len(report["moments"])
    figure, axes = pyplot.subplots(
        rows,
        1 + moments,
        figsize=(8 + 2.9 * moments, 1.8 * rows + 1.6),
        width_ratios=[2.6, *[1.0] * moments],
        squeeze=False,
        layout="constrained",
    )
    strips(list(axes[:, 0]), report)
    for place in range(moments):
        enlarged(list(axes[:, 1 + place]), report, place, names=False)
        for axis in axes[:-1, 1 + place]:
            axis.tick_params(labelbottom=False)
        if place:
            for axis in axes[:, 1 + place]:
                axis.set_ylabel("")
    for axis in axes[:-1, 0]:
        axis.tick_params(labelbottom=False)
    figure.suptitle(title, fontsize=12, x=0.01, ha="left")
    return figure


def parts(report: Report) -> list[str]:
    """The same as one SVG for the strip and one for each moment, for the page."""
    rows = len(report["clients"])
    figure, axes = pyplot.subplots(rows, 1, figsize=(5.2, 1.5 * rows + 0.6), sharex=True, layout="constrained")
    strips(axes, report)
    found = [_svg(figure)]
    for place in range(len(report["moments"])):
        figure, axes = pyplot.subplots(rows, 1, figsize=(3.7, 1.25 * rows + 1.3), sharex=True, layout="constrained")
        enlarged(axes, report, place, names=True)
        found.append(_svg(figure))
    return found


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg")
    pyplot.close(figure)
    return text.getvalue()[text.getvalue().index("<svg") :]
