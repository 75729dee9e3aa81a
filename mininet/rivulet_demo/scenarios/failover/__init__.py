"""Three clients fetch one file; replicas are killed with SIGKILL until one is left, and return.

All clients are unmodified curl. The first runs under `rivulet run` and keeps its one connection. So does the second, by
stateless TCP, without any Rivulet code at the client. The third, which a script resumes, shows the kernels' TCP. The
result is Figure 16 of the paper with live replicas.
"""

from __future__ import annotations

import argparse

from ...deeds import of_plan
from ...plan import failover
from ...report import show, three_clients
from ...scenario import Parameters

WORDS = __doc__ or ""


def run(values: Parameters, options: argparse.Namespace) -> int:
    """Runs the scenario; 0 if both clients of Rivulet got every byte over one connection."""
    report = three_clients(
        "failover",
        values,
        lambda standing, seconds: of_plan(failover(list(standing.replicas.alive()), seconds)),
    )
    opening = (
        f"{values.replicas - 1} of {values.replicas} replicas were killed with kill -9 while three clients fetched"
        f" {values.size / 1e6:g} MB at {values.rate_mbit:g} Mb/s, {values.rtt_ms:g} ms round-trip time, through the"
        f" {values.switch} switch."
    )
    return show(report, values, "kill -9 in the middle of a download", opening)
