#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that each row of docs/security.md's tables of doors and of attacks names tests, and that they exist.

scripts/security.py

A row names its tests as "(test: `name`)" or "(tests: `one`, `other`)", or gives a reason: "(no test: reason)". Tests
are functions of Rust with an attribute `test`, functions of pytest, and classes of packet tests.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import links

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/security.md"
TABLES = ("Doors", "What an attacker can try")
"""Headings of the tables whose rows name tests."""

RUST = re.compile(r"#\[(?:\w+::)*test\b[^\]]*\]\s*(?:#\[[^\n]*\]\s*)*(?:async\s+)?fn\s+(\w+)")
PYTHON = re.compile(r"^\s*(?:async\s+)?def\s+(test_\w+)|^class\s+(\w+)", re.M)
NAMED = re.compile(r"\(tests?\b[^:()]*:\s*([^()]*)\)")
REASON = re.compile(r"\(no test: [^()]+\)")
CODE = re.compile(r"(`+)([^`]*)\1")


def test_names(root: Path) -> set[str]:
    """Names of all tests in the repository, with those of files that are not committed yet."""
    names: set[str] = set()
    for path in (root / name for name in links.files(root) if name.endswith((".rs", ".py"))):
        found = (RUST if path.suffix == ".rs" else PYTHON).findall(path.read_text())
        names.update(name for one in found for name in ([one] if isinstance(one, str) else one) if name)
    return names


def rows(text: str, heading: str) -> Iterator[tuple[int, str]]:
    """The rows of the table under a heading, with their line numbers and without the table's head."""
    inside, seen = False, 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#"):
            inside, seen = line.lstrip("#").strip() == heading, 0
        elif inside and line.startswith("|"):
            seen += 1
            if seen > 2:
                yield number, line


def problems(text: str, tests: set[str]) -> list[str]:
    """What is wrong with the page's text."""
    wrong = []
    for heading in TABLES:
        table = list(rows(text, heading))
        if not table:
            wrong.append(f'{PAGE}: no table under "{heading}"')
        for number, row in table:
            named = [name for part in NAMED.findall(row) for _, name in CODE.findall(part) if " " not in name]
            if not named and not REASON.search(row):
                wrong.append(f"{PAGE}:{number}: the row names no test: {row[:60]}")
            wrong += [f"{PAGE}:{number}: there is no test {name}" for name in named if name not in tests]
    return wrong


def main() -> int:
    wrong = problems((ROOT / PAGE).read_text(), test_names(ROOT))
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
