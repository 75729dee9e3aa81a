"""What the drawings share: size, ink and the pieces of SVG."""

from __future__ import annotations

from html import escape

WIDTH = 420
"""Width of a drawing, CSS pixels: a phone shows it almost in full size."""
INK = "#1c2321"
PALE = "#8a8f8c"
FILL = "#eeeeea"


def text(
    x: float, y: float, words: str, size: float = 13, anchor: str = "middle", ink: str = INK, bold: bool = False
) -> str:
    """One line of text; `y` is its baseline."""
    place = f'x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}"'
    weight = ' font-weight="600"' if bold else ""
    return f'<text {place}{weight} fill="{ink}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, fill: str = "#fff", ink: str = INK, more: str = "") -> str:
    """A rectangle; without `ink` it has no edge."""
    edge = f' stroke="{ink}" stroke-width="1.1"' if ink else ""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}"{edge}{more}/>'


def path(steps: str, width: float = 1.2, ink: str = INK, dashes: str = "", more: str = "") -> str:
    """A line along the steps of SVG's `d`."""
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<path d="{steps}" fill="none" stroke="{ink}" stroke-width="{width:g}"{dashed}{more}/>'


def cross(x: float, y: float, half: float, width: float) -> str:
    """A cross around a place."""
    side = 2 * half
    return path(f"M{x - half:g} {y - half:g} l{side:g} {side:g} m0 -{side:g} l-{side:g} {side:g}", width)


def drawing(title: str, height: float, parts: list[str]) -> str:
    """The file. Screen readers read the title."""
    size = f'viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}"'
    marker = 'id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="system-ui, sans-serif" role="img">',
            f"<title>{escape(title)}</title>",
            f'<defs><marker {marker}><path d="M0 0 L10 5 L0 10 z" fill="{INK}"/></marker></defs>',
            box(0, 0, WIDTH, height, ink=""),
            *parts,
            "</svg>\n",
        ]
    )
