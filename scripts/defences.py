# SPDX-License-Identifier: Apache-2.0
"""Removes one defence at a time from a copy of a program and checks that a test fails without it.

If no test fails without a defence, the defence could break unnoticed. The callers, ptf-tests/removal.py
and host/removal.py, copy, build and run the programs. Needs only Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Removal:
    """Replaces the text `old`, which `file` must contain once, by `new`; one of `tests` must then fail."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def take_out(removal: Removal, folder: Path) -> None:
    """Applies a removal to the copy in `folder`."""
    path = folder / removal.file
    if wrong := misplaced(removal, folder):
        raise SystemExit(wrong)
    path.write_text(path.read_text().replace(removal.old, removal.new))


def misplaced(removal: Removal, folder: Path) -> str:
    """Message if `file` does not contain `old` exactly once, which happens when the code changes; else ""."""
    path = folder / removal.file
    count = path.read_text().count(removal.old) if path.is_file() else 0
    return "" if count == 1 else f"{removal.file} holds {removal.old!r} {count} times, not once"


def parser(description: str, removals: Mapping[str, Removal]) -> argparse.ArgumentParser:
    """Arguments of a program that removes defences."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--list", action="store_true", help="print the names and exit")
    made.add_argument("--check", action="store_true", help="only check that the text to remove and the tests exist")
    made.add_argument("names", nargs="*", metavar="NAME", help=", ".join(removals))
    return made


def run(
    removals: Mapping[str, Removal],
    args: argparse.Namespace,
    folder: Path,
    failed: Callable[[Removal], list[str]],
    exists: Callable[[str], bool],
) -> int:
    """Removes the named defences, or all, and prints the tests that fail; returns 1 if a removal fails no test.

    `failed` applies one removal and returns the tests that fail; `folder` holds the files before the removal; `exists`
    returns whether there is a test with this name.
    """
    if args.list:
        print("\n".join(removals))
        return 0
    names = args.names or list(removals)
    if unknown := [name for name in names if name not in removals]:
        raise SystemExit(f"no such defence: {', '.join(unknown)}")
    if args.check:
        wrong = [f"{name}: {found}" for name in names if (found := misplaced(removals[name], folder))]
        wrong += [f"{name}: no test {test}" for name in names for test in removals[name].tests if not exists(test)]
        print("\n".join(wrong) or f"{len(names)} removals find the text that they replace, and their tests exist")
        return 1 if wrong else 0
    unnoticed = 0
    for name in names:
        noticed = failed(removals[name])
        print(f"{name}: {', '.join(noticed) or 'UNNOTICED by ' + ', '.join(removals[name].tests)}", flush=True)
        unnoticed += not noticed
    print(f"removal: {len(names) - unnoticed} noticed, {unnoticed} not")
    return 1 if unnoticed else 0
