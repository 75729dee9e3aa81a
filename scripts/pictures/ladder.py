"""Ladder diagrams: a column for each party, time from top to bottom, an arrow for each packet."""

from __future__ import annotations

from dataclasses import dataclass

from svg import FILL, INK, PALE, WIDTH, box, cross, drawing, path, text

HEAD = 34
"""Height of the names of the parties."""
LINE = 16
"""Height of a line of text."""
LETTER = 6.6
"""Width of a letter, on average."""
SLANT = 10
"""How much lower an arrow ends than it begins."""


@dataclass(frozen=True)
class Arrow:
    """A packet from one party to another; `words` may have several lines."""

    start: str
    end: str
    words: str
    control: bool = False
    """Drawn dashed: no packet of the client's connection."""
    lost: bool = False
    """It ends in a cross in the middle."""


@dataclass(frozen=True)
class Note:
    """What a party does, in a box on its line."""

    party: str
    words: str


@dataclass(frozen=True)
class Kill:
    """The end of a party's process."""

    party: str
    words: str = "kill -9"


@dataclass(frozen=True)
class Ladder:
    """A diagram, with the parties from left to right."""

    title: str
    parties: tuple[str, ...]
    steps: tuple[Arrow | Note | Kill, ...]


class _Sheet:
    """The drawing so far, with the height at which the next step begins."""

    def __init__(self, parties: tuple[str, ...]) -> None:
        margin = 44
        gap = (WIDTH - 2 * margin) / (len(parties) - 1)
        self.column = {party: margin + gap * place for place, party in enumerate(parties)}
        self.parts: list[str] = []
        self.ended: dict[str, float] = {}
        self.y: float = HEAD + 14
        self.number = 0

    def step(self, x: float, y: float) -> None:
        """The number of a step, which the text below the drawing takes up."""
        self.number += 1
        self.parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="8.5" fill="{INK}"/>')
        self.parts.append(text(x, y + 4, str(self.number), 11, ink="#fff", bold=True))

    def lines(self, middle: float, words: str) -> None:
        """Text on white, kept within the sheet, above the place where the step is drawn."""
        for line in words.splitlines():
            half = LETTER / 2 * len(line) + 4
            x = min(max(middle, half + 2), WIDTH - half - 2)
            self.parts.append(box(x - half, self.y, 2 * half, LINE, ink=""))
            self.parts.append(text(x, self.y + 12, line))
            self.y += LINE

    def arrow(self, step: Arrow) -> None:
        start, end = self.column[step.start], self.column[step.end]
        self.lines((start + end) / 2, step.words)
        self.y += 6
        tip, slant = ((start + end) / 2, SLANT / 2) if step.lost else (end, SLANT)
        way, head = (
            f"M{start:g} {self.y:g} L{tip:g} {self.y + slant:g}",
            "" if step.lost else ' marker-end="url(#head)"',
        )
        self.parts.append(path(way, 1.6, dashes="5 4" if step.control else "", more=head))
        if step.lost:
            self.parts.append(cross(tip, self.y + slant, 6, 2.4))
        self.step(start, self.y)
        self.y += SLANT + 14

    def note(self, step: Note) -> None:
        lines = step.words.splitlines()
        half = max(LETTER / 2 * len(line) for line in lines) + 16
        x = min(max(self.column[step.party], half + 10), WIDTH - half - 2)
        height = LINE * len(lines) + 8
        self.parts.append(box(x - half, self.y, 2 * half, height, FILL, more=' rx="5"'))
        for place, line in enumerate(lines):
            self.parts.append(text(x + 6, self.y + 16 + LINE * place, line))
        self.step(x - half, self.y + height / 2)
        self.y += height + 12

    def kill(self, step: Kill) -> None:
        x = self.column[step.party]
        self.y += 8
        self.parts.append(cross(x, self.y, 8, 3))
        side, anchor = (-1, "end") if x > WIDTH / 2 else (1, "start")
        self.parts.append(text(x + side * 14, self.y + 4, step.words, anchor=anchor, bold=True))
        self.step(x + side * (26 + (LETTER + 0.8) * len(step.words)), self.y)
        self.ended[step.party] = self.y
        self.y += 22


def draw(ladder: Ladder) -> str:
    """The diagram as SVG."""
    sheet = _Sheet(ladder.parties)
    for step in ladder.steps:
        match step:
            case Arrow():
                sheet.arrow(step)
            case Note():
                sheet.note(step)
            case Kill():
                sheet.kill(step)
    bottom = sheet.y + 4
    below = []
    for party, x in sheet.column.items():
        end = sheet.ended.get(party, bottom)
        below.append(path(f"M{x:g} {HEAD} V{end:g}"))
        if end != bottom:
            below.append(path(f"M{x:g} {end:g} V{bottom:g}", ink=PALE, dashes="2 4"))
        half = 3.6 * len(party) + 8
        middle = min(max(x, half + 2), WIDTH - half - 2)
        below.append(box(middle - half, 8, 2 * half, HEAD - 10, more=' rx="5"'))
        below.append(text(middle, 25, party, bold=True))
    return drawing(ladder.title, bottom + 6, below + sheet.parts)
