"""What a scenario leaves behind: JSON, a summary in plain words, a figure and a page."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from .fetch import RETRY_S
from .figure import Mark, draw, save
from .meter import longest_gap
from .plan import Plan
from .scenario import Parameters, Standing, console, standing_rack

RIVULET, TCP = "rivulet", "tcp"
"""Names of the two clients that most scenarios have."""


def two_clients(name: str, values: Parameters, planner: Callable[[Sequence[str], float], Plan]) -> dict[str, Any]:
    """A Rivulet and a TCP client fetch the same file while a plan is carried out; gives the report."""
    seconds = values.size * 8 / (values.rate_mbit * 1e6)
    with standing_rack(name, values) as standing:
        todo = list(planner([host.name for host in standing.rack.spec.of("replica")], seconds))
        start = time.monotonic()
        standing.client(RIVULET, "c1", standing.via_rivulet("c1"))
        standing.client(TCP, "c2", "")

        def act(standing: Standing, elapsed: float) -> None:
            while todo and elapsed >= todo[0].at:
                step = todo.pop(0)
                (standing.kill if step.kill else standing.restart)(step.replica)

        standing.run(act, patience_s=60 + 6 * seconds)
        return summarise(name, standing, start)


def summarise(name: str, standing: Standing, start: float) -> dict[str, Any]:
    """`NAME.json`: what each client saw, kill by kill, with the switch's view beside it."""
    values = standing.parameters
    kills = [(at, replica) for at, what, replica in standing.marks if what == "kill"]
    report: dict[str, Any] = {
        "scenario": name,
        "parameters": {
            "rate_mbit": values.rate_mbit,
            "rtt_ms": values.rtt_ms,
            "bytes": values.size,
            "replicas": values.replicas,
            "switch": values.switch,
            "liveness_bound_ms": values.liveness_ms,
            "tcp_retry_pause_ms": RETRY_S * 1e3,
        },
        "marks": [{"at_s": round(at - start, 4), "what": what, "replica": who} for at, what, who in standing.marks],
        "clients": {},
    }
    for client in standing.clients:
        result = standing.result(client)
        samples = [(float(at), int(count)) for at, count in result["samples"]]
        seconds = result["ended"] - result["started"]
        report["clients"][client] = {
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


def show(report: dict[str, Any], values: Parameters, title: str, opening: str) -> int:
    """Summary in plain words, figure, page and JSON."""
    mine, theirs = report["clients"][RIVULET], report["clients"][TCP]
    worst = max((kill["stall_ms"] for kill in mine["kills"]), default=0.0)
    tcp_worst = max((kill["stall_ms"] for kill in theirs["kills"]), default=0.0)
    words = [
        opening,
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
    folder, name = values.out, report["scenario"]
    (folder / f"{name}.json").write_text(json.dumps(report, indent=1))
    marks = [Mark(mark["at_s"], mark["what"], mark["replica"]) for mark in report["marks"]]
    end = max(client["samples"][-1][0] for client in (mine, theirs) if client["samples"])
    flows = {
        f"Rivulet: {_count(mine['connections_opened'])}": [tuple(sample) for sample in mine["samples"]],
        f"kernel TCP (Reno): {_count(theirs['connections_opened'])}": [tuple(sample) for sample in theirs["samples"]],
    }
    png, page = folder / f"{name}.png", folder / f"{name}.html"
    save(draw(flows, marks, 0.0, end, title), png, page, title, rows, "\n".join(words))
    for line in [*words, f"figure: {png}", f"page:   {page}", f"data:   {folder / name}.json"]:
        console.print(line, soft_wrap=True)
    return 0 if ok else 1


def _sentence(who: str, client: dict[str, Any], worst: float) -> str:
    right = "byte for byte" if client["sha256_ok"] else "WRONG BYTES"
    return (
        f"{who}: {_count(client['connections_opened'])}, {client['resets_seen']} broken, {right},"
        f" {client['goodput_mbps']:.1f} Mb/s, longest stall after a kill {worst:.0f} ms."
    )


def _count(connections: int) -> str:
    return "one connection" if connections == 1 else f"{connections} connections"
