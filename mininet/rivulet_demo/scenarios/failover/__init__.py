"""Four clients fetch one file; replicas are killed with SIGKILL until one is left, and return.

All clients are unmodified curl. The first runs under `rivulet run` and keeps its one connection. So does the second, by
stateless TCP, without any Rivulet code at the client. The third uses the kernels' TCP: its replica is killed first, and
curl ends with an error. The fourth does too, and a script starts it again with `-C`. The result is Figure 16 of the
paper with live replicas. Without RATE a trial measures what the machine carries.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from ... import capacity
from ...deeds import Deed
from ...moments import moment
from ...plan import failover
from ...report import AGAIN, RIVULET, STATELESS, TCP, begin_three, downloads
from ...scenario import Parameters, Standing, console
from ...services import url
from ...spec import BOTH_SERVICES, SERVICE_PORT
from .page import show

WORDS = __doc__ or ""

HOSTS = {RIVULET: "c1", STATELESS: "c2", TCP: "c3", AGAIN: "c4"}


def begin(standing: Standing) -> None:
    """Starts the four clients."""
    begin_three(standing, once=True)
    standing.client(AGAIN, HOSTS[AGAIN], "", address=url("file.bin"))


def run(values: Parameters, options: argparse.Namespace) -> int:
    """Runs the scenario; 0 if both clients of Rivulet got every byte over one connection."""
    trial: dict[str, Any] = {}
    if options.rate is None:
        found = capacity.measure(values, len(HOSTS), begin, serve=("--large",), services=BOTH_SERVICES)
        values, words = capacity.fit(values, found, options.size is not None)
        console.print(f"  {words}", soft_wrap=True)
        trial = {**asdict(found), "words": words}
    report = downloads("failover", values, plan, HOSTS, begin, enlarge)
    if trial:
        report["capacity"] = trial
    return show(report, values)


def plan(standing: Standing, seconds: float) -> list[Deed]:
    """The times of `plan.failover`; each kill hits the replica that a client of kernel TCP uses then."""
    victims: list[str] = []
    spare = len(standing.replicas.alive()) - 1

    def kill(standing: Standing) -> None:
        victims.append(_holder(standing))
        standing.kill(victims[-1])

    def back(place: int) -> Callable[[Standing], None]:
        return lambda standing: standing.restart(victims[place])

    steps = failover(standing.replicas.alive(), seconds)
    return [Deed(one.at, kill if place < spare else back(place - spare)) for place, one in enumerate(steps)]


def _holder(standing: Standing) -> str:
    """The replica with the connection of a kernel TCP client: the one that gives up first, then the other."""
    alive, rack = standing.replicas.alive(), standing.rack
    for client in (TCP, AGAIN):
        peer = f"( sport = :{SERVICE_PORT} and dst {rack.spec.host(HOSTS[client]).ip} )"
        for name in alive:
            if standing.clients[client][0].running() and rack.spaces[name].run(
                "ss", "-Htn", "state", "established", peer
            ):
                return name
    return alive[0]


def enlarge(standing: Standing, report: dict[str, Any]) -> None:
    """Adds each kill and each return, with all samples around it and the switch's events."""
    results = {name: standing.left(name) for name in standing.clients}
    samples = {name: [(float(at), int(n)) for at, n in one["samples"]] for name, one in results.items()}
    ended = {
        name: (float(one["failures"][-1]["at"]), int(one["failures"][-1]["exit"]))
        for name, one in results.items()
        if one["failures"] and not one["complete"]
    }
    # The report's times begin when the clients start.
    start = standing.marks[0][0] - report["marks"][0]["at_s"] if standing.marks else 0.0
    report["moments"] = []
    report["excluded_alive"] = [
        {"at_s": round(at - start, 3), "replica": name}
        for at, name, excluded in standing.watch.history
        if excluded and at >= start and not _down(standing, name, at)
    ]
    for mark in standing.marks:
        one = moment(mark, list(standing.watch.views), samples, ended)
        report["moments"].append({**one, "at": round(one["at"] - start, 4)})


def _down(standing: Standing, name: str, at: float) -> bool:
    """Whether a replica was killed before `at` and had not returned."""
    last = [what for when, what, who in standing.marks if who == name and when <= at]
    return bool(last) and last[-1] == "kill"
