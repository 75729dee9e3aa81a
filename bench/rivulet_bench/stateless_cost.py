"""Cost of a request on the server's core: stateless TCP, the same server on kernel TCP, and nginx.

The clients use ordinary TCP with a new connection for each request, but no kernel sockets (`rivulet-load --transport
plain`): with those the client's core would be full before the server's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from math import nan
from pathlib import Path
from statistics import median
from typing import Any

from rivulet_lab import RackError

from .bars import Bar
from .figure11 import hold, release, socket_bytes
from .host_rig import RIVULET_PORT, SERVER_CORE, TCP_PORT, HostRig, Server, busy_s

Json = dict[str, Any]

RATES = (200, 1_000, 2_000)
"""Requests a second of Figures 4 and 5 (a Poisson process), measured beside the highest rate."""
RATE_SIZES = (1, 1_000, 5_000, 14_000)
SIZES = (1, 100, 1_000, 10_000)
CLIENTS = 64
LEAST_REQUESTS = 600
"""Least requests of a point."""
CALM_S = 2.0
OPEN = 100_000
LESS = 0.75
NGINX_TIMES = {1: 2.0, 100: 2.0, 1_000: 2.0, 10_000: 1.0}
NGINX_CPU = 0.5
MOST_BYTES = 0.5
"""Bound of the memory per connection in bytes: below it is rounding."""


def port_of(kind: str) -> int:
    """Port of a kind of server."""
    return TCP_PORT if kind == "nginx" else RIVULET_PORT


def alone(rig: HostRig, kind: str) -> Server:
    """Starts the server of this kind and stops the others, because packet sockets see all traffic."""
    for name in list(rig.servers):
        if (name == "nginx") != (kind == "nginx"):
            rig.stop(name)
    # The server reads the table of stateless TCP at its start.
    for size in (*SIZES, *RATE_SIZES):
        rig.put(size)
    if kind == "nginx":
        return rig.servers.get("nginx") or rig.start_nginx()
    return rig.start_rivulet(plain="kernel" if kind == "kernel" else "stateless")


def measured(rig: HostRig, server: Server, kind: str, size: int, *words: str, **flags: Any) -> Json:
    """Runs a load on one server; returns its cost for process and core. RackError if a request fails."""
    path = rig.put(size)
    expect = ("--expect", str(rig.www / path))
    process, busy, began = server.cpu_s(), busy_s(SERVER_CORE), time.monotonic()
    result = rig.load("plain", path, "--one-thread", *expect, *words, clients=CLIENTS, port=port_of(kind), **flags)
    took = time.monotonic() - began
    busy = busy_s(SERVER_CORE) - busy
    return {
        "kind": kind,
        "bytes": size,
        "requests": result["requests"],
        "per_second": result["requests_per_second"],
        "process_us": (server.cpu_s() - process) / result["requests"] * 1e6,
        "core_us": busy / result["requests"] * 1e6,
        "core_busy": busy / took,
        "latency_us": result["latency_us"],
    }


def rounds(
    rig: HostRig, kinds: tuple[str, ...], repetitions: int
) -> Iterator[tuple[int, str, Server, tuple[float, float]]]:
    """Every kind in every round, with the CPU shares of process and core while idle."""
    for repetition in range(repetitions):
        # Each kind is first as often as last.
        for kind in kinds if repetition % 2 == 0 else reversed(kinds):
            server = alone(rig, kind)
            process, busy, began = server.cpu_s(), busy_s(SERVER_CORE), time.monotonic()
            time.sleep(CALM_S)
            took = time.monotonic() - began
            yield repetition, kind, server, ((server.cpu_s() - process) / took, (busy_s(SERVER_CORE) - busy) / took)


def at_rates(rig: HostRig, repetitions: int, seconds: float) -> Json:
    """The paper's Figures 4 and 5: at given rates, and at the highest."""
    rows: list[Json] = []
    for repetition, kind, server, idle in rounds(rig, ("stateless", "kernel"), repetitions):
        for size in RATE_SIZES:
            for rate in (*RATES, None):
                length = max(seconds, LEAST_REQUESTS / rate) if rate else seconds
                words = ("--rate", str(rate)) if rate else ()
                row = measured(rig, server, kind, size, *words, seconds=length)
                # Without the idle share.
                for value, share in zip(("process_us", "core_us"), idle, strict=True):
                    row[value] = max(0.0, row[value] - share / row["per_second"] * 1e6)
                rows.append({"repetition": repetition, "rate": rate, "idle": idle, **row})
                _print_row(rows[-1])
    return {"summary": compared(rows, "kernel", lambda row: (row["bytes"], row["rate"])), "runs": rows}


def beside_nginx(rig: HostRig, repetitions: int, seconds: float) -> Json:
    """As many new connections as possible."""
    rows: list[Json] = []
    for repetition, kind, server, idle in rounds(rig, ("stateless", "nginx"), repetitions):
        for size in SIZES:
            row = measured(rig, server, kind, size, seconds=seconds)
            rows.append({"repetition": repetition, "rate": None, "idle": idle, **row})
            _print_row(rows[-1])
    return {"summary": compared(rows, "nginx", lambda row: (row["bytes"], None)), "runs": rows}


def _print_row(row: Json) -> None:
    rate = f"{row['rate']:,}/s" if row["rate"] else "highest"
    print(
        f"{row['bytes']:6} bytes {rate:>8}  {row['kind']:10}{row['per_second']:9,.0f} requests/s  process"
        f" {row['process_us']:6.1f} us, core {row['core_us']:6.1f} us a request ({100 * row['core_busy']:.0f} % busy)",
        flush=True,
    )


def compared(rows: list[Json], other: str, key: Callable[[Json], tuple[Any, ...]]) -> list[Json]:
    """Medians of every point, and of the ratios to the other server in the same round."""
    summary = []
    for point in dict.fromkeys(map(key, rows)):
        here = [row for row in rows if key(row) == point]
        pairs = {
            r: {row["kind"]: row for row in here if row["repetition"] == r} for r in {r["repetition"] for r in here}
        }
        ours = [row for row in here if row["kind"] == "stateless"]
        theirs = [row for row in here if row["kind"] == other]
        whole = [pair for pair in pairs.values() if len(pair) == 2]
        row: Json = {"bytes": point[0], "rate": point[1], "other": other}
        for value in ("per_second", "process_us", "core_us"):
            row[value] = median([r[value] for r in ours] or [nan])
            row[f"{value}_other"] = median([r[value] for r in theirs] or [nan])
            ratios = [p["stateless"][value] / p[other][value] for p in whole if p[other][value]]
            row[f"{value}_ratio"] = median(ratios) if ratios else None
        row["core_busy"] = median([r["core_busy"] for r in ours] or [nan])
        summary.append(row)
    return summary


def memory(rig: HostRig) -> Json:
    """Memory of a hundred thousand open, idle connections, each after one fetch."""
    rows = []
    for kind in ("stateless", "nginx"):
        for name in list(rig.servers):
            rig.stop(name)
        path = rig.put(100)
        server = rig.start_nginx(OPEN) if kind == "nginx" else rig.start_rivulet(plain="stateless")
        points = {}
        # Measured twice, because memory reserved for the first connections is not per connection.
        for count in (1_000, OPEN, 1_000, OPEN):
            before = slab_bytes()
            held = hold(rig, "plain", path, count, port_of(kind))
            try:
                points[count] = {
                    "process_bytes": server.anonymous_bytes(),
                    "sockets": open_sockets(rig, port_of(kind)),
                    "slab_bytes": slab_bytes() - before,
                }
            finally:
                release(held)
        few, many = points[1_000], points[OPEN]
        if kind == "nginx" and many["sockets"] < OPEN:
            raise RackError(f"{many['sockets']} of {OPEN} connections are open")
        process = many["process_bytes"] - few["process_bytes"]
        kernel = (many["sockets"] - few["sockets"]) * socket_bytes()
        row = {
            "kind": kind,
            "connections": OPEN,
            "process_bytes_each": process / (OPEN - 1_000),
            "kernel_bytes_each": kernel / (OPEN - 1_000),
            "slab_bytes": many["slab_bytes"],
        }
        rows.append(row)
        print(
            f"{OPEN:,} connections  {kind:10} process {row['process_bytes_each']:8.2f}, kernel"
            f" {row['kernel_bytes_each']:8.2f} bytes each (all slabs {many['slab_bytes'] / 1e6:+.1f} MB)",
            flush=True,
        )
        rig.stop("nginx" if kind == "nginx" else "rivulet")
    return {"summary": rows}


def open_sockets(rig: HostRig, port: int) -> int:
    """TCP sockets of the server's port in any state except listening."""
    return len(rig.run("s", ["ss", "-tanH", "state", "connected", f"sport = :{port}"]).splitlines())


def slab_bytes() -> int:
    """Memory of all kernel objects of the machine."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Slab:"):
            return int(line.split()[1]) * 1024
    raise RackError("no Slab in /proc/meminfo: is this Linux?")


def bars(result: Json) -> list[Bar]:
    """The bounds of the parts that were run."""
    found = []
    for row in result.get("rates", {}).get("summary", []):
        rate = f"{row['rate']:,} requests/s" if row["rate"] else "saturated"
        what = f"{row['bytes']:,} bytes, {rate}: core time a request, of the kernel's TCP"
        found.append(Bar(what, _number(row["core_us_ratio"]), LESS, at_most=True))
    for row in result.get("nginx", {}).get("summary", []):
        size = row["bytes"]
        found.append(Bar(f"{size:,} bytes: requests/s, of nginx", _number(row["per_second_ratio"]), NGINX_TIMES[size]))
        if NGINX_TIMES[size] > 1:
            what = f"{size:,} bytes: core time a request, of nginx"
            found.append(Bar(what, _number(row["core_us_ratio"]), NGINX_CPU, at_most=True))
    for row in result.get("memory", {}).get("summary", []):
        if row["kind"] == "stateless":
            each = row["process_bytes_each"] + row["kernel_bytes_each"]
            found.append(Bar(f"bytes a connection, {OPEN:,} of them", each, MOST_BYTES, at_most=True))
    return found


def _number(value: float | None) -> float:
    """NaN for a missing value; it reaches no bar."""
    return nan if value is None else value
