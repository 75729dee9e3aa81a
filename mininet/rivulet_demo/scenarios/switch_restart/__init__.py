"""The ToR is killed and started again in the middle of three downloads.

The controller installs the pipeline and every entry again; each client continues over its one connection. A fourth
client starts while the ToR is down, so that its first packet is lost.
"""

from __future__ import annotations

import argparse
import time

from ...deeds import Deed
from ...report import LATE, show, three_clients
from ...scenario import Parameters, Standing
from ...services import ping_ms

WORDS = __doc__ or ""

DOWN_S = 0.2
"""Seconds between the kill and the restart of the switch."""


def run(values: Parameters, options: argparse.Namespace) -> int:
    """Runs the scenario; 0 if all clients of Rivulet got every byte over one connection."""
    report = three_clients("switch-restart", values, _plan, clients=4)
    opening = (
        f"The switch was killed with kill -9 and started again {DOWN_S:g} s later while three clients fetched"
        f" {values.size / 1e6:g} MB at {values.rate_mbit:g} Mb/s, {values.rtt_ms:g} ms round-trip time."
    )
    return show(report, values, "the ToR itself is restarted under traffic", opening)


def _plan(standing: Standing, seconds: float) -> list[Deed]:
    socket = standing.rack.folder / "switch.sock"
    # The client resolves its gateway now: otherwise its first packet would be an ARP request and not a SYN.
    ping_ms(standing.rack, "c4", standing.rack.spec.of("replica")[0].ip)

    def kill(standing: Standing) -> None:
        switch = standing.rack.processes["switch"].popen
        switch.kill()
        standing.mark("kill", "ToR")
        switch.wait()
        socket.unlink(missing_ok=True)
        standing.client(LATE, "c4", standing.via_rivulet("c4"))
        standing.rack.until(lambda: standing.started(LATE), "the fourth client starts", 20.0)
        # curl needs some time from its start to its SYN, which the outage must cover.
        time.sleep(0.1)

    def restart(standing: Standing) -> None:
        standing.rack.start_switch(socket)
        standing.mark("return", "ToR")

    return [Deed(seconds / 3, kill), Deed(seconds / 3 + DOWN_S, restart)]
