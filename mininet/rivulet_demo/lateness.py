"""Measures how late this machine wakes a process that sleeps for 2 ms: a heartbeat is late by as much.

    python -m rivulet_demo.lateness SECONDS CORE

Prints the longest delay in milliseconds on this core. Linux lets starved ordinary processes run for up to 50 ms a
second on each core, even before those of real-time priority.
"""

from __future__ import annotations

import os
import sys
import time

SLEEP_S = 0.002
"""The default interval of heartbeats."""


def main() -> int:
    """Sleeps and measures until the time is over."""
    os.sched_setaffinity(0, {int(sys.argv[2])})
    worst, now = 0.0, time.monotonic()
    end = now + float(sys.argv[1])
    while now < end:
        time.sleep(SLEEP_S)
        before, now = now, time.monotonic()
        worst = max(worst, now - before - SLEEP_S)
    print(f"{worst * 1e3:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
