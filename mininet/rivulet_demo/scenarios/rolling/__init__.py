"""Replicas are killed and started again one after the other, as in an upgrade, while three clients download.

The clients of Rivulet and of stateless TCP keep their one connection.
"""

from __future__ import annotations

import argparse

from ...deeds import of_plan
from ...plan import rolling
from ...report import show, three_clients
from ...scenario import Parameters

WORDS = __doc__ or ""


def run(values: Parameters, options: argparse.Namespace) -> int:
    """Runs the scenario; 0 if both clients of Rivulet got every byte over one connection."""
    report = three_clients(
        "rolling",
        values,
        lambda standing, seconds: of_plan(rolling(list(standing.replicas.alive()), seconds)),
    )
    opening = (
        f"Each of {values.replicas} replicas was killed and started again in turn while three clients fetched"
        f" {values.size / 1e6:g} MB at {values.rate_mbit:g} Mb/s, {values.rtt_ms:g} ms round-trip time."
    )
    return show(report, values, "a rolling restart under load", opening)
