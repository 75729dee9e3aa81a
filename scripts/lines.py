#!/usr/bin/env python3
"""Fails if a source file has more than 500 lines.

scripts/lines.py [--update]

Longer files are in scripts/lines.txt with their numbers of lines, and may only get shorter. --update writes lower
numbers into that table, never higher ones, and removes the files that have come below the limit.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import links

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 500
TABLE = Path("scripts", "lines.txt")
SOURCES = (".rs", ".py", ".c", ".h", ".p4", ".lua", ".sh")


def long_files(root: Path) -> dict[str, int]:
    """Source files above the limit, with their numbers of lines."""
    files = (name for name in links.files(root) if name.endswith(SOURCES))
    lines = {name: len((root / name).read_text(errors="replace").splitlines()) for name in files}
    return {name: count for name, count in lines.items() if count > LIMIT}


def read_table(root: Path) -> dict[str, int]:
    rows = [line.split() for line in (root / TABLE).read_text().splitlines() if line and not line.startswith("#")]
    return {name: int(count) for name, count in rows}


def write_table(root: Path, table: dict[str, int]) -> None:
    head = f"# Source files of more than {LIMIT} lines; scripts/lines.py writes this table.\n"
    (root / TABLE).write_text(head + "".join(f"{name} {count}\n" for name, count in sorted(table.items())))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="lower the numbers of scripts/lines.txt to today's")
    options = parser.parse_args()
    found, table = long_files(ROOT), read_table(ROOT)
    if options.update:
        write_table(ROOT, {name: min(count, found[name]) for name, count in table.items() if name in found})
    wrong = {name: count for name, count in found.items() if count > table.get(name, LIMIT)}
    for name, count in wrong.items():
        print(f"lines: {name} has {count} lines, {table.get(name, LIMIT)} are allowed: divide it", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
