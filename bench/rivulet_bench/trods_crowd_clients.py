"""Clients of the crowd: many idle connections and some downloads, before and after replicas die.

    python -m rivulet_bench.trods_crowd_clients --www FOLDER --steps 10 2000 10000 --active 200 HOST:PORT

Every idle connection has had one answer. For each step it prints a line when that many are open, and waits for an
input line; then the same for the downloads. After the next line it waits until all downloads continue, sends another
request on every idle connection, and prints the results.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from .stats import percentile
from .trods_ages import Gap, emit, line, wait_until_continued, watch
from .trods_wire import Wanted, Wire, connect

Json = dict[str, Any]

WINDOW = 3000
"""Receive window of a download: two segments, so that the link's queue holds those of all downloads. A full queue
would cause gaps that have nothing to do with replicas."""
AT_ONCE = 64
"""Connections opened in parallel."""
ASKED_PER_S = 400.0
"""Idle connections that send another request, per second."""
PATIENCE_S = 30.0


async def opened(wires: list[Wire], count: int, host: str, port: int, wanted: Wanted) -> None:
    """Opens idle connections up to this number."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with places:
            wire = await connect(host, port)
            if not wire.problem:
                await wire.fetch(wanted, patience_s=PATIENCE_S)
            wires.append(wire)

    await asyncio.gather(*(one() for _ in range(count - len(wires))))


async def again(wires: list[Wire], wanted: Wanted) -> list[float]:
    """Sends another request on every idle connection, one after the other; returns the seconds of each."""
    took: list[float] = []

    async def one(wire: Wire) -> None:
        began = time.monotonic()
        if await wire.fetch(wanted, patience_s=PATIENCE_S):
            took.append(time.monotonic() - began)

    tasks = []
    for wire in wires:
        tasks.append(asyncio.create_task(one(wire)))
        await asyncio.sleep(1 / ASKED_PER_S)
    await asyncio.gather(*tasks)
    return took


def broken(wires: list[Wire]) -> Json:
    """Broken connections and their problems."""
    problems = [wire.problem for wire in wires if wire.problem]
    return {"broken": len(problems), "wrong": sum(w.wrong for w in wires), "problems": sorted(set(problems))[:8]}


async def run(options: argparse.Namespace) -> None:
    """Runs all steps."""
    host, port = options.service.rsplit(":", 1)
    small = Wanted(options.small, (options.www / options.small).read_bytes())
    large = Wanted(options.large, (options.www / options.large).read_bytes())
    idle: list[Wire] = []
    for step in options.steps:
        await opened(idle, step, host, int(port), small)
        emit({"open": step, **broken(idle)})
        await line()
    active: list[Gap] = []
    wires: list[Wire] = []
    for _ in range(options.active):
        wire = await connect(host, int(port), WINDOW)
        gap = Gap(0.0, wire.port)
        wire.on_data, gap._before = gap.take, time.monotonic()
        if not wire.problem:
            wire.send(large)
        asyncio.get_running_loop().create_task(watch(wire, gap))
        active.append(gap)
        wires.append(wire)
    await asyncio.sleep(2.0)
    emit({"active": [wire.port for wire in wires], **broken(wires)})
    before = broken(idle)["broken"]
    await line()
    # The replicas died just now: the gaps that began then are not over yet.
    for gap in active:
        gap.kill(time.monotonic())
    gaps = await wait_until_continued(active, PATIENCE_S)
    emit({"gaps": gaps, "idle": broken(idle), "idle_before": before})
    await line()
    random.Random(1).shuffle(idle)
    asked = [wire for wire in idle if not wire.problem]
    took = await again(asked, small)
    said: Json = {
        "asked": len(asked),
        "answered": len(took),
        "open": len(idle),
        **broken(idle),
        "active": broken(wires),
    }
    said["took_ms"] = {f"p{p}": percentile(took, p) * 1e3 for p in (50, 90, 99, 100)} if took else {}
    emit(said)


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("service", help="HOST:PORT")
    parser.add_argument("--www", type=Path, required=True)
    parser.add_argument("--small", required=True)
    parser.add_argument("--large", required=True)
    parser.add_argument("--steps", type=int, nargs="+", required=True)
    parser.add_argument("--active", type=int, required=True)
    asyncio.run(run(parser.parse_args()))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
