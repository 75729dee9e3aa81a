#!/usr/bin/env python3
"""Fails if a Python package of requirements.lock has a licence that is not allowed.

A package states its licence as an expression (PEP 639), as classifiers or as free text; each is compared with ALLOWED.
Packages that only the tests import, in files under GPL-2.0-only, are in TESTS_ONLY.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

ALLOWED = re.compile(
    r"apache|\bmit\b|bsd|\bisc\b|\bpsf|python software foundation|mpl[- ]?2|mozilla public license 2|unlicense|hpnd"
    r"|zlib|cc0",
    re.IGNORECASE,
)
FORBIDDEN = re.compile(r"\b[al]?gpl|general public", re.IGNORECASE)
TESTS_ONLY = {"scapy"}
"""Never linked or shipped: it is imported by the packet tests, which carry its licence, GPL-2.0-only."""


def licence(distribution: metadata.Distribution) -> str:
    """The licence that a package states."""
    fields = distribution.metadata
    stated = [fields.get("License-Expression") or ""]
    stated += [c.rsplit("::", 1)[-1].strip() for c in fields.get_all("Classifier") or [] if c.startswith("License ::")]
    if not any(stated):
        stated = [(fields.get("License") or "").strip().splitlines()[0] if fields.get("License") else ""]
    return "; ".join(word for word in stated if word)


def main() -> int:
    """0 if all are allowed."""
    lock = (Path(__file__).resolve().parent.parent / "requirements.lock").read_text()
    wrong = 0
    names = re.findall(r"^([A-Za-z0-9_.-]+)==", lock, re.MULTILINE)
    for name in names:
        try:
            found = licence(metadata.distribution(name))
        except metadata.PackageNotFoundError:
            print(f"{name}: not installed (make setup)")
            wrong += 1
            continue
        if name in TESTS_ONLY:
            continue
        # A choice of several is allowed if one of them is.
        fine = ALLOWED.search(found) and (not FORBIDDEN.search(found) or " OR " in found)
        if not fine:
            print(f"{name}: {found or 'states no licence'}")
            wrong += 1
    print(f"{len(names)} packages, {wrong} with a licence that is not allowed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
