#!/usr/bin/env python3
"""Finds source files that use each other in a circle, in each Rust crate and each Python package.

scripts/circles.py [--list] [--update]

Files in a circle can only be understood and changed together. A parent that only passes on a name of its child
(`pub use child::Name`) does not use it; a file that imports that name uses the child. --list prints each use between
the files of a circle.

Circles that are left are in scripts/circles.txt, one per line. They may only get smaller: a circle is allowed if one
line has all of its files. --update removes the files that are in no circle any more, and adds none.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import links
import python_modules
import rust_modules

ROOT = Path(__file__).resolve().parent.parent
TABLE = Path("scripts", "circles.txt")
CRATES = ("host/*/src", "switch/*/src", "bench/*/src")
PROGRAMS = ("lib.rs", "main.rs", "bin/*.rs", "bin/*/main.rs")
PYTHON_PATH = ("controller", "mininet", "bench")
"""Folders whose packages can import each other."""

Graph = dict[Path, dict[Path, set[str]]]
"""For each file: the files that it uses, with the paths that its text has of them."""


def graphs(root: Path) -> Iterator[Graph]:
    """The uses between the files of each program and library, and of the Python packages."""
    for crate in (found for pattern in CRATES for found in sorted(root.glob(pattern))):
        for program in (found for pattern in PROGRAMS for found in sorted(crate.glob(pattern))):
            yield rust_modules.uses(program)
    python = [root / name for name in links.files(root) if name.endswith(".py")]
    yield python_modules.uses([root / folder for folder in PYTHON_PATH], python)


def circles(graph: Graph) -> list[list[Path]]:
    """Groups of files each of which reaches all others of its group (Tarjan), largest first."""
    index: dict[Path, int] = {}
    low: dict[Path, int] = {}
    stack: list[Path] = []
    found: list[list[Path]] = []

    def visit(file: Path) -> None:
        index[file] = low[file] = len(index)
        stack.append(file)
        for other in sorted(graph.get(file, ())):
            if other not in index:
                visit(other)
                low[file] = min(low[file], low[other])
            elif other in stack:
                low[file] = min(low[file], index[other])
        if low[file] == index[file]:
            at = stack.index(file)
            group = sorted(stack[at:])
            del stack[at:]
            if len(group) > 1:
                found.append(group)

    for file in sorted(graph):
        if file not in index:
            visit(file)
    return sorted(found, key=lambda group: (-len(group), group))


def read_table(root: Path) -> list[set[str]]:
    lines = (root / TABLE).read_text().splitlines()
    return [set(line.split()) for line in lines if line and not line.startswith("#")]


def write_table(root: Path, rows: Iterable[Iterable[str]]) -> None:
    head = "# Circles of source files that are left; scripts/circles.py explains and shortens this table.\n"
    (root / TABLE).write_text(head + "".join(f"{' '.join(row)}\n" for row in sorted(map(sorted, rows))))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print each use between the files of a circle")
    parser.add_argument("--update", action="store_true", help="shorten the lines of scripts/circles.txt")
    options = parser.parse_args()
    left: list[list[str]] = []
    table, wrong = read_table(ROOT), 0
    for graph in graphs(ROOT):
        for circle in circles(graph):
            names = [str(file.relative_to(ROOT)) for file in circle]
            known = any(row.issuperset(names) for row in table)
            if options.list:
                print(f"circle of {len(circle)}: {' '.join(names)}")
                for file in circle:
                    print(f"    {file.relative_to(ROOT)} uses")
                    for other, paths in sorted(graph[file].items()):
                        if other in circle:
                            print(f"        {other.relative_to(ROOT)}: {' '.join(sorted(paths))}")
            if known:
                left.append(names)
            else:
                wrong += 1
                print(
                    f"circles: these files use each other: {' '.join(names)}. Move what both sides use to a file of "
                    "its own (scripts/circles.py --list shows the uses)",
                    file=sys.stderr,
                )
    if options.update:
        write_table(ROOT, left)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
