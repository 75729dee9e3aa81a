"""Curves in characters, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

BLOCKS = " ▁▂▃▄▅▆▇█"


def curve(values: Sequence[float], top: float, width: int) -> str:
    """The last `width` values as blocks; `top` is a full one. A value above zero is never blank."""
    cells = []
    for value in values[-width:]:
        share = min(1.0, value / top) if top > 0 else 0.0
        cells.append(BLOCKS[max(1, round(share * 8)) if value > 0 else 0])
    return "".join(cells)


def marks(places: Sequence[tuple[int, str]], first: int, width: int) -> str:
    """A line under a curve whose first cell is `first`, with one character at each place."""
    cells = [" "] * width
    for place, character in places:
        if 0 <= place - first < width:
            cells[place - first] = character
    return "".join(cells).rstrip()
