"""Finds the protected connections in the agents' logs; no other connection must survive a kill."""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Json = dict[str, Any]

LOG = "info,rivulet_trods=debug"
"""Value of `RIVULET_LOG` that makes the agents log it."""
_TOLD = re.compile(
    r"^(\S+Z) +DEBUG (protected|adopted|unprotected|unprotected: it began before) client=\S+?:(\d+)(?: |$)"
)

Said = dict[int, list[tuple[float, str]]]
"""By the client's port: times of log lines about its connection, by the monotonic clock, and their kinds."""


def read(logs: Iterable[Path]) -> Said:
    """All log lines about connections, in order."""
    ahead = time.time() - time.monotonic()
    said: Said = {}
    for log in logs:
        with log.open(errors="replace") as lines:
            for line in lines:
                if found := _TOLD.match(line.rstrip()):
                    said.setdefault(int(found[3]), []).append((_seconds(found[1]) - ahead, found[2]))
    for told in said.values():
        told.sort()
    return said


def _seconds(when: str) -> float:
    """Unix time of a log line, which is in UTC."""
    whole, _, fraction = when.rstrip("Z").partition(".")
    return calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")) + float(f"0.{fraction or 0}")


def was_protected(said: Said, row: Json) -> bool:
    """Whether a connection was protected at its end: a replica had stored its record, and none had ended the
    protection."""
    told = [what for at, what in said.get(row["port"], []) if row["opened"] <= at <= row["closed"]]
    return bool(told) and not told[-1].startswith("unprotected")
