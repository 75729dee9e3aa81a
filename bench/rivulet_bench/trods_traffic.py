"""Clients of the kills: many connections of every kind in parallel, until standard input ends.

    python -m rivulet_bench.trods_traffic --www FOLDER --out LOG --seed N HOST:PORT

The log has a line of JSON per connection: its requests, their results, and the gaps in which due data did not arrive.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TextIO

from .trods_wire import SILENCE_S, Wanted, Wire, connect

Json = dict[str, Any]

SIZES = (1_000, 10_000, 100_000, 1_000_000)
SMALL = SIZES[:3]
LONG = (10_000_000, 100_000_000)
KINDS = {"keep-alive": 12, "pipelined": 8, "range": 4, "calm": 16, "long": 3, "curl": 3, "curl-long": 2}
"""Parallel connections of a kind."""
ONCE = {"once": 30, "long": 5, "curl-long": 3}
"""Kinds that request one object."""
LONGEST = 4
"""One in this many long downloads is of the largest object."""
END_S = 5.0
CURL_STALLED_S = 120


class Traffic:
    """All clients, and their log."""

    def __init__(self, host: str, port: int, www: Path, log: TextIO, seed: int, kinds: dict[str, int]) -> None:
        self.host, self.port, self.log, self.kinds = host, port, log, kinds
        self.files = {size: (www / f"{size}.bin").read_bytes() for size in (*SIZES, *LONG)}
        self.rng = random.Random(seed)
        self.stopping = False
        self.open: dict[Wire, str] = {}

    def wanted(self, size: int, part: bool = False) -> Wanted:
        """A file of this size, or a part of it."""
        content = self.files[size]
        if not part:
            return Wanted(f"{size}.bin", content)
        first = self.rng.randrange(size)
        return Wanted(f"{size}.bin", content, first, self.rng.randrange(first, size))

    def note(self, kind: str, wire: Wire) -> None:
        """Writes a connection's line."""
        row = {
            "kind": kind,
            "port": wire.port,
            "opened": round(wire.opened, 4),
            "closed": round(wire.closed or time.monotonic(), 4),
            "asked": wire.asked,
            "answered": wire.answered,
            "octets": wire.received,
            "problem": wire.problem,
            "wrong": wire.wrong,
            "silences": [[round(a, 4), round(b, 4)] for a, b in wire.silences],
        }
        self.log.write(json.dumps(row) + "\n")
        self.log.flush()

    async def slot(self, kind: str, client: Callable[[str], Awaitable[None]]) -> None:
        """Runs one connection after the other."""
        await asyncio.sleep(self.rng.random())
        while not self.stopping:
            await client(kind)

    async def wires(self, kind: str) -> None:
        """Runs a connection of the raw client to its end."""
        wire = await connect(self.host, self.port)
        self.open[wire] = kind
        try:
            if not wire.problem:
                await self.talk(kind, wire)
        finally:
            wire.close()
            self.open.pop(wire)
            self.note(kind, wire)
        if wire.problem:
            await asyncio.sleep(0.2)

    async def talk(self, kind: str, wire: Wire) -> None:
        """Requests of a connection of this kind."""
        rng = self.rng
        if kind == "long":
            await wire.fetch(self.wanted(self.long()))
            return
        if kind == "once":
            await wire.fetch(self.wanted(rng.choice(SIZES)))
            return
        for _ in range(rng.randint(5, 40)):
            if self.stopping:
                return
            if kind == "pipelined":
                batch = [self.wanted(rng.choice(SMALL), rng.random() < 0.2) for _ in range(rng.randint(2, 8))]
            else:
                batch = [self.wanted(rng.choice(SIZES), kind == "range")]
            if not await wire.fetch(*batch):
                return
            await asyncio.sleep(rng.uniform(1.0, 4.0) if kind == "calm" else rng.uniform(0.0, 0.5))

    def long(self) -> int:
        """Size of a long download."""
        return LONG[1] if self.rng.randrange(LONGEST) == 0 else LONG[0]

    async def curl(self, kind: str) -> None:
        """Unmodified curl: a few objects over one connection, or a long one."""
        sizes = [self.long()] if kind == "curl-long" else [self.rng.choice(SIZES) for _ in range(8)]
        urls = [f"http://{self.host}:{self.port}/{size}.bin" for size in sizes]
        wire = Wire(self.host)
        wire.opened = wire.since = time.monotonic()
        self.open[wire] = kind
        told = "%{stderr}%{local_port} %{num_connects}\\n"
        flags = (
            "-sS",
            "-N",
            "--fail",
            "--fail-early",
            "--speed-limit",
            "1",
            "--speed-time",
            str(CURL_STALLED_S),
            "-w",
            told,
        )
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec("curl", *flags, *urls, stdout=pipe, stderr=pipe)
        try:
            await asyncio.gather(self.read(process, wire, sizes), process.wait())
            assert process.stderr is not None
            self.judge(process.returncode, (await process.stderr.read()).decode(errors="replace"), wire, len(sizes))
        finally:
            if process.returncode is None:
                process.kill()
            wire.closed = time.monotonic()
            self.open.pop(wire)
            self.note(kind, wire)

    async def read(self, process: asyncio.subprocess.Process, wire: Wire, sizes: list[int]) -> None:
        """Compares curl's output."""
        assert process.stdout is not None
        expected = b"".join(self.files[size] for size in sizes) if len(sizes) > 1 else self.files[sizes[0]]
        wire.asked = len(sizes)
        while data := await process.stdout.read(1 << 18):
            now = time.monotonic()
            if now - wire.since > SILENCE_S:
                wire.silences.append((wire.since, now))
            wire.since = now
            if data != expected[wire.received : wire.received + len(data)]:
                wire.wrong, wire.problem = True, f"wrong bytes from {wire.received}"
            wire.received += len(data)
        if wire.received == len(expected):
            wire.answered = len(sizes)

    def judge(self, code: int | None, said: str, wire: Wire, objects: int) -> None:
        """Judges curl's result: it must have opened one connection and received everything."""
        told = [line.split() for line in said.splitlines()]
        ports = [(int(w[0]), int(w[1])) for w in told if len(w) == 2 and all(part.isdigit() for part in w)]
        wire.port = ports[0][0] if ports else 0
        if self.stopping and code != 0:
            return
        if code != 0 and not wire.problem:
            other = [" ".join(w) for w in told if len(w) != 2]
            wire.problem = f"curl {code} after {wire.received} bytes: {'; '.join(other)[:160]}"
        elif sum(connects for _, connects in ports) != 1 and not wire.problem:
            wire.problem = f"curl opened {sum(connects for _, connects in ports)} connections"
        elif wire.answered != objects and not wire.problem:
            wire.problem = f"curl received {wire.received} bytes"

    async def run(self) -> None:
        """Runs all connections until standard input ends."""
        slots = [
            asyncio.create_task(self.slot(kind, self.curl if kind.startswith("curl") else self.wires))
            for kind, count in self.kinds.items()
            for _ in range(count)
        ]
        print("open", flush=True)
        ended = asyncio.ensure_future(asyncio.get_running_loop().run_in_executor(None, sys.stdin.read))
        done, _ = await asyncio.wait((ended, *slots), return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            # An exception in a client is a bug of this program, and ends it.
            task.result()
        self.stopping = True
        _, late = await asyncio.wait(slots, timeout=END_S)
        # Unfinished long downloads end here; their bytes so far were compared.
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)


def main() -> int:
    """Runs the command line until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("service", help="HOST:PORT")
    parser.add_argument("--www", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--once", action="store_true", help="one object a connection")
    options = parser.parse_args()
    host, port = options.service.rsplit(":", 1)
    with options.out.open("w") as log:
        try:
            kinds = ONCE if options.once else KINDS
            asyncio.run(Traffic(host, int(port), options.www, log, options.seed, kinds).run())
        except Exception:
            # The thread that reads standard input may be blocked, and an ordinary exit would wait for it.
            traceback.print_exc()
            log.flush()
            os._exit(1)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
