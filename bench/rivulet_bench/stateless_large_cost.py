"""Cost of a large download for the server: its core beside nginx with Reno, at equal rate and unshaped; its memory.

Server and client have a core each (`host_rig`), without offloads, so each segment passes the device by itself. The
shaper is behind the server, on the client's core: at the server it would set a timer for each piece that leaves, and
smaller pieces would cost more.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .bars import Bar
from .figure11 import hold, release
from .host_rig import CLIENT_CORE, RIVULET_PORT, SERVER_CORE, SERVICE, TCP_PORT, HostRig, host_rig, shaped
from .stateless_cost import MOST_BYTES, OPEN

Json = dict[str, Any]

KINDS = ("large", "reno")
RATE_MBIT = 500.0
"""Rate that both can reach with half a core."""
SIZE = 500_000_000
CALM_S = 0.5
MOST_IDLE = 0.05
"""Largest idle share of the server's core at which a measurement counts."""
MOST = 1.5
"""Bound relative to Reno's processor time."""
FEW = 1_000
"""Numbers of open downloads: a few, and OPEN."""
HELD_SIZE, HELD_AT = 1_000_000, 30_000
"""Bytes of each download, and bytes after which its client closes the window."""


@contextmanager
def awake(core: int) -> Iterator[None]:
    """Keeps a core from idling, at the lowest priority, during the block.

    The kernel accounts by its tick, which an idle core does not have: work of interrupts between two idle periods
    counts as idle, which hides three quarters of a kernel TCP's work.
    """
    command = ["taskset", "-c", str(core), "nice", "-n", "19", "chrt", "--idle", "0", "sh", "-c", "while :; do :; done"]
    with subprocess.Popen(command) as process:
        try:
            yield
        finally:
            process.kill()


def worked_s(core: int) -> float:
    """Seconds since boot that a core worked, without the time of [awake]."""
    for line in Path("/proc/stat").read_text().splitlines():
        words = line.split()
        if words[0] == f"cpu{core}":
            user, _, system, _, _, irq, softirq = map(int, words[1:8])
            return (user + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
    raise SystemExit(f"there is no core {core}: this bench needs two")


def measure(repetitions: int) -> list[Json]:
    """A row at the equal rate, and one without a shaper."""
    return [_row(rate, repetitions) for rate in (RATE_MBIT, None)]


def _row(rate_mbit: float | None, repetitions: int) -> Json:
    got: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    with host_rig("stateless-large-cost", attackers=True) as rig:
        path = rig.put(SIZE)
        rig.receive_on("m", "ms0", CLIENT_CORE)
        shaped(rig, "m", "mc0", rate_mbit)
        with awake(SERVER_CORE):
            for _ in range(repetitions):
                for kind in KINDS:
                    got[kind].append(_download(rig, kind, path))
    row: Json = {"rate_mbit": rate_mbit, "bytes": SIZE}
    for kind in KINDS:
        seconds, mbps = zip(*got[kind], strict=True)
        row[kind] = {"core_s_per_gb": statistics.median(seconds), "mbps": statistics.median(mbps), "runs": got[kind]}
    said = ", ".join(f"{kind} {row[kind]['core_s_per_gb']:.2f} s at {row[kind]['mbps']:.0f} Mb/s" for kind in KINDS)
    print(f"a GB {f'at {rate_mbit:g} Mb/s' if rate_mbit else 'unshaped'}: {said}", flush=True)
    return row


def _download(rig: HostRig, kind: str, path: str) -> tuple[float, float]:
    """Seconds of the server's core per GB, without its idle share, and Mb/s."""
    # Each server runs alone, because packet sockets see all traffic.
    rig.stop("nginx" if kind == "large" else "rivulet")
    if kind == "large":
        rig.start_rivulet("--large", plain="stateless")
    elif "nginx" not in rig.servers:
        rig.start_nginx()
    port = RIVULET_PORT if kind == "large" else TCP_PORT
    curl = ["curl", "-sS", "--fail", "-o", "/dev/null", "-w", "%{size_download} %{time_total}"]
    command = ["taskset", "-c", str(CLIENT_CORE), *curl, f"http://{SERVICE}:{port}/{path}"]
    idle, began = worked_s(SERVER_CORE), time.monotonic()
    time.sleep(CALM_S)
    idle, busy = (worked_s(SERVER_CORE) - idle) / (time.monotonic() - began), worked_s(SERVER_CORE)
    if idle > MOST_IDLE:
        raise SystemExit(
            f"other work takes {100 * idle:.0f} % of the server's core: the cost of a download cannot be measured"
        )
    began = time.monotonic()
    size, seconds = rig.run("c", command).split()
    took, busy = time.monotonic() - began, worked_s(SERVER_CORE) - busy
    if int(size) != SIZE:
        raise SystemExit(f"{kind}: {size} bytes arrived")
    return (busy - idle * took) / (SIZE / 1e9), SIZE * 8 / float(seconds) / 1e6


def memory() -> list[Json]:
    """Memory of a hundred thousand open downloads, with and without soft state.

    Their clients have closed their windows in the middle. Each number is measured twice, because memory reserved for
    the first downloads is not per connection.
    """
    rows = []
    with host_rig("stateless-large-memory") as rig:
        path = rig.put(HELD_SIZE)
        for soft in (False, True):
            server = rig.start_rivulet("--large", *(() if soft else ("--no-ring",)), plain="stateless")
            taken = {}
            for count in (FEW, OPEN, FEW, OPEN):
                held = hold(rig, "plain", path, count, RIVULET_PORT, ("--close-at", str(HELD_AT)))
                try:
                    taken[count] = server.anonymous_bytes()
                finally:
                    release(held)
            each = (taken[OPEN] - taken[FEW]) / (OPEN - FEW)
            rows.append({"soft": soft, "downloads": OPEN, "bytes": taken[OPEN], "bytes_each": each})
            print(
                f"{OPEN:,} open, soft state {'on' if soft else 'off'}: {taken[OPEN]:,} bytes, {each:.2f} each",
                flush=True,
            )
    return rows


def bars(result: Json) -> list[Bar]:
    """Processor time at the equal rate, and memory without soft state; the other figures are for
    comparison.
    """
    found = []
    for row in result.get("memory", []):
        if not row["soft"]:
            found.append(Bar(f"bytes a download, {OPEN:,} open", row["bytes_each"], MOST_BYTES, at_most=True))
    for row in result.get("cpu", []):
        if row["rate_mbit"]:
            what = f"{row['rate_mbit']:g} Mb/s, no offloads: processor time of a GB, of Reno's"
            share = row["large"]["core_s_per_gb"] / row["reno"]["core_s_per_gb"]
            found.append(Bar(what, share, MOST, at_most=True))
    return found
