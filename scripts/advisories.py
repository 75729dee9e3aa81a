#!/usr/bin/env python3
"""Compares both lock files with copies of the advisory lists on this machine: advisories.py FOLDER.

FOLDER has clones of RustSec's list (`advisory-db`) and of the Python Packaging Authority's (`advisory-database`):

    git clone https://github.com/rustsec/advisory-db
    git clone https://github.com/pypa/advisory-database

`make audit` downloads the lists; with ADVISORIES=FOLDER it uses the copies where the download fails. A copy does not
replace the download, because newer advisories are missing; its date is printed. Exit code: 0, no advisory was found;
1, some were; 3, a list is missing.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parent.parent


def accepted() -> dict[str, str]:
    """Ids and reasons of the advisories that deny.toml ignores."""
    listed = tomllib.loads((ROOT / "deny.toml").read_text())["advisories"].get("ignore", [])
    return {one["id"]: one["reason"] for one in listed}


def numbers(text: str) -> tuple[tuple[int, ...], int]:
    """A version of a crate, to compare: its three numbers, and 0 before a release, 1 at it."""
    core, _, before = text.partition("+")[0].partition("-")
    parts = [int(part) for part in core.split(".")]
    return tuple([*parts, 0, 0][:3]), 0 if before else 1


def satisfies(version: str, requirement: str) -> bool:
    """Whether a crate's version meets all comparisons of a requirement, as Cargo reads it."""
    return all(_compares(numbers(version), part.strip()) for part in requirement.split(",") if part.strip())


def _compares(version: tuple[tuple[int, ...], int], part: str) -> bool:
    match = re.fullmatch(r"(>=|<=|>|<|=|\^|~)?\s*([0-9][^\s]*)", part)
    if match is None:
        return part == "*"
    sign, text = match[1] or "^", match[2]
    least = numbers(text)
    given = text.partition("-")[0].split(".")
    if sign == "=":
        return version[0][: len(given)] == least[0][: len(given)] and (len(given) < 3 or version == least)
    if sign in (">=", ">", "<=", "<"):
        return {">=": version >= least, ">": version > least, "<=": version <= least, "<": version < least}[sign]
    # Up to the first number that is not zero (^), or the last but one that is given (~).
    fixed = min(len(given) - 1, 1) if sign == "~" else next((i for i, n in enumerate(least[0]) if n), len(given) - 1)
    return version >= least and version[0][: fixed + 1] == least[0][: fixed + 1]


def of_crates(folder: Path) -> Iterator[str]:
    """What RustSec knows of the crates in Cargo.lock."""
    locked = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    for package in locked:
        if "source" not in package:
            continue
        for file in sorted((folder / "crates" / package["name"]).glob("*.md")):
            front = re.search(r"```toml\n(.*?)```", file.read_text(), re.DOTALL)
            if front is None:
                raise ValueError(f"{file} has no front matter")
            entry = tomllib.loads(front[1])
            versions = entry.get("versions", {})
            good = [*versions.get("patched", []), *versions.get("unaffected", [])]
            if entry["advisory"].get("withdrawn") or any(satisfies(package["version"], one) for one in good):
                continue
            kind = entry["advisory"].get("informational", "vulnerability")
            yield f"{entry['advisory']['id']} {package['name']} {package['version']} ({kind})"


def of_packages(folder: Path) -> Iterator[str]:
    """What the Python Packaging Authority knows of the packages in requirements.lock."""
    pinned = re.findall(r"^([A-Za-z0-9_.-]+)==([^\s\\;]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    for name, version in pinned:
        for file in sorted((folder / "vulns" / canonicalize_name(name)).glob("*.yaml")):
            entry = YAML(typ="safe").load(file.read_text())
            if entry.get("withdrawn"):
                continue
            if any(is_affected(version, affected) for affected in entry.get("affected", [])):
                yield f"{entry['id']} {name} {version} (vulnerability)"


def is_affected(version: str, affected: dict[str, Any]) -> bool:
    """Whether a version of a Python package is within an entry of the OSV format."""
    if version in affected.get("versions", []):
        return True
    here = Version(version)
    for span in affected.get("ranges", []):
        inside = False
        if span["type"] != "ECOSYSTEM":
            continue
        for event in sorted(span["events"], key=lambda one: Version(_at(one))):
            kind = next(iter(event))
            if kind == "last_affected":
                inside = inside and here <= Version(_at(event))
            elif here >= Version(_at(event)):
                inside = kind == "introduced"
        if inside:
            return True
    return False


def _at(event: dict[str, Any]) -> str:
    return str(next(iter(event.values())))


def age(folder: Path) -> str:
    """When the newest change of a clone was made."""
    done = subprocess.run(["git", "-C", str(folder), "log", "-1", "--format=%cs"], capture_output=True, text=True)
    return done.stdout.strip() or "an unknown day"


def main() -> None:
    """Entry point."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    code, known = 0, accepted()
    for name, find, what in (
        ("advisory-db", of_crates, "Cargo.lock"),
        ("advisory-database", of_packages, "requirements.lock"),
    ):
        folder = Path(sys.argv[1]) / name
        if not folder.is_dir():
            print(f"{what}: {folder} is not there")
            code = code or 3
            continue
        found = list(find(folder))
        for line in found:
            why = known.get(line.split()[0], "")
            print(f"{line}{': ' + why if why else ''}")
        bad = [line for line in found if line.split()[0] not in known]
        print(f"{what}: {len(bad)} advisories by the list of {age(folder)}, {len(found) - len(bad)} of no concern")
        code = 1 if bad else code
    sys.exit(code)


if __name__ == "__main__":
    main()
