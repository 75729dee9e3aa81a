"""Which connections were protected, as the agents' logs tell it: of the others nobody promised anything."""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Json = dict[str, Any]

LOG = "info,rivulet_trods=debug"
"""What `RIVULET_LOG` has to be for that."""
_TOLD = re.compile(
    r"^(\S+Z) +DEBUG (protected|adopted|unprotected|unprotected: it began before) client=\S+?:(\d+)(?: |$)"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

Said = dict[int, list[tuple[float, str]]]
"""By the client's port: when something was said of its connection, by the monotonic clock, and what."""


def read(logs: Iterable[Path]) -> Said:
    """All that agents said, in order."""
    ahead = time.time() - time.monotonic()
    said: Said = {}
    for log in logs:
        with log.open(errors="replace") as lines:
            for line in lines:
                if found := _TOLD.match(_COLOUR.sub("", line.rstrip())):
                    said.setdefault(int(found[3]), []).append((_seconds(found[1]) - ahead, found[2]))
    for told in said.values():
        told.sort()
    return said


def _seconds(when: str) -> float:
    """Unix time of a log's, which is always UTC."""
    whole, _, fraction = when.rstrip("Z").partition(".")
    return calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")) + float(f"0.{fraction or 0}")


def was_protected(said: Said, row: Json) -> bool:
    """Whether a connection was, when it ended: some replica had stored a record of it, and none gave it up since."""
    told = [what for at, what in said.get(row["port"], []) if row["opened"] <= at <= row["closed"]]
    return bool(told) and not told[-1].startswith("unprotected")
