"""Output of a scenario: JSON, a summary, a figure and a page."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rivulet_lab import RackError, binary, switches

from . import capture
from .cpu import CpuMeter
from .deeds import Deed
from .fetch import RETRY_S
from .figure import ENDS, Mark, draw, save
from .meter import goodput_mbps, longest_gap
from .scenario import Parameters, Standing, console, standing_rack
from .services import url
from .spec import BOTH_SERVICES, STATELESS_PORT

RIVULET, STATELESS, TCP, LATE, TRODS = "rivulet", "stateless", "tcp", "rivulet-late", "trods"
"""Names of the clients: the three of most scenarios, a Rivulet client that starts later, and one of plain TCP whose
connection must outlive its replica."""
AGAIN = "tcp-again"
"""A second client of the kernels' TCP, where the first does not reconnect."""

LABELS = {
    RIVULET: "Rivulet",
    STATELESS: "plain curl, stateless TCP",
    TCP: "plain curl, kernel TCP",
    AGAIN: "plain curl, kernel TCP, reconnects",
    LATE: "Rivulet, started during the outage",
    TRODS: "plain curl, TRODS",
}

HOSTS = {RIVULET: "c1", STATELESS: "c2", TCP: "c3"}

PARTS = 300
"""Parts of the figure's time, each with one value of the throughput."""
STALL_WINDOW_S = 3.0
"""Seconds after an action; a gap that begins later has another cause."""

Samples = list[tuple[float, int]]


def begin_three(standing: Standing, once: bool = False) -> None:
    """Starts the three clients of most scenarios: `rivulet run` curl, stateless TCP and kernel TCP.

    `once`: the client of kernel TCP is not started again after a failure.
    """
    standing.client(RIVULET, HOSTS[RIVULET], standing.via_rivulet(HOSTS[RIVULET]))
    standing.client(STATELESS, HOSTS[STATELESS], "", address=url("file.bin", STATELESS_PORT))
    standing.client(TCP, HOSTS[TCP], "", once=once)


def three_clients(
    name: str,
    values: Parameters,
    planner: Callable[[Standing, float], Sequence[Deed]],
    also: Callable[[Standing, dict[str, Any]], None] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Fetches one file with three clients during the actions: see `downloads`."""
    return downloads(name, values, planner, HOSTS, begin_three, also, **settings)


def downloads(
    name: str,
    values: Parameters,
    planner: Callable[[Standing, float], Sequence[Deed]],
    hosts: Mapping[str, str],
    begin: Callable[[Standing], None],
    also: Callable[[Standing, dict[str, Any]], None] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Fetches one file with several clients during the actions; returns the report.

    `hosts` are those of the clients, by name, which `begin` starts. `planner` gets the rack and the estimated seconds
    of the download, and may prepare the rack before the clients start. `also` adds a scenario's own data to the report
    while the rack still runs. `settings` are those of `standing_rack` and `rack`.
    """
    seconds = values.size * 8 / (values.rate_mbit * 1e6)
    settings = {"clients": len(hosts), "serve": ("--large",), "services": BOTH_SERVICES, **settings}
    with standing_rack(name, values, **settings) as standing:
        todo = sorted(planner(standing, seconds), key=lambda deed: deed.at)
        captures = {client: pcap_path(name, values, client) for client in hosts}
        running = [capture.start(standing.rack, host, captures[client]) for client, host in hosts.items()]
        start, cpu = time.monotonic(), CpuMeter()
        begin(standing)

        first, late = math.inf, 0.0

        def since() -> float:
            # From the first byte: a client that starts late must still meet the actions.
            return max(0.0, time.monotonic() - first)

        def act(standing: Standing, elapsed: float) -> None:
            nonlocal first, late
            if first == math.inf and standing.so_far(RIVULET):
                first = time.monotonic()
            while todo and since() >= todo[0].at + late:
                deed = todo.pop(0)
                deed.do(standing)
                # A slow action delays those after it, so that each harm lasts as long as planned.
                late = max(late, since() - deed.at)

        standing.run(act, patience_s=60 + 6 * seconds)
        used = cpu.cores()[0]
        for process in running:
            capture.finish(process)
        report = summarise(name, standing, start)
        report["cores_used"], report["cores"] = round(used, 2), len(os.sched_getaffinity(0))
        if todo:
            # A fast download may end before all actions; the report says so.
            report["not_done"] = len(todo)
        if also is not None:
            also(standing, report)
    add_packets(report, standing, captures)
    return report


def add_packets(report: dict[str, Any], standing: Standing, captures: dict[str, Path]) -> None:
    """Adds the counts of the captures to the report's clients, by name, after the captures have ended."""
    for client, path in captures.items():
        address = standing.rack.spec.host(standing.hosts[client]).ip
        traffic = capture.count(path, address)
        mine = report["clients"][client]
        mine["pcap"] = path.name
        mine["retransmissions"] = traffic.retransmissions
        mine["header_overhead"] = traffic.report(mine["bytes"])


def pcap_path(name: str, values: Parameters, client: str) -> Path:
    """Path of a client's capture."""
    return values.out / f"{name}-{client}.pcap"


def versions(switch: str) -> dict[str, str]:
    """Versions of the programs, from their --version."""
    tor = switches.program(switch)
    found = {"kernel": platform.release(), "python": platform.python_version()}
    for name, command in (("rivulet", binary("rivulet")), ("switch", tor), ("curl", "curl")):
        try:
            done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=10, check=False)
            found[name] = (done.stdout or done.stderr).strip().splitlines()[0][:80]
        except (OSError, subprocess.TimeoutExpired, IndexError):
            found[name] = "unknown"
    return found


def summarise(name: str, standing: Standing, start: float, clients: Sequence[str] = ()) -> dict[str, Any]:
    """`NAME.json`: measurements of each client for each action, with the switch's counters.

    `clients`: the clients that download, if not all do.
    """
    values = standing.parameters
    report: dict[str, Any] = {
        "scenario": name,
        "versions": versions(values.switch),
        "parameters": {
            "rate_mbit": values.rate_mbit,
            "rtt_ms": values.rtt_ms,
            "bytes": values.size,
            "replicas": values.replicas,
            "switch": values.switch,
            "liveness_bound_ms": standing.rack.spec.liveness_ms,
            "tcp_retry_pause_ms": RETRY_S * 1e3,
        },
        "marks": [{"at_s": round(at - start, 4), "what": what, "replica": who} for at, what, who in standing.marks],
        "clients": {},
    }
    for client in clients or standing.clients:
        result = standing.result(client)
        samples = [(float(at), int(count)) for at, count in result["samples"]]
        seconds = result["ended"] - result["started"]
        report["clients"][client] = {
            "bytes": result["bytes"],
            "complete": result["complete"],
            "sha256_ok": result["sha256_ok"],
            "connections_opened": result["connections_opened"],
            "resets_seen": len(result["failures"]),
            "failures": [{**f, "at": round(f["at"] - start, 3)} for f in result["failures"]],
            "goodput_mbps": round(result["bytes"] * 8 / seconds / 1e6, 3),
            "seconds": round(seconds, 3),
            "longest_gap_ms": result["longest_gap_ms"],
            "kills": list(_felt(standing, samples, start)),
            "phases": _phases(standing, samples, start),
            "samples": [[round(at - start, 4), count] for at, count in samples[:: max(1, len(samples) // 4000)]],
        }
    return report


def _felt(standing: Standing, samples: Samples, start: float) -> list[dict[str, Any]]:
    """Stalls of a client after each harm during its download."""
    harms = [(at, what, who) for at, what, who in standing.marks if what not in ENDS]
    felt = []
    for place, (at, what, who) in enumerate(harms):
        if not samples or at >= samples[-1][0]:
            continue
        until = min([at + STALL_WINDOW_S, *(later for later, _, _ in harms[place + 1 :] if later > at)])
        felt.append(
            {
                "what": what,
                "replica": who,
                "at_s": round(at - start, 4),
                "stall_ms": round(longest_gap(samples, at, until) * 1e3, 2),
                "exclusion_ms": _excluded_after(standing, at, who),
            }
        )
    return felt


def _phases(standing: Standing, samples: Samples, start: float) -> list[dict[str, Any]]:
    """Goodput between consecutive marks."""
    if not samples:
        return []
    # From the first byte: the start of the programs is not the network's doing.
    edges = [(max(start, samples[0][0]), "begin"), *((at, f"{what} {who}") for at, what, who in standing.marks)]
    inside = [(at, words) for at, words in edges if at < samples[-1][0]]
    inside.sort(key=lambda edge: edge[0])
    ends = [at for at, _ in inside[1:]] + [samples[-1][0]]
    return [
        {"from_s": round(at - start, 3), "since": words, "goodput_mbps": round(goodput_mbps(samples, at, end), 2)}
        for (at, words), end in zip(inside, ends, strict=True)
    ]


def _excluded_after(standing: Standing, at: float, replica: str) -> float | None:
    """Milliseconds from an action to the exclusion of the replica in the switch's counters; 0 if it was excluded."""
    ends = [when for when, what, who in standing.marks if who == replica and what in ENDS and when > at]
    changes = [(when, excluded) for when, name, excluded in standing.watch.history if name == replica]
    earlier = [excluded for when, excluded in changes if when < at]
    if earlier and earlier[-1]:
        # On a busy machine late heartbeats may have excluded it before, so that no change follows.
        return 0.0
    for when, excluded in changes:
        if excluded and at <= when < min(ends, default=when + 1):
            return round((when - at) * 1e3, 2)
    return None


def kept(client: dict[str, Any]) -> bool:
    """Whether a client received every byte over one connection."""
    return bool(client["sha256_ok"]) and client["connections_opened"] == 1 and not client["failures"]


def show(
    report: dict[str, Any],
    values: Parameters,
    title: str,
    opening: str,
    more: Sequence[str] = (),
    picture: Path | None = None,
    names: Mapping[str, str] = LABELS,
) -> int:
    """Prints the summary, writes figure, page and JSON; 0 if all clients but kernel TCP's kept their connection.

    `picture`: a PNG to show in the page too. `names`: of the clients.
    """
    clients: dict[str, dict[str, Any]] = report["clients"]
    words = [opening]
    if values.switch == "bmv2":
        words.append(
            f"The switch was BMv2: it is far slower than the embedded one, so links run at {values.rate_mbit:g} Mb/s by"
            f" default and a replica without heartbeats is excluded after {values.liveness_ms:g} ms."
        )
    words += [sentence(names[name], client) for name, client in clients.items()]
    words += more
    if report.get("not_done"):
        words.append(f"The download ended before {report['not_done']} of the deeds: make the file larger.")
    ok = all(kept(client) for name, client in clients.items() if name != TCP)
    if not ok:
        words.append("This is NOT what Rivulet promises: the logs are in the folder below.")
    rows = table(clients, names)
    folder, scenario = values.out, report["scenario"]
    (folder / f"{scenario}.json").write_text(json.dumps(report, indent=1))
    marks = [Mark(mark["at_s"], mark["what"], mark["replica"]) for mark in report["marks"]]
    drawn = {name: client for name, client in clients.items() if client["samples"]}
    if not drawn:
        raise RackError("no client received anything")
    flows = {
        f"{names[name]}: {_count(client['connections_opened'])}": [tuple(sample) for sample in client["samples"]]
        for name, client in drawn.items()
    }
    end = max(client["samples"][-1][0] for client in drawn.values())
    png, page = folder / f"{scenario}.png", folder / f"{scenario}.html"
    broken = {
        name: f"curl ends: exit code {client['failures'][-1]['exit']}"
        for name, client in zip(flows, drawn.values(), strict=True)
        if client["failures"] and not client["complete"]
    }
    figure = draw(flows, marks, 0.0, end, title, max(0.1, end / PARTS), broken)
    save(figure, png, page, title, rows, "\n".join(words), picture)
    files = [("figure", png), ("page", page), ("data", folder / f"{scenario}.json")]
    files += [("packets", folder / client["pcap"]) for client in clients.values() if "pcap" in client]
    files += [("keys", folder / client["keys"]) for client in clients.values() if "keys" in client]
    files += [("picture", picture)] if picture is not None else []
    for line in [*words, *(f"{what + ':':8} {path}" for what, path in files)]:
        console.print(line, soft_wrap=True)
    return 0 if ok else 1


def table(clients: Mapping[str, dict[str, Any]], names: Mapping[str, str] = LABELS) -> list[list[str]]:
    """The numbers of each client; the first row is the head."""
    rows = [["", "bytes", "sha256", "connections", "failures", "Mb/s", "longest stall", "retransmissions", "headers"]]
    for name, client in clients.items():
        header = client.get("header_overhead")
        rows.append(
            [
                names[name],
                f"{client['bytes']:,}",
                "right" if client["sha256_ok"] else _wrong(client),
                str(client["connections_opened"]),
                str(client["resets_seen"]),
                f"{client['goodput_mbps']:.1f}",
                f"{_worst(client):.0f} ms" if client["complete"] else "ended",
                f"{client['retransmissions']:,}" if header else "",
                f"{header['header_overhead_percent']:.1f} %" if header else "",
            ]
        )
    return rows


def _wrong(client: dict[str, Any]) -> str:
    """Why a file is not right: incomplete, or other bytes."""
    return "WRONG BYTES" if client["complete"] else "incomplete"


def _worst(client: dict[str, Any]) -> float:
    return float(max((kill["stall_ms"] for kill in client["kills"]), default=client["longest_gap_ms"]))


def sentence(who: str, client: dict[str, Any]) -> str:
    """A client's numbers in one line."""
    right = "byte for byte" if client["sha256_ok"] else _wrong(client)
    header = client.get("header_overhead")
    stall = f"longest stall {_worst(client):.0f} ms" if client["complete"] else "ended with the connection"
    cost = ""
    if header:
        cost = (
            f", {client['retransmissions']:,} retransmissions, {header['header_overhead_percent']:.1f} % headers"
            " on what it received"
        )
    return (
        f"{who}: {_count(client['connections_opened'])}, {client['resets_seen']} broken, {right},"
        f" {client['goodput_mbps']:.1f} Mb/s, {stall}{cost}."
    )


def _count(connections: int) -> str:
    return "one connection" if connections == 1 else f"{connections} connections"
