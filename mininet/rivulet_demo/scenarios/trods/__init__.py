"""Kills nginx, the agent and the link of the replica that holds a plain download, one after the other.

The replicas are unmodified nginx with `rivulet agent --plain-tcp`; plain curl and headless Chromium run no Rivulet
code (docs/trods.md). Each harm hits the replica that holds curl's connection at that time, is repaired, and the next
harm follows when all replicas are live. A second curl fetches from another port of the same nginx, with kernel TCP
only; it begins at the replica that is harmed first. RATE defaults to 25 Mb/s, and the file is large enough for all
harms: SIZE, but at least 45 seconds' worth.
"""

from __future__ import annotations

import argparse

from ...harms import SERVICE, Scene, Site, fit, furnish, opening, play, summary
from ...report import TCP, TRODS, show
from ...scenario import Parameters
from ...spec import SERVICE_PORT, SERVICE_V4
from .replicas import HARMS, NginxReplicas

WORDS = __doc__ or ""

KERNEL_PORT = 81
RATE_MBIT = 25.0
"""Default rate of the links: with two downloads, a browser and their captures a higher rate leaves no CPU time of two
processors for Chromium and the controller."""
SHORTEST_S = 45.0
"""Default duration of the download, and its minimum: three harms, each until all replicas are live."""
SCENE = Scene(
    "trods",
    Site(TRODS, "c1", f"http://{SERVICE_V4}:{SERVICE_PORT}"),
    Site(TCP, "c3", f"http://{SERVICE_V4}:{KERNEL_PORT}"),
    HARMS,
    NginxReplicas,
    {"services": ((SERVICE, SERVICE_PORT, "trods"), (f"{SERVICE}-kernel", KERNEL_PORT, "kernel"))},
)


def run(values: Parameters, options: argparse.Namespace) -> int:
    """Runs the scenario; 0 if the one connection survived every harm and Chromium's rounds were complete."""
    values = fit(values, options.rate, options.size, RATE_MBIT, SHORTEST_S)
    www = values.out / "www-trods"
    sha256 = furnish(www, values)
    picture = values.out / "trods-browser.png"
    report = play(SCENE, values, www, sha256, picture)
    words, missed = summary(SCENE, report)
    words += [f"NOT as expected: {what}." for what in missed]
    title = "one plain connection; the replica that holds it is harmed three times"
    first = opening(values, "nginx", len(report["harms"]))
    return show(report, values, title, first, words, picture) or int(bool(missed))
