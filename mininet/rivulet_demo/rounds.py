"""A page that loads the drawing's tiles again and again, over the browser's kept connections.

Each round requests other URLs of the same files, so that no cache serves them. The page reports each round on the
console.
"""

from __future__ import annotations

from pathlib import Path

from .mosaic import COLUMNS, ROWS

NAME = "again.html"

PAUSE_S = 0.3
"""Pause between two rounds, so that harms also hit idle connections."""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>again and again</title></head><body>
<div id="m"></div>
<script>
const names={names},end=performance.now()+1e3*Number(location.search.slice(1));
let round=0;
function again(){{
  const began=performance.now();
  let left=names.length,came=0;
  const done=()=>{{
    if(--left)return;
    document.getElementById("m").replaceChildren(...images);
    console.log(`round: ${{came}} of ${{names.length}} in ${{Math.round(performance.now()-began)}} ms`);
    round++;
    if(performance.now()<end)setTimeout(again,{pause});else console.log("over");
  }};
  const images=names.map(name=>{{
    const image=new Image();
    image.onload=()=>{{came++;done()}};
    image.onerror=done;
    image.src=`${{name}}?${{round}}`;
    return image;
  }});
}}
again();
</script></body></html>
"""


def make(folder: Path) -> None:
    """Writes the page beside the tiles."""
    names = [f"t{row:02}{column:02}.svg" for row in range(ROWS) for column in range(COLUMNS)]
    (folder / NAME).write_text(_PAGE.format(names=names, pause=round(PAUSE_S * 1e3)))
