"""Figure 11: the server's memory with 1 to 100,000 open, idle connections, each after one fetch.

Rivulet: the serving process, which has no kernel socket but its packet socket. Kernel TCP: nginx, and for each socket
the kernel's objects (sizes from /proc/slabinfo, number from the server's namespace).
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from rivulet_lab import Process, RackError

from .bars import Bar, judge
from .host_rig import CLIENTS, TCP_PORT, HostRig, Server, Transport, descriptors_most, host_rig
from .plot import Points, lines
from .rig import finish, flags, plot_path
from .stats import interval, save

Json = dict[str, Any]

CONNECTIONS = (1, 100, 10_000, 100_000)
TRANSPORTS: tuple[Transport, ...] = ("rivulet", "tcp")
OBJECTS = ("TCP", "sock_inode_cache", "dentry", "filp", "eventpoll_epi", "eventpoll_pwq")
"""Kernel objects of a TCP socket that a process watches with epoll."""
WANTED_GROWTH = 1_000_000
"""Bytes by which Rivulet's server may grow from one connection to the most."""
SPARE = 1_000
MEGABYTE = 1e6


def socket_bytes() -> int:
    """Kernel memory of one idle TCP socket in bytes."""
    sizes = {}
    for line in Path("/proc/slabinfo").read_text().splitlines()[2:]:
        words = line.split()
        sizes[words[0]] = int(words[3])
    missing = {"TCP", "sock_inode_cache"} - sizes.keys()
    if missing:
        raise RackError(f"/proc/slabinfo has no {', '.join(missing)}")
    return sum(sizes.get(name, 0) for name in OBJECTS)


def kernel_sockets(rig: HostRig) -> int:
    """Number of open TCP sockets at the server's port."""
    return len(rig.run("s", ["ss", "-tnH", "state", "established", f"sport = :{TCP_PORT}"]).splitlines())


def hold(
    rig: HostRig, transport: Transport, path: str, connections: int, port: int = 0, more: tuple[str, ...] = ()
) -> list[Process]:
    """Opens connections and keeps them open, in several processes if one may not have enough descriptors."""
    most = descriptors_most() - SPARE if transport == "tcp" else connections
    held: list[Process] = []
    try:
        left = connections
        while left > 0:
            count = min(left, most)
            left -= count
            words = ["--one-thread", "--hold", *more]
            # Each process uses its own source address, and several if one has not enough ports.
            own = CLIENTS if transport in ("rivulet", "plain") else (CLIENTS[len(held) % len(CLIENTS)],)
            for address in own:
                words += ["--source", address]
            load = rig.start_load(transport, path, *words, port=port, clients=count, seconds=600)
            held.append(load)
            assert load.popen.stdout is not None
            if load.popen.stdout.readline().strip() != b"open":
                finish(load)
                raise RackError(f"{transport}: the connections were not opened")
    except BaseException:
        for load in held:
            load.end()
        raise
    return held


def release(held: list[Process]) -> None:
    """Closes the connections; RackError if one of them failed meanwhile."""
    for load in held:
        result = finish(load)
        if result["errors"]:
            raise RackError(f"{result['errors']} connections failed: {result['first_error']}")


def memory(rig: HostRig, server: Server, transport: Transport, path: str, connections: int) -> Json:
    """Memory of the server while the connections are open."""
    held = hold(rig, transport, path, connections)
    try:
        process = server.anonymous_bytes()
        sockets = kernel_sockets(rig) if transport == "tcp" else 0
        if transport == "tcp" and sockets < connections:
            raise RackError(f"{sockets} of {connections} connections are open")
    finally:
        release(held)
    kernel = sockets * socket_bytes()
    return {
        "transport": transport,
        "connections": connections,
        "process_bytes": process,
        "kernel_bytes": kernel,
        "bytes": process + kernel,
    }


def main() -> int:
    """Runs the bench and writes bench/results/figure11.json and .png."""
    parser = flags(__doc__ or "")
    parser.add_argument("--connections", type=int, nargs="+", default=list(CONNECTIONS))
    options = parser.parse_args()
    rows: list[Json] = []
    with host_rig("figure11") as rig:
        path = rig.put(100)
        for repetition in range(options.repetitions):
            for transport in TRANSPORTS:
                server: Server | None = None
                for connections in sorted(options.connections):
                    if transport == "tcp":
                        # nginx reserves memory for its configured connections, so each point gets its own
                        # configuration.
                        server = rig.start_nginx(connections)
                    elif server is None:
                        server = rig.start_rivulet()
                    row = memory(rig, server, transport, path, connections)
                    rows.append({"repetition": repetition, **row})
                    print(
                        f"{connections:7} connections  {transport:8} {row['bytes'] / MEGABYTE:8.1f} MB"
                        f" (kernel {row['kernel_bytes'] / MEGABYTE:.1f})",
                        flush=True,
                    )
                # Restarted for the next point, because processes do not return all freed memory.
                rig.stop("rivulet" if transport == "rivulet" else "nginx")
                time.sleep(0.2)
    summary, series = summarise(rows, sorted(options.connections))
    title = "Memory of the server, idle connections that have fetched one object each"
    lines(plot_path("figure11"), series, "open connections", "MB", title, log_y=True)
    judged = bars(rows)
    if not judged:
        print("not the whole range was run: the result is not stored")
        return judge(judged)
    growth = judged[0]
    result = {
        "setting": title,
        "page_bytes": os.sysconf("SC_PAGESIZE"),
        "kernel_bytes_per_socket": socket_bytes(),
        "rivulet_growth_bytes": growth.measured,
        "wanted_growth_bytes": WANTED_GROWTH,
        "reached": growth.reached,
        "summary": summary,
        "runs": rows,
    }
    print(save("figure11", result))
    return judge(judged)


def summarise(rows: list[Json], connections: list[int]) -> tuple[list[Json], dict[str, Points]]:
    """Means with intervals, for table and plot."""
    summary: list[Json] = []
    series: dict[str, Points] = {}
    for transport in TRANSPORTS:
        points = []
        for count in connections:
            mine = [r for r in rows if r["transport"] == transport and r["connections"] == count]
            mean, half = interval([r["bytes"] / MEGABYTE for r in mine])
            kernel, _ = interval([r["kernel_bytes"] / MEGABYTE for r in mine])
            points.append((float(count), mean, half))
            summary.append(
                {
                    "transport": transport,
                    "connections": count,
                    "megabytes": mean,
                    "half_95": half,
                    "kernel_megabytes": kernel,
                }
            )
        series[transport] = points
    return summary, series


def bars(rows: list[Json]) -> list[Bar]:
    """Largest growth of Rivulet's server over the repetitions; no bars if the range of connections is too small."""
    most = 0
    for repetition in {r["repetition"] for r in rows}:
        mine = [r for r in rows if r["transport"] == "rivulet" and r["repetition"] == repetition]
        counts = [r["connections"] for r in mine]
        if not counts or min(counts) > CONNECTIONS[0] or max(counts) < CONNECTIONS[-1]:
            return []
        fewest = min(mine, key=lambda r: r["connections"])
        most = max(most, *(r["bytes"] - fewest["bytes"] for r in mine))
    what = f"bytes more at {CONNECTIONS[-1]:,} connections than at {CONNECTIONS[0]}"
    return [Bar(what, most, WANTED_GROWTH, at_most=True)]


if __name__ == "__main__":
    sys.exit(main())
