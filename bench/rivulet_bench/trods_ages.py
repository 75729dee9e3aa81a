"""Clients of the stall measurement: downloads of several ages at the time of a kill, or curl with retries.

    python -m rivulet_bench.trods_ages --file FILE --ages 0.3 3 30 --connections 90 HOST:PORT

It opens connections and prints their ports. An input line (JSON) assigns connections to ages; it then sends each
request so long before the kill that it has this age, and prints the time of the kill. After another input line it
waits until every download continues, or PATIENCE is over. Every byte is compared.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .trods_wire import Wanted, Wire, connect

Json = dict[str, Any]

WINDOW = 8192
"""Most bytes in flight to a client: some tens of downloads then fill no queue, and each gets data every RTT."""
SILENT_S = 1
"""Seconds without data after which curl gives up a connection, the least value that it accepts."""
RETRY_S = 0.1
WHOLE_S = 0.25
"""Seconds: a download that received data within this time continues."""
RATE = 400_000
"""Bytes a second of a curl process, about the rate that WINDOW gives the other clients."""


@dataclass(slots=True)
class Gap:
    """The gap in a download around the kill."""

    age: float
    port: int
    last: float = 0.0
    """Times of the last bytes before the kill and of the first bytes after it."""
    first: float = 0.0
    received: int = 0
    problem: str = ""
    wrong: bool = False
    connections: int = 1
    killed: float = 0.0
    longest: tuple[float, float] = (0.0, 0.0)
    _before: float = field(default=0.0)

    def take(self, now: float) -> None:
        """Records received bytes."""
        if self._before and now - self._before > self.longest[1] - self.longest[0]:
            self.longest = (self._before, now)
        self._before = now

    def kill(self, now: float) -> None:
        """Records the kill: only a gap that is open now counts."""
        self.killed, self.longest = now, (0.0, 0.0)

    def has_continued(self, now: float) -> bool:
        """Whether the download has received data for long enough after a gap, or has ended."""
        return bool(self.problem) or (now - self._before < WHOLE_S and now - self.killed > 1.5)

    def result(self, now: float) -> Json:
        """The gap as a JSON object for the parent process."""
        silent = now - self._before if self._before else 0.0
        longest = self.longest[1] - self.longest[0]
        return {
            "age": self.age,
            "port": self.port,
            "gap_ms": max(longest, 0.0 if self.problem else silent) * 1e3,
            "began_ms": (self.longest[0] - self.killed) * 1e3 if longest else 0.0,
            "goes_on": not self.problem and silent <= max(longest, WHOLE_S),
            "octets": self.received,
            "problem": self.problem,
            "wrong": self.wrong,
            "connections": self.connections,
        }


async def line() -> Json:
    """The next line of standard input."""
    text = await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    if not text:
        raise EOFError("standard input ended")
    return dict(json.loads(text))


def emit(what: Json) -> None:
    """Prints a line for the parent process."""
    print(json.dumps(what), flush=True)


async def downloads(host: str, port: int, path: str, content: bytes, ages: list[float], count: int) -> list[Gap]:
    """Downloads by the raw client; returns when the kill is due."""
    wires: dict[int, Wire] = {}
    for _ in range(count):
        wire = await connect(host, port, WINDOW)
        if not wire.problem:
            wires[wire.port] = wire
    emit({"ports": sorted(wires)})
    groups: dict[str, list[int]] = (await line())["groups"]
    used = {p for ports in groups.values() for p in ports}
    for p, wire in wires.items():
        if p not in used:
            wire.close()
    gaps: list[Gap] = []
    oldest, began = max(ages), time.monotonic()
    for age in sorted(ages, reverse=True):
        await asyncio.sleep(max(0.0, began + oldest - age - time.monotonic()))
        for p in groups.get(f"{age:g}", []):
            wire, gap = wires[p], Gap(age, p)
            wire.on_data = gap.take
            gap._before = time.monotonic()
            if not wire.closed:
                wire.send(Wanted(path, content))
            gaps.append(gap)
            asyncio.get_running_loop().create_task(watch(wire, gap))
    await asyncio.sleep(max(0.0, began + oldest - time.monotonic()))
    return gaps


async def watch(wire: Wire, gap: Gap) -> None:
    """Records the end of a download."""
    while not wire.closed and not wire.problem:
        gap.received = wire.received
        await asyncio.sleep(0.05)
    gap.problem, gap.wrong = wire.problem or "over", wire.wrong


async def retries(host: str, port: int, path: str, content: bytes, ages: list[float], count: int) -> list[Gap]:
    """Downloads by curl, restarted with a range after an end; returns when the kill is due."""
    emit({"ports": []})
    await line()
    gaps: list[Gap] = []
    oldest, began = max(ages), time.monotonic()
    for age in sorted(ages, reverse=True):
        await asyncio.sleep(max(0.0, began + oldest - age - time.monotonic()))
        for _ in range(count // len(ages)):
            gap = Gap(age, 0)
            gap._before = time.monotonic()
            gaps.append(gap)
            asyncio.get_running_loop().create_task(_curls(f"http://{host}:{port}/{path}", content, gap))
    await asyncio.sleep(max(0.0, began + oldest - time.monotonic()))
    return gaps


async def _curls(url: str, content: bytes, gap: Gap) -> None:
    gap.connections = 0
    while gap.received < len(content) and not gap.wrong:
        gap.connections += 1
        limits = ("--speed-limit", "1", "--speed-time", str(SILENT_S), "--connect-timeout", "3")
        command = ("curl", "-sS", "-N", "--fail", *limits, "--limit-rate", str(RATE), "-r", f"{gap.received}-", url)
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        curl = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=null)
        assert curl.stdout is not None
        while data := await curl.stdout.read(1 << 17):
            gap.take(time.monotonic())
            if data != content[gap.received : gap.received + len(data)]:
                gap.problem, gap.wrong = f"wrong bytes from {gap.received}", True
            gap.received += len(data)
        if await curl.wait() != 0:
            await asyncio.sleep(RETRY_S)


async def wait_until_continued(gaps: list[Gap], patience_s: float) -> list[Json]:
    """Waits until all continue, up to the time limit; returns the result of each."""
    end = time.monotonic() + patience_s
    for _ in itertools.count():
        now = time.monotonic()
        if now >= end or all(gap.has_continued(now) for gap in gaps):
            break
        await asyncio.sleep(0.02)
    return [gap.result(now) for gap in gaps]


async def run(options: argparse.Namespace) -> None:
    """Runs the clients of one kill."""
    host, port = options.service.rsplit(":", 1)
    content = options.file.read_bytes()
    clients = retries if options.curl else downloads
    gaps = await clients(host, int(port), options.file.name, content, options.ages, options.connections)
    for gap in gaps:
        gap.kill(time.monotonic())
    emit({"due": time.monotonic()})
    await line()
    emit({"gaps": await wait_until_continued(gaps, options.patience)})


def main() -> int:
    """Runs one kill's clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("service", help="HOST:PORT")
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--ages", type=float, nargs="+", required=True, help="of requests at the kill, s")
    parser.add_argument("--connections", type=int, required=True)
    parser.add_argument("--patience", type=float, default=10.0, help="after the kill, s")
    parser.add_argument("--curl", action="store_true", help="curl with retries, over kernel TCP")
    asyncio.run(run(parser.parse_args()))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
