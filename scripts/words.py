#!/usr/bin/env python3
"""Counts words in comments, documentation and names that hide what a sentence is about; fails above the bars.

scripts/words.py [--list] [--update] [FOLDER...]

A sentence needs a subject that a stranger can name ("the replica", not a pronoun) and the verbs of the field. The words
counted here are those of unclear sentences of this project. A sentence without them can be unclear too, and a hit is
only a place to look at (--list prints each).

A crate or top folder may have 25 hits per 1,000 lines of comment and prose, and no name of the list. Folders above
these bars are in scripts/words.txt with their lines, hits and names. They may only get better: fewer hits, or fewer
per line.
--update writes lower figures into that table, never higher ones, and removes the folders that reached the bars.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BAR = 25
"""Hits per 1,000 lines of comment and prose."""
FEW = 3
"""Hits that any folder may have."""
TABLE = Path("scripts", "words.txt")
DIALECT = re.compile(
    r"\b(who|whom|whose|whoever|nobody|somebody|everybody|octets?|"
    r"(?:is|are|was|were|be|been) (?:told|said|heard|asked|spoken|meant|gone on with|looked for|known again|let go|"
    r"handed on)|"
    r"go(?:es|ne)? on with|went on with|gives? up|for so long|so often|as many as|in turn|"
    r"speaks?|silent|mute|hears?|tells?|says?|nothing else|what (?:is|was|are|were|comes|came|has|had|lies|may|must)|"
    r"anew|of its own|of their own|beyond that|for good|at rest)\b",
    re.IGNORECASE,
)
NAME = re.compile(
    r"\b(?:fn|def|struct|enum|trait|class|mod|const|static)\s+"
    r"((?:[a-z0-9]+_)*(?:who|whose|whoever|whom|whatever|what|nobody|told|said|heard|hears|asked|spoke|speaks|says|tells|"
    r"knows|gone|goes_on|go_on)(?:_[a-z0-9]+)*)\b"
)
C_COMMENT = re.compile(r"^\s*(?:/\*+|\*|//)(.*)")
COMMENT = {
    ".rs": re.compile(r"^\s*(?://[/!]?)(.*)"),
    ".c": C_COMMENT,
    ".h": C_COMMENT,
    ".p4": C_COMMENT,
    ".py": re.compile(r"^\s*#(.*)"),
    ".lua": re.compile(r"^\s*--(.*)"),
}


@dataclass
class Count:
    """Lines of comment and prose of a folder, hits in them, and names of the list."""

    lines: int = 0
    hits: int = 0
    names: int = 0

    def per_1000(self) -> float:
        return 1000 * self.hits / max(1, self.lines)

    def is_above_bar(self) -> bool:
        """Whether there are more hits than the bar allows; in folders of few lines FEW do not count."""
        return self.hits > max(FEW, BAR * self.lines / 1000)


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Number and text of each line of comment or prose of a file."""
    lines = path.read_text(errors="replace").splitlines()
    if path.suffix == ".md":
        fenced = False
        for number, line in enumerate(lines, 1):
            if line.lstrip().startswith("```"):
                fenced = not fenced
            elif not fenced and line.strip():
                yield number, line
        return
    in_docstring = False
    for number, line in enumerate(lines, 1):
        quotes = line.count('"""') if path.suffix == ".py" else 0
        if in_docstring or quotes:
            yield number, line
            in_docstring ^= quotes % 2 == 1
        elif (found := COMMENT[path.suffix].match(line)) and found[1].strip():
            yield number, found[1]


def folder_of(name: str, crates: Iterable[str]) -> str:
    """The crate or top folder of a file; `.` for files of the root."""
    if crate := max((crate for crate in crates if name.startswith(f"{crate}/")), key=len, default=""):
        return crate
    return name.split("/")[0] if "/" in name else "."


def count(root: Path, listing: bool = False, folders: Iterable[str] = ()) -> dict[str, Count]:
    """Counts by folder; with `listing`, prints each hit (of these folders only, if any are given)."""
    command = ["git", "-C", str(root), "ls-files"]
    files = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    crates = {name.rpartition("/")[0] for name in files if name.endswith("/Cargo.toml")}
    found: defaultdict[str, Count] = defaultdict(Count)
    for name in files:
        path, folder = root / name, folder_of(name, crates)
        if path.suffix not in (*COMMENT, ".md") or not path.is_file():
            continue
        counted, shown = found[folder], listing and (not folders or folder in folders)
        for number, line in prose(path):
            counted.lines += 1
            for hit in DIALECT.finditer(line):
                counted.hits += 1
                if shown:
                    print(f"{name}:{number}: {hit[0]}: {line.strip()[:160]}")
        if path.suffix != ".md":
            for hit in NAME.finditer(path.read_text(errors="replace")):
                counted.names += 1
                if shown:
                    print(f"{name}: name: {hit[1]}")
    return dict(found)


def read_table(root: Path) -> dict[str, Count]:
    """The folders above the bars, from the committed table."""
    rows = [line.split() for line in (root / TABLE).read_text().splitlines() if line and not line.startswith("#")]
    return {folder: Count(int(lines), int(hits), int(names)) for folder, lines, hits, names in rows}


def write_table(root: Path, table: dict[str, Count]) -> None:
    head = "# Folders above the bars of scripts/words.py, which writes this table: folder, lines, hits, names.\n"
    rows = (f"{folder:24} {c.lines:6} {c.hits:6} {c.names:6}\n" for folder, c in sorted(table.items()))
    (root / TABLE).write_text(head + "".join(rows))


def problems(found: dict[str, Count], table: dict[str, Count]) -> list[str]:
    """Folders with more hits or names than they may have."""
    wrong = []
    for folder, now in sorted(found.items()):
        before = table.get(folder, Count())
        if now.is_above_bar() and now.hits > before.hits and now.per_1000() > before.per_1000():
            allowed = f"{before.hits} or {before.per_1000():.0f} per 1,000" if before.hits else f"{BAR} per 1,000"
            wrong.append(f"{folder}: {now.hits} hits, {now.per_1000():.0f} per 1,000 lines; allowed are {allowed}")
        if now.names > before.names:
            wrong.append(f"{folder}: {now.names} names of the list; allowed are {before.names}")
    return wrong


def lowered(found: dict[str, Count], table: dict[str, Count]) -> dict[str, Count]:
    """The table with the lower of its figures and today's, without the folders that reached the bars."""
    rows = {}
    for folder, before in table.items():
        now = found.get(folder, Count())
        least = min(before, now, key=lambda c: (c.per_1000(), c.hits)) if now.hits <= before.hits else before
        names = min(before.names, now.names)
        if now.is_above_bar():
            rows[folder] = Count(least.lines, least.hits, names)
        elif names:
            rows[folder] = Count(0, 0, names)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print each hit")
    parser.add_argument("--update", action="store_true", help="lower the figures of scripts/words.txt to today's")
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="only these crates and top folders (default: all)")
    options = parser.parse_args()
    found, table = count(ROOT, options.list, options.folders), read_table(ROOT)
    for folder, c in sorted(found.items()):
        if not options.folders or folder in options.folders:
            print(f"{folder:24} {c.lines:7} lines {c.hits:6} hits {c.per_1000():6.0f} per 1,000  {c.names:5} names")
    if not options.folders:
        c = Count(*(sum(getattr(c, name) for c in found.values()) for name in ("lines", "hits", "names")))
        print(f"{'all':24} {c.lines:7} lines {c.hits:6} hits {c.per_1000():6.0f} per 1,000  {c.names:5} names")
    if options.update:
        write_table(ROOT, lowered(found, table))
    wrong = problems(found, table)
    for problem in wrong:
        print(f"words: {problem} (scripts/words.py --list {problem.split(':')[0]} prints them)", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
