"""The soak of the switch: traffic at the highest rate without loss for a given time, with changing tables; its
memory."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rivulet_lab import Process

from .stats import percentile
from .switch_rig import Control, pps

SHARE = 0.9
"""Factor to the next lower rate: the rate of a short search is optimistic, and this one must last."""
PROBE_S = 5.0
"""Seconds that a rate must last, with changing tables, to be chosen."""
LOWEST = 10_000
EVERY_S = 1.0
"""Seconds between two readings of the memory."""
WARM_SHARE = 0.25
"""Share of the readings before which memory that is allocated once does not count."""
ENTRIES = 500
"""Routes that are inserted and deleted in rotation."""


def resident_kb(pid: int) -> int:
    """Resident memory of a process, kB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


class Churn:
    """Inserts and deletes routes, one write each, until the end of the block."""

    def __init__(self, control: Control, line: Callable[[int], str]) -> None:
        self._control, self._line = control, line
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.writes = 0
        self.error: str | None = None

    def _run(self) -> None:
        try:
            for i in itertools.count():
                kind = "insert" if (i // ENTRIES) % 2 == 0 else "delete"
                self._control.install([[kind, *self._line(i % ENTRIES).split()]])
                self.writes += 1
                if self._stop.wait(0.005):
                    return
        except Exception as error:  # reported with the results
            self.error = str(error)

    def __enter__(self) -> Churn:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)


def soak(
    switch: Process,
    control: Control,
    route: Callable[[int], str],
    search: Callable[[], dict[str, Any]],
    attempt: tuple[Path, str, tuple[str, ...], Path, tuple[str, ...]],
    seconds: float,
) -> dict[str, Any]:
    """A row of the results: sent and lost packets, writes, memory at start and end."""
    rate = int(search()["pps"])
    tool, source, sinks, frames, fields = attempt

    def send(span: float) -> dict[str, Any]:
        flags = ("--rate", str(rate), "--seconds", str(span), *fields)
        return pps(tool, source, sinks, frames, *flags, patience=span + 60)

    readings: list[int] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(EVERY_S):
            readings.append(resident_kb(switch.pid))

    watcher = threading.Thread(target=watch, daemon=True)
    with Churn(control, route) as churn:
        while rate > LOWEST and (seen := send(PROBE_S))["received"] < seen["sent"]:
            rate = int(rate * SHARE)
        watcher.start()
        began = time.monotonic()
        seen = send(seconds)
        took = time.monotonic() - began
    done.set()
    watcher.join(5)
    warm = readings[int(len(readings) * WARM_SHARE) :] or [0]
    quarter = max(1, len(warm) // 4)
    first, last = percentile(warm[:quarter], 50), percentile(warm[-quarter:], 50)
    return {
        "seconds": round(took, 1),
        "offered_pps": rate,
        "sent": seen["sent"],
        "lost": seen["sent"] - seen["received"],
        "table_writes": churn.writes,
        "table_writes_failed": churn.error,
        "resident_kb_after_warm_up": first,
        "resident_kb_at_the_end": last,
        "growth_kb": last - first,
        "readings": len(readings),
    }
