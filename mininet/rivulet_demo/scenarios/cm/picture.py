"""Draws streams under the Congestion Manager: layer, share and arrivals beside the link's rate, and queueing delay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...adaptive import LAYERS, NS, Json
from ...figure import COLOURS
from .audio import PACKET


@dataclass(frozen=True, slots=True)
class Flow:
    """Lines of both ends of a stream."""

    served: Sequence[Json]
    received: Sequence[Json]
    layers: Sequence[int] = LAYERS
    """Rates of its layers, bits a second; None: it has no layers, and its drops are shown."""


def paint(
    axis: Axes,
    flow: Flow,
    changes: Sequence[tuple[int, float]],
    end_s: float,
    colour: str,
) -> None:
    """Draws one stream: arrivals as an area, its layer as steps, its share as a line."""
    start = changes[0][0]

    def points(lines: Sequence[Json], event: str, field: str) -> tuple[list[float], list[float]]:
        chosen = [line for line in lines if line["event"] == event]
        return [(line["at"] - start) / NS for line in chosen], [line[field] for line in chosen]

    x, link = [(at - start) / NS for at, _ in changes], [rate for _, rate in changes]
    axis.step([*x, end_s], [*link, link[-1]], where="post", color="#999", linewidth=1, linestyle="--", label="link")
    x, arrived = points(flow.received, "arrived", "rate")
    axis.fill_between(
        x, [rate / 1e6 for rate in arrived], step="pre", alpha=0.2, color=colour, linewidth=0, label="arrives"
    )
    x, share = points(flow.served, "share", "rate")
    axis.plot(x, [rate / 1e6 for rate in share], color=colour, linewidth=0.7, alpha=0.7, label="its share")
    x, steps = points(flow.served, "layer", "to")
    if not flow.layers:
        x, parts = _taken_out(flow.served, start, end_s)
        axis.bar(x, parts, width=BIN_S, color="#222", alpha=0.5, label="taken out")
        axis.legend(fontsize=8, loc="upper right", frameon=False)
    elif x:
        rates = [flow.layers[int(layer)] / 1e6 for layer in steps]
        axis.step([*x, end_s], [*rates, rates[-1]], where="post", color=colour, linewidth=1.8, label="layer")
    axis.set_ylabel("Mb/s")
    axis.set_xlim(0, end_s)
    axis.set_ylim(0, max(link) * 1.15)
    axis.grid(axis="y", alpha=0.3)
    for spine in ("top", "right"):
        axis.spines[spine].set_visible(False)


BIN_S = 0.5


def _taken_out(served: Sequence[Json], start: int, end_s: float) -> tuple[list[float], list[float]]:
    """Rate of datagrams that policer and buffer dropped, Mb/s by time."""
    counts = [0] * (int(end_s / BIN_S) + 1)
    before = 0
    for line in served:
        if line["event"] == "share":
            count = line["dropped"]["policed"] + line["dropped"]["buffer"]
            place = int((line["at"] - start) / NS / BIN_S)
            if 0 <= place < len(counts):
                counts[place] += count - before
            before = count
    return [(n + 0.5) * BIN_S for n in range(len(counts))], [count * PACKET * 8 / BIN_S / 1e6 for count in counts]


def draw(flows: Mapping[str, Flow], changes: Sequence[tuple[int, float]], phase_s: float, title: str) -> Figure:
    """Draws one panel per stream, and one of the queueing delay."""
    end_s = (changes[-1][0] - changes[0][0]) / NS + phase_s
    figure, axes = pyplot.subplots(len(flows) + 1, 1, figsize=(11, 2.6 * len(flows) + 2.2), sharex=True, squeeze=False)
    for axis, (name, flow), colour in zip(axes[:, 0], flows.items(), COLOURS, strict=False):
        paint(axis, flow, changes, end_s, colour)
        axis.set_title(name, loc="left", fontsize=10, color=colour)
    axes[0, 0].legend(fontsize=8, ncols=4, loc="upper center", frameon=False)
    delay = axes[-1, 0]
    for (name, flow), colour in zip(flows.items(), COLOURS, strict=False):
        lines = [line for line in flow.received if line["event"] == "arrived" and line["packets"]]
        x = [(line["at"] - changes[0][0]) / NS for line in lines]
        delay.plot(x, [line["delay_ms"] for line in lines], color=colour, linewidth=1, label=name)
    delay.set_title("time in queues", loc="left", fontsize=10)
    delay.set_ylabel("ms")
    delay.set_ylim(bottom=0)
    delay.grid(axis="y", alpha=0.3)
    for spine in ("top", "right"):
        delay.spines[spine].set_visible(False)
    delay.set_xlabel("seconds")
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    figure.tight_layout()
    return figure
