"""Makes a page of many small pictures, which a browser requests one by one.

The pictures are tiles of a drawing, each an SVG file of some kilobytes, and the page counts the loaded ones. No tile is
longer than stateless TCP answers (`docs/plain.md`), and its bytes depend on its position only.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from pathlib import Path

COLUMNS, ROWS, EDGE = 12, 8, 80
"""Number of columns and rows, and edge of a tile in pixels."""

SIZES = (1_200, 3_000, 6_000, 10_000, 14_000)
"""Sizes of the tiles in bytes, in rotation."""

COMPLETE = "all here"
"""Text of the page after all tiles have loaded."""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{count} objects</title>
<style>
body{{margin:0;background:#10202b;color:#dce8ee;font:16px/1.4 sans-serif;text-align:center}}
#m{{display:grid;grid-template-columns:repeat({columns},{edge}px);margin:12px auto;width:{width}px}}
img{{display:block;width:{edge}px;height:{edge}px}}
</style></head><body><div id="m">{tiles}</div>
<p id="state">loading</p>
<script>
addEventListener("load",()=>{{const all=[...document.images],n=all.filter(i=>i.naturalWidth>0).length;
document.getElementById("state").textContent=n===all.length?"{complete}: "+n+" objects":n+" of "+all.length+" came";}});
</script></body></html>
"""


def _river(x: float) -> float:
    """Height of the river's middle at x, in pixels from the top."""
    height = ROWS * EDGE
    return height * (0.55 + 0.18 * math.sin(x / 140) + 0.08 * math.sin(x / 47 + 1))


def tile(column: int, row: int) -> str:
    """One tile as SVG: its part of the drawing, with a comment that pads it to its size."""
    left, top = column * EDGE, row * EDGE
    sky = [round(c + (d - c) * row / ROWS) for c, d in zip((24, 58, 84), (150, 120, 90), strict=True)]
    paths = []
    for shade, offset, wide in (("#1d5f8a", 0, 46), ("#3d8fbf", -4, 24), ("#9fd3ee", -9, 5)):
        points = [(x, _river(left + x) + offset - top) for x in range(-60, EDGE + 61, 5)]
        line = " ".join(f"{x},{y:.1f}" for x, y in points)
        paths.append(f'<polyline points="{line}" fill="none" stroke="{shade}" stroke-width="{wide}"/>')
    rng = random.Random(column * ROWS + row)
    for _ in range(6):
        x, y = rng.uniform(0, EDGE), rng.uniform(0, EDGE)
        if abs(top + y - _river(left + x)) > 40:
            size = rng.uniform(3, 9)
            paths.append(f'<path d="M{x:.1f} {y:.1f}l{size:.1f} {2 * size:.1f}h-{2 * size:.1f}z" fill="#1f4d3a"/>')
    body = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {EDGE} {EDGE}">'
        f'<rect width="{EDGE}" height="{EDGE}" fill="rgb({sky[0]},{sky[1]},{sky[2]})"/>{"".join(paths)}'
    )
    size = SIZES[(column * ROWS + row) % len(SIZES)]
    letters = "abcdefghijklmnopqrstuvwxyz"
    filling = "".join(rng.choice(letters) for _ in range(max(0, size - len(body) - len("<!----></svg>"))))
    return f"{body}<!--{filling}--></svg>"


def make(folder: Path) -> dict[str, str]:
    """Writes page and tiles into a folder; returns the SHA-256 of each file by its path in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"t{row:02}{column:02}.svg" for row in range(ROWS) for column in range(COLUMNS)]
    files = {name: tile(int(name[3:5]), int(name[1:3])) for name in names}
    files["index.html"] = _PAGE.format(
        count=len(names),
        columns=COLUMNS,
        edge=EDGE,
        width=COLUMNS * EDGE,
        complete=COMPLETE,
        tiles="".join(f'<img src="{name}" alt="">' for name in names),
    )
    for name, text in files.items():
        (folder / name).write_text(text)
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}
    # Beside the folder: the clients check with it, but do not fetch it.
    folder.with_suffix(".json").write_text(json.dumps(digests))
    return digests
