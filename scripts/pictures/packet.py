"""Packet diagrams: 32 bits a row, from a table of docs/wire-format.md."""

from __future__ import annotations

import re
from dataclasses import dataclass

from svg import FILL, PALE, WIDTH, box, drawing, text

LEFT = 34
"""Room for the number of a row's first byte."""
BIT = (WIDTH - LEFT - 6) / 32
ROW = 27
"""Height of a row."""


@dataclass(frozen=True)
class Field:
    """A field; `bits` is 0 where its length varies."""

    name: str
    bits: int


def table(page: str, heading: str, which: int = 0) -> list[Field]:
    """The fields of a table below a heading. Raises ValueError if it has none."""
    match = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    if match is None:
        raise ValueError(f"docs/wire-format.md has no heading {heading!r}")
    tables = re.findall(r"^\| byte \|.*\n\|[-|]+\n((?:\|.*\n)+)", match[1], re.MULTILINE)
    if which >= len(tables):
        raise ValueError(f"below {heading!r} there are {len(tables)} tables of fields")
    found = []
    for row in tables[which].splitlines():
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        if len(cells) == 3:
            # The table of the option: bytes instead of bits.
            first, _, last = cells[0].partition("-")
            found.append(Field(cells[1], 8 * (int(last or first) - int(first) + 1)))
        else:
            found.append(Field(cells[1], int(cells[2]) if cells[2].isdigit() else 0))
    return found


@dataclass(frozen=True)
class Part:
    """Fields that follow each other, with a heading; the first one is at byte `first`, as the page counts."""

    heading: str
    fields: list[Field]
    first: int = 0


def draw(title: str, parts: list[Part]) -> str:
    """The diagram of parts that follow each other."""
    out, y = list[str](), 6.0
    for part in parts:
        out.append(text(LEFT, y + 13, part.heading, 12.5, anchor="start", bold=True))
        y += 20
        at = 0
        for field in part.fields:
            if field.bits:
                y = _field(out, field, y, at, part.first)
                at += field.bits
            else:
                y = _variable(out, field, y + (ROW if at % 32 else 0), part.first + at // 8)
                at = 0
        y += (ROW if at % 32 else 0) + 8
    return drawing(title, y, out)


def _field(out: list[str], field: Field, y: float, at: int, first: int) -> float:
    """A field of fixed length, in as many rows as it touches; returns the height of the row that is not full yet.

    `at` counts bits from the part's first byte, which is byte `first` of what the page describes.
    """
    left, name = field.bits, field.name
    while left:
        column = at % 32
        here = min(32 - column, left)
        x, width = LEFT + column * BIT, here * BIT
        if column == 0:
            out.append(text(LEFT - 5, y + 18, str(first + at // 8), 10.5, anchor="end", ink="#555"))
        out.append(box(x, y, width, ROW))
        # The name stands in the first box that has room, a small mark in others.
        room = width >= 5.9 * len(name)
        out.append(text(x + width / 2, y + 18, name if room else "⋯", 10.5 if room else 9))
        name = "⋯" if room else name
        at, left = at + here, left - here
        y += ROW if at % 32 == 0 else 0
    return y


def _variable(out: list[str], field: Field, y: float, byte: int) -> float:
    """A field of variable length: a row with a dashed edge; returns the height of the next row."""
    out.append(text(LEFT - 5, y + 18, str(byte), 10.5, anchor="end", ink="#555"))
    out.append(box(LEFT, y, 32 * BIT, ROW, FILL, PALE, ' stroke-dasharray="5 4"'))
    out.append(text(LEFT + 16 * BIT, y + 18, f"{field.name} …", 10.5))
    return y + ROW
