"""Two clients fetch one file; replicas are killed with kill -9 until one is left, and come back.

The Rivulet client (curl, unmodified, under `rivulet run`) keeps its one connection. The TCP client (the same
curl, resumed by a script) shows what happens without Rivulet. The result is Figure 16 of the paper with live
replicas.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from ...fetch import RETRY_S
from ...figure import Mark, draw, save
from ...meter import longest_gap
from ...scenario import Parameters, Standing, console, standing_rack
from .plan import Plan, plan

WORDS = __doc__ or ""

RIVULET, TCP = "rivulet", "tcp"


def run(values: Parameters, options: argparse.Namespace) -> int:
    """Runs the scenario; 0 if the Rivulet client got every byte over one connection."""
    with standing_rack("failover", values) as standing:
        names = [host.name for host in standing.rack.spec.of("replica")]
        steps = plan(names, values.size * 8 / (values.rate_mbit * 1e6))
        start = time.monotonic()
        standing.client(RIVULET, "c1", standing.via_rivulet("c1"))
        standing.client(TCP, "c2", "")
        standing.run(_actor(steps), patience_s=60 + 6 * values.size * 8 / (values.rate_mbit * 1e6))
        report = summarise(standing, start)
    return show(report, values)


def _actor(steps: Plan) -> Any:
    todo = list(steps)

    def act(standing: Standing, seconds: float) -> None:
        while todo and seconds >= todo[0].at:
            step = todo.pop(0)
            if step.kill:
                standing.kill(step.replica)
            else:
                standing.restart(step.replica)

    return act


def summarise(standing: Standing, start: float) -> dict[str, Any]:
    """`failover.json`: what both clients saw, kill by kill, with the switch's view beside it."""
    values = standing.parameters
    kills = [(at, name) for at, what, name in standing.marks if what == "kill"]
    report: dict[str, Any] = {
        "scenario": "failover",
        "parameters": {
            "rate_mbit": values.rate_mbit,
            "rtt_ms": values.rtt_ms,
            "bytes": values.size,
            "replicas": values.replicas,
            "switch": values.switch,
            "liveness_bound_ms": values.liveness_ms,
            "tcp_retry_pause_ms": RETRY_S * 1e3,
        },
        "marks": [{"at_s": round(at - start, 4), "what": what, "replica": name} for at, what, name in standing.marks],
        "clients": {},
    }
    for name in standing.clients:
        result = standing.result(name)
        samples = [(float(at), int(count)) for at, count in result["samples"]]
        seconds = result["ended"] - result["started"]
        report["clients"][name] = {
            "bytes": result["bytes"],
            "sha256_ok": result["sha256_ok"],
            "connections_opened": result["connections_opened"],
            "resets_seen": len(result["failures"]),
            "failures": [{**f, "at": round(f["at"] - start, 3)} for f in result["failures"]],
            "goodput_mbps": round(result["bytes"] * 8 / seconds / 1e6, 3),
            "seconds": round(seconds, 3),
            "longest_gap_ms": result["longest_gap_ms"],
            "kills": [
                {
                    "replica": replica,
                    "at_s": round(at - start, 4),
                    "stall_ms": round(longest_gap(samples, at, at + 3.0) * 1e3, 2),
                    "exclusion_ms": _excluded_after(standing, at, replica),
                }
                for at, replica in kills
                if samples and at < samples[-1][0]
            ],
            "samples": [[round(at - start, 4), count] for at, count in samples[:: max(1, len(samples) // 4000)]],
        }
    return report


def _excluded_after(standing: Standing, at: float, replica: str) -> float | None:
    """Milliseconds from a kill until the switch was seen to have excluded the replica."""
    for when, name, excluded in standing.watch.history:
        if name == replica and excluded and when >= at:
            return round((when - at) * 1e3, 2)
    return None


def show(report: dict[str, Any], values: Parameters) -> int:
    """Summary in plain words, figure, page and JSON."""
    mine, theirs = report["clients"][RIVULET], report["clients"][TCP]
    kills = len([mark for mark in report["marks"] if mark["what"] == "kill"])
    worst = max((kill["stall_ms"] for kill in mine["kills"]), default=0.0)
    tcp_worst = max((kill["stall_ms"] for kill in theirs["kills"]), default=0.0)
    megabytes = values.size / 1e6
    words = [
        f"{kills} replicas were killed with kill -9 while two clients fetched {megabytes:g} MB"
        f" at {values.rate_mbit:g} Mb/s, {values.rtt_ms:g} ms round-trip time, through the {values.switch} switch.",
        _sentence("Rivulet", mine, worst),
        _sentence("Kernel TCP", theirs, tcp_worst),
    ]
    ok = bool(mine["sha256_ok"]) and mine["connections_opened"] == 1 and not mine["failures"]
    if not ok:
        words.append("This is NOT what Rivulet promises: the logs are in the folder below.")
    rows = [["", "bytes", "sha256", "connections", "failures", "Mb/s", "longest stall after a kill"]]
    for label, client, stall in (("Rivulet", mine, worst), ("kernel TCP", theirs, tcp_worst)):
        rows.append(
            [
                label,
                f"{client['bytes']:,}",
                "right" if client["sha256_ok"] else "WRONG",
                str(client["connections_opened"]),
                str(client["resets_seen"]),
                f"{client['goodput_mbps']:.1f}",
                f"{stall:.0f} ms",
            ]
        )
    folder = values.out
    (folder / "failover.json").write_text(json.dumps(report, indent=1))
    marks = [Mark(mark["at_s"], mark["what"], mark["replica"]) for mark in report["marks"]]
    end = max(client["samples"][-1][0] for client in (mine, theirs) if client["samples"])
    flows = {
        "Rivulet: one connection": [tuple(sample) for sample in mine["samples"]],
        f"kernel TCP: {theirs['connections_opened']} connections": [tuple(sample) for sample in theirs["samples"]],
    }
    title = "kill -9 in the middle of a download"
    save(
        draw(flows, marks, 0.0, end, title),
        folder / "failover.png",
        folder / "failover.html",
        title,
        rows,
        "\n".join(words),
    )
    for line in words:
        console.print(line)
    console.print(
        f"figure: {folder / 'failover.png'}, page: {folder / 'failover.html'}, data: {folder / 'failover.json'}"
    )
    return 0 if ok else 1


def _sentence(who: str, client: dict[str, Any], worst: float) -> str:
    right = "byte for byte" if client["sha256_ok"] else "WRONG BYTES"
    count = client["connections_opened"]
    return (
        f"{who}: {count} connection{'s' if count != 1 else ''}, {client['resets_seen']} broken, {right},"
        f" {client['goodput_mbps']:.1f} Mb/s, longest stall after a kill {worst:.0f} ms."
    )
