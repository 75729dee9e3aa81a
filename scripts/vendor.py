#!/usr/bin/env python3
"""Copies what the controller needs of this Python environment into a folder: vendor.py FOLDER.

The Debian archive has not all of it in the versions that we test with, so the package brings them along: exactly
those of requirements.lock that the project's own dependencies (no extras) lead to, licences included.
"""

from __future__ import annotations

import re
import shutil
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

BUILD_ONLY = {"grpcio-tools", "setuptools"}
"""Needed to generate the bindings, not to run."""


def closure(name: str) -> dict[str, metadata.Distribution]:
    """The distributions that one leads to, itself excluded, by normalised name."""
    found: dict[str, metadata.Distribution] = {}
    todo = [name]
    while todo:
        distribution = metadata.distribution(todo.pop())
        for requirement in distribution.requires or []:
            needed, _, marker = requirement.partition(";")
            if "extra" in marker or not wanted(marker):
                continue
            key = re.sub(r"[-_.]+", "-", re.split(r"[\s\[<>=!~(]", needed.strip(), maxsplit=1)[0]).lower()
            if key not in found and key not in BUILD_ONLY:
                found[key] = metadata.distribution(key)
                todo.append(key)
    return found


def wanted(marker: str) -> bool:
    """Whether a requirement's marker holds here; what cannot be judged is wanted if it is installed."""
    if not marker.strip():
        return True
    from packaging.markers import Marker

    return bool(Marker(marker.strip()).evaluate())


def main() -> int:
    """Copies the files of every distribution, and ours."""
    target = Path(sys.argv[1])
    site = Path(sysconfig.get_paths()["purelib"])
    for name, distribution in sorted(closure("rivulet").items()):
        files = distribution.files
        if files is None:
            raise SystemExit(f"{name} does not say which files are its own")
        for file in files:
            source = Path(str(file.locate()))
            if ".." in file.parts or file.suffix == ".pyc" or not source.is_file():
                # Scripts lie outside; compiled files are of this machine.
                continue
            if not source.resolve().is_relative_to(site.resolve()):
                raise SystemExit(f"{name} is not of the environment: {source}")
            place = target / file
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, place)
        print(f"{name} {distribution.version}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
