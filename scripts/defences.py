# SPDX-License-Identifier: Apache-2.0
"""Takes one defence at a time out of a copy of what it is in, and sees that a test notices.

A defence that can be taken away without a failing test is one that nobody would miss when it breaks. What is copied,
built and run is the caller's (ptf-tests/removal.py, host/removal.py). Needs nothing but Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Removal:
    """In `file` the text `old`, which stands there once, becomes `new`; one of `tests` must fail."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def take_out(removal: Removal, folder: Path) -> None:
    """In the copy in this folder."""
    path = folder / removal.file
    text = path.read_text()
    if text.count(removal.old) != 1:
        raise SystemExit(f"{removal.file} holds {removal.old!r} {text.count(removal.old)} times, not once")
    path.write_text(text.replace(removal.old, removal.new))


def parser(description: str, removals: Mapping[str, Removal]) -> argparse.ArgumentParser:
    """The arguments of a program that does this."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--list", action="store_true", help="say the names, and do nothing")
    made.add_argument("names", nargs="*", metavar="NAME", help=", ".join(removals))
    return made


def run(removals: Mapping[str, Removal], args: argparse.Namespace, failed: Callable[[Removal], list[str]]) -> int:
    """Says of each of the named, or of all, which tests notice. One that none does makes the exit code 1.

    `failed` takes one out and gives the tests that fail without it.
    """
    if args.list:
        print("\n".join(removals))
        return 0
    names = args.names or list(removals)
    if unknown := [name for name in names if name not in removals]:
        raise SystemExit(f"no such defence: {', '.join(unknown)}")
    unnoticed = 0
    for name in names:
        noticed = failed(removals[name])
        print(f"{name}: {', '.join(noticed) or 'UNNOTICED by ' + ', '.join(removals[name].tests)}", flush=True)
        unnoticed += not noticed
    print(f"removal: {len(names) - unnoticed} noticed, {unnoticed} not")
    return 1 if unnoticed else 0
