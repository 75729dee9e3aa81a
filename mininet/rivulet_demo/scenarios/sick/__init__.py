"""A replica that is sick but not dead: frozen in the middle of two downloads, later thawed.

A frozen process keeps its sockets, its ports and its kernel, and answers nothing; only its heartbeat stops. The
ToR excludes it, and takes it back when it wakes.
"""

from __future__ import annotations

import argparse
import signal
import time

from ...report import RIVULET, TCP, show, summarise
from ...scenario import Parameters, Standing, standing_rack

WORDS = __doc__ or ""


def run(values: Parameters, options: argparse.Namespace) -> int:
    """Runs the scenario; 0 if the Rivulet client got every byte over one connection."""
    seconds = values.size * 8 / (values.rate_mbit * 1e6)
    with standing_rack("sick", values) as standing:
        victim = standing.rack.spec.of("replica")[0].name
        started = time.monotonic()
        standing.client(RIVULET, "c1", standing.via_rivulet("c1"))
        standing.client(TCP, "c2", "")
        todo = [(seconds / 4, signal.SIGSTOP, "kill"), (seconds / 2, signal.SIGCONT, "return")]

        def act(standing: Standing, elapsed: float) -> None:
            if todo and elapsed >= todo[0][0]:
                _, number, what = todo.pop(0)
                standing.replicas.running[victim].popen.send_signal(number)
                standing.marks.append((time.monotonic(), what, victim))

        try:
            standing.run(act, patience_s=90 + 6 * seconds)
        finally:
            # A stopped process would not heed the end of the rack.
            standing.replicas.running[victim].popen.send_signal(signal.SIGCONT)
        report = summarise("sick", standing, started)
    opening = (
        f"{victim} was frozen (SIGSTOP) and later thawed while two clients fetched {values.size / 1e6:g} MB at"
        f" {values.rate_mbit:g} Mb/s, {values.rtt_ms:g} ms round-trip time."
    )
    return show(report, values, "a frozen replica", opening)
