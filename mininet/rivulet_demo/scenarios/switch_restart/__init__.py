"""The ToR itself is killed and started again in the middle of two downloads.

The controller pushes the pipeline and every entry again; the Rivulet client goes on over its one connection.
"""

from __future__ import annotations

import argparse
import time

from ...report import RIVULET, TCP, show, summarise
from ...scenario import Parameters, Standing, standing_rack

WORDS = __doc__ or ""

DOWN_S = 0.2
"""How long the switch is gone before it is started again."""


def run(values: Parameters, options: argparse.Namespace) -> int:
    """Runs the scenario; 0 if the Rivulet client got every byte over one connection."""
    seconds = values.size * 8 / (values.rate_mbit * 1e6)
    with standing_rack("switch-restart", values) as standing:
        started = time.monotonic()
        standing.client(RIVULET, "c1", standing.via_rivulet("c1"))
        standing.client(TCP, "c2", "")
        socket = standing.rack.folder / "switch.sock"
        todo = ["kill", "return"]

        def act(standing: Standing, elapsed: float) -> None:
            if todo and elapsed >= seconds / 3 + (DOWN_S if len(todo) == 1 else 0.0):
                what = todo.pop(0)
                if what == "kill":
                    standing.rack.processes["switch"].popen.kill()
                    standing.rack.processes["switch"].popen.wait()
                    socket.unlink(missing_ok=True)
                else:
                    standing.rack.start_switch(socket)
                standing.marks.append((time.monotonic(), what, "ToR"))

        standing.run(act, patience_s=90 + 6 * seconds)
        report = summarise("switch-restart", standing, started)
    opening = (
        f"The switch was killed with kill -9 and started again {DOWN_S:g} s later while two clients fetched"
        f" {values.size / 1e6:g} MB at {values.rate_mbit:g} Mb/s, {values.rtt_ms:g} ms round-trip time."
    )
    return show(report, values, "the ToR itself is restarted under traffic", opening)
