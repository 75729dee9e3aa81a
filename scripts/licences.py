#!/usr/bin/env python3
"""Refuses a Python package of requirements.lock whose licence was not looked at: licences.py.

A package says its licence as an expression (PEP 639), as a classifier or as free text; all three are compared with
what may be imported. What only tests import, in files under GPL-2.0-only, stands in a list of its own.
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
    """What a package says of its licence."""
    fields = distribution.metadata
    said = [fields.get("License-Expression") or ""]
    said += [c.rsplit("::", 1)[-1].strip() for c in fields.get_all("Classifier") or [] if c.startswith("License ::")]
    if not any(said):
        said = [(fields.get("License") or "").strip().splitlines()[0] if fields.get("License") else ""]
    return "; ".join(word for word in said if word)


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
            print(f"{name}: {found or 'says no licence'}")
            wrong += 1
    print(f"{len(names)} packages, {wrong} with a licence that is not allowed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
