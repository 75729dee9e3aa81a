"""The clients of the stalls: downloads of several ages at the moment of a kill, or curl that tries again.

    python -m rivulet_bench.trods_ages --file FILE --ages 0.3 3 30 --connections 90 HOST:PORT

It opens so many connections and says their ports; told which to use for which age (a line of JSON), it asks so much
before the kill that each request has its age then, says when that is, and after a line of any kind waits until every
download goes on or PATIENCE is over. Every octet is compared.
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
"""Octets on their way to a client at most: some tens of downloads fill no queue, and each gets something every RTT."""
SILENT_S = 1
"""curl gives a connection up that brought nothing for so long: it knows no shorter time."""
RETRY_S = 0.1
WHOLE_S = 0.25
"""A download that brought something no longer ago goes on."""
RATE = 400_000
"""Bytes a second of one curl, about what WINDOW gives the others."""


@dataclass(slots=True)
class Gap:
    """The silence of a download around the kill."""

    age: float
    port: int
    last: float = 0.0
    """When octets came last before it; then when they came first after it."""
    first: float = 0.0
    octets: int = 0
    problem: str = ""
    wrong: bool = False
    connections: int = 1
    killed: float = 0.0
    longest: tuple[float, float] = (0.0, 0.0)
    _before: float = field(default=0.0)

    def take(self, now: float) -> None:
        """Octets came."""
        if self._before and now - self._before > self.longest[1] - self.longest[0]:
            self.longest = (self._before, now)
        self._before = now

    def kill(self, now: float) -> None:
        """The kill comes now: only what is silent from here on counts."""
        self.killed, self.longest = now, (0.0, 0.0)

    def goes_on(self, now: float) -> bool:
        """Whether it has been whole for long enough after a silence, or is over."""
        return bool(self.problem) or (now - self._before < WHOLE_S and now - self.killed > 1.5)

    def told(self, now: float) -> Json:
        """As it is printed."""
        silent = now - self._before if self._before else 0.0
        longest = self.longest[1] - self.longest[0]
        return {
            "age": self.age,
            "port": self.port,
            "gap_ms": max(longest, 0.0 if self.problem else silent) * 1e3,
            "began_ms": (self.longest[0] - self.killed) * 1e3 if longest else 0.0,
            "goes_on": not self.problem and silent <= max(longest, WHOLE_S),
            "octets": self.octets,
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


def say(what: Json) -> None:
    """A line for whoever started this."""
    print(json.dumps(what), flush=True)


async def downloads(host: str, port: int, path: str, content: bytes, ages: list[float], count: int) -> list[Gap]:
    """Downloads by the raw client; ends when the kill is due."""
    wires: dict[int, Wire] = {}
    for _ in range(count):
        wire = await connect(host, port, WINDOW)
        if not wire.problem:
            wires[wire.port] = wire
    say({"ports": sorted(wires)})
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
    """Notes how a download ended."""
    while not wire.closed and not wire.problem:
        gap.octets = wire.octets
        await asyncio.sleep(0.05)
    gap.problem, gap.wrong = wire.problem or "over", wire.wrong


async def retries(host: str, port: int, path: str, content: bytes, ages: list[float], count: int) -> list[Gap]:
    """Downloads by curl, which is started again with a range where one ends; ends when the kill is due."""
    say({"ports": []})
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
    while gap.octets < len(content) and not gap.wrong:
        gap.connections += 1
        limits = ("--speed-limit", "1", "--speed-time", str(SILENT_S), "--connect-timeout", "3")
        command = ("curl", "-sS", "-N", "--fail", *limits, "--limit-rate", str(RATE), "-r", f"{gap.octets}-", url)
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        curl = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=null)
        assert curl.stdout is not None
        while data := await curl.stdout.read(1 << 17):
            gap.take(time.monotonic())
            if data != content[gap.octets : gap.octets + len(data)]:
                gap.problem, gap.wrong = f"wrong octets from {gap.octets}", True
            gap.octets += len(data)
        if await curl.wait() != 0:
            await asyncio.sleep(RETRY_S)


async def gone_on(gaps: list[Gap], patience_s: float) -> list[Json]:
    """Waits until all go on, as long as patience lasts; what became of each."""
    end = time.monotonic() + patience_s
    for _ in itertools.count():
        now = time.monotonic()
        if now >= end or all(gap.goes_on(now) for gap in gaps):
            break
        await asyncio.sleep(0.02)
    return [gap.told(now) for gap in gaps]


async def run(options: argparse.Namespace) -> None:
    """One kill."""
    host, port = options.service.rsplit(":", 1)
    content = options.file.read_bytes()
    clients = retries if options.curl else downloads
    gaps = await clients(host, int(port), options.file.name, content, options.ages, options.connections)
    for gap in gaps:
        gap.kill(time.monotonic())
    say({"due": time.monotonic()})
    await line()
    say({"gaps": await gone_on(gaps, options.patience)})


def main() -> int:
    """Runs one kill's clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("service", help="HOST:PORT")
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--ages", type=float, nargs="+", required=True, help="of requests at the kill, s")
    parser.add_argument("--connections", type=int, required=True)
    parser.add_argument("--patience", type=float, default=10.0, help="after the kill, s")
    parser.add_argument("--curl", action="store_true", help="curl, which tries again, over the kernel's TCP alone")
    asyncio.run(run(parser.parse_args()))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
