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
    if wrong := misplaced(removal, folder):
        raise SystemExit(wrong)
    path.write_text(path.read_text().replace(removal.old, removal.new))


def misplaced(removal: Removal, folder: Path) -> str:
    """What is wrong with where a defence is said to stand; else "". Code moves on, and the list does not by itself."""
    path = folder / removal.file
    count = path.read_text().count(removal.old) if path.is_file() else 0
    return "" if count == 1 else f"{removal.file} holds {removal.old!r} {count} times, not once"


def parser(description: str, removals: Mapping[str, Removal]) -> argparse.ArgumentParser:
    """The arguments of a program that does this."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--list", action="store_true", help="say the names, and do nothing")
    made.add_argument("--check", action="store_true", help="only see that all stand where they are said to")
    made.add_argument("names", nargs="*", metavar="NAME", help=", ".join(removals))
    return made


def run(
    removals: Mapping[str, Removal], args: argparse.Namespace, folder: Path, failed: Callable[[Removal], list[str]]
) -> int:
    """Says of each of the named, or of all, which tests notice. One that none does makes the exit code 1.

    `failed` takes one out and gives the tests that fail without it; `folder` is what is copied for it.
    """
    if args.list:
        print("\n".join(removals))
        return 0
    names = args.names or list(removals)
    if unknown := [name for name in names if name not in removals]:
        raise SystemExit(f"no such defence: {', '.join(unknown)}")
    if args.check:
        wrong = [f"{name}: {found}" for name in names if (found := misplaced(removals[name], folder))]
        print("\n".join(wrong) or f"{len(names)} defences stand where they are said to")
        return 1 if wrong else 0
    unnoticed = 0
    for name in names:
        noticed = failed(removals[name])
        print(f"{name}: {', '.join(noticed) or 'UNNOTICED by ' + ', '.join(removals[name].tests)}", flush=True)
        unnoticed += not noticed
    print(f"removal: {len(names) - unnoticed} noticed, {unnoticed} not")
    return 1 if unnoticed else 0
