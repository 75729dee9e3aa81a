"""Draws a failover: throughput of each client over time, with kills and returns (Figure 16 of the paper).

Matplotlib draws one SVG for both outputs: a PNG, and an HTML page without external files.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Samples = Sequence[tuple[float, int]]
Data = TypeVar("Data")


@dataclass(frozen=True, slots=True)
class Mark:
    """An action on the rack, in seconds from the start."""

    at: float
    what: str
    replica: str

    @property
    def harm(self) -> bool:
        """Whether the action did harm; False if it ended harm."""
        return self.what not in ENDS

    @property
    def words(self) -> str:
        """Label of the line in the figure."""
        return {"kill": f"✗ {self.replica}", "return": f"↑ {self.replica}"}.get(
            self.what, f"{self.what} {self.replica}".strip()
        )


ENDS = ("return", "calm")
"""Marks of actions that end harm."""


def throughput(samples: Samples, start: float, end: float, bin_s: float) -> tuple[list[float], list[float]]:
    """Throughput in Mb/s of new in-order bytes, and the times of the bins of `bin_s` seconds from `start`."""
    count = max(1, round((end - start) / bin_s))
    bits = [0.0] * count
    before = 0
    for when, total in samples:
        place = int((when - start) / bin_s)
        if 0 <= place < count:
            bits[place] += (total - before) * 8
        before = total
    return [(place + 0.5) * bin_s for place in range(count)], [value / bin_s / 1e6 for value in bits]


COLOURS = ("#0b6e4f", "#b23a48", "#31528a", "#8a6d31")


def panels(
    flows: Mapping[str, Data], marks: Sequence[Mark], title: str, paint: Callable[[Axes, str, Data, str], None]
) -> Figure:
    """Draws one panel per flow with the same axes; `paint` fills a panel with its flow."""
    figure, axes = pyplot.subplots(
        len(flows), 1, figsize=(11, 2.6 * len(flows) + 0.6), sharex=True, sharey=True, squeeze=False
    )
    for axis, (name, data), colour in zip(axes[:, 0], flows.items(), COLOURS, strict=False):
        paint(axis, name, data, colour)
        axis.grid(axis="y", alpha=0.3)
        for spine in ("top", "right"):
            axis.spines[spine].set_visible(False)
        for mark in marks:
            axis.axvline(
                mark.at, color="#b23a48" if mark.harm else "#6a9f58", linewidth=1, linestyle="-" if mark.harm else ":"
            )
    for mark in marks:
        axes[0, 0].annotate(
            mark.words,
            (mark.at, 1.0),
            xycoords=("data", "axes fraction"),
            # In two rows, because the end of harm may follow soon after it.
            xytext=(2, -2 if mark.harm else -13),
            textcoords="offset points",
            fontsize=8,
            va="top",
            color="#b23a48" if mark.harm else "#4a7f38",
        )
    axes[-1, 0].set_xlabel("seconds")
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    figure.tight_layout()
    return figure


def draw(
    flows: Mapping[str, Samples],
    marks: Sequence[Mark],
    start: float,
    end: float,
    title: str,
    bin_s: float = 0.1,
    broken: Mapping[str, str] | None = None,
) -> Figure:
    """Draws the throughput of each flow. `broken`: why a flow ended early, by its name."""

    def paint(axis: Axes, name: str, samples: Samples, colour: str) -> None:
        x, y = throughput(samples, start, end, bin_s)
        axis.fill_between(x, y, step="mid", alpha=0.25, color=colour, linewidth=0)
        axis.step(x, y, where="mid", color=colour, linewidth=1.4)
        axis.set_title(name, loc="left", fontsize=10, color=colour)
        axis.set_ylabel("Mb/s")
        # Room for the labels of the marks above the curve.
        axis.margins(y=0.25)
        axis.set_ylim(bottom=0)
        if broken and name in broken:
            at = samples[-1][0]
            axis.plot([at], [0], marker="X", color="black", markersize=8, clip_on=False, zorder=5)
            axis.annotate(broken[name], (at, 0), xytext=(8, 5), textcoords="offset points", fontsize=9)

    return panels(flows, marks, title, paint)


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>{title}</title>
<style>
body{{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#1c2321;background:#fff}}
svg,img{{width:100%;height:auto}} table{{border-collapse:collapse;margin:1rem 0;font-size:.9rem}}
.wide{{overflow-x:auto}} .wide svg{{min-width:46rem}}
td,th{{padding:.25rem .8rem;border-bottom:1px solid #ddd;text-align:right}}
td:first-child,th:first-child{{text-align:left;min-width:9rem}} h1{{font-size:1.6rem}}
pre{{background:#f4f4f2;padding:1rem;overflow-x:auto;white-space:pre-wrap}}
</style></head><body>
<h1>{title}</h1>
<div class="wide">{svg}</div>
<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>
<pre>{words}</pre>
{picture}
</body></html>
"""


def save(
    figure: Figure,
    png: Path,
    page: Path,
    title: str,
    table: Sequence[Sequence[str]],
    words: str,
    picture: Path | None = None,
) -> None:
    """Writes the PNG and the page. The first row of `table` is its head; the page also shows the PNG `picture`."""
    figure.savefig(png, dpi=140)
    svg = io.StringIO()
    figure.savefig(svg, format="svg")
    pyplot.close(figure)
    text = svg.getvalue()
    escaped = [[html.escape(cell) for cell in row] for row in table]
    page.write_text(
        _PAGE.format(
            title=html.escape(title),
            svg=text[text.index("<svg") :],
            head="".join(f"<th>{cell}</th>" for cell in escaped[0]),
            rows="".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in escaped[1:]),
            words=html.escape(words),
            picture=""
            if picture is None
            else f'<img alt="" src="data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()}">',
        ),
        encoding="utf-8",
    )
