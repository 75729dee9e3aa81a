"""Agents are killed and restarted at once under downloads: no download may hang.

    python -m rivulet_bench.trods_hangs --clients 4 8 32 --kills 60

A download hangs if it receives nothing for longer than any reset or continued one. The servers stay up, so every
connection can continue; resets and wrong bytes are counted separately.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from typing import Any

from rivulet_demo.spec import SERVICE_PORT, SERVICE_V4
from rivulet_lab import prompt

from .trods_rack import FOLDER, WWW, TrodsRack, put, spec, trods_rack

REPLICAS = 3
BOUND_MS = 150.0
RATE_MBIT, RTT_MS = 100.0, 10.0
SILENCE_S = 12
"""Seconds without data after which a download counts as hanging."""
CURL_HANGS = 28
PORT, PORTS = 20_000, 10_000
"""First local port of the clients, and number of ports, which they use one after the other."""
SIZES = (300_000, 3_000_000, 12_000_000)

Json = dict[str, Any]


class Downloads:
    """Parallel slots of consecutive downloads."""

    def __init__(self, rack: TrodsRack, clients: int, rng: random.Random) -> None:
        self.rack, self.rng = rack, rng
        self.files = [put(size) for size in SIZES]
        self.running: dict[int, tuple[Any, str, int]] = {}
        self.hung: list[int] = []
        self.ends: Counter[str] = Counter()
        self.number = 0
        for place in range(clients):
            self._start(place)

    def _start(self, place: int) -> None:
        self.number += 1
        file = self.rng.choice(self.files)
        out = self.rack.folder / f"got-{place}"
        url = f"http://{SERVICE_V4}:{SERVICE_PORT}/{file}"
        # Without retries of its own: reconnecting would hide what is measured.
        # The port identifies a hanging download in the agents' logs.
        port = PORT + self.number % PORTS
        limits = [
            "--local-port",
            str(port),
            "--speed-limit",
            "1",
            "--speed-time",
            str(SILENCE_S),
            "--connect-timeout",
            "20",
        ]
        command = [*prompt(), "curl", "-s", "-o", str(out), "--limit-rate", "2M", *limits, url]
        self.running[place] = (self.rack.start(f"curl-{self.number}", command, self.rack.spaces["c1"]), file, port)

    def look(self, again: bool) -> None:
        """Counts ended downloads, and starts others."""
        for place, (process, file, port) in list(self.running.items()):
            code = process.popen.poll()
            if code is None:
                continue
            del self.running[place]
            if code == CURL_HANGS:
                self.hung.append(port)
            self.ends[self._end(place, code, file)] += 1
            if again:
                self._start(place)

    def _end(self, place: int, code: int, file: str) -> str:
        if code == CURL_HANGS:
            return "hung"
        if code:
            return f"curl {code}"
        same = (self.rack.folder / f"got-{place}").read_bytes() == (WWW / file).read_bytes()
        return "whole" if same else "wrong"


def battery(clients: int, kills: int, seed: int) -> Json:
    """Kills agents while this many clients download."""
    rng = random.Random(seed)
    with trods_rack("hangs", spec(REPLICAS, BOUND_MS, RATE_MBIT, RTT_MS)) as rack:
        downloads = Downloads(rack, clients, rng)
        back: dict[str, float] = {}
        struck, next_kill = 0, time.monotonic() + 1.0
        while struck < kills:
            now = time.monotonic()
            for name, at in list(back.items()):
                if now >= at:
                    rack.start_agent(name)
                    del back[name]
            if now >= next_kill:
                name = rng.choice([n for n in rack.replicas if n not in back])
                rack.end(f"agent-{name}")
                back[name] = time.monotonic() + rng.uniform(0.2, 0.9)
                struck += 1
                next_kill = now + rng.uniform(1.0, 3.0)
            downloads.look(True)
            time.sleep(0.02)
        for name in back:
            rack.start_agent(name)
        until = time.monotonic() + 60.0
        while downloads.running and time.monotonic() < until:
            downloads.look(False)
            time.sleep(0.05)
        downloads.ends["hung"] += len(downloads.running)
        for process, _, port in downloads.running.values():
            process.popen.kill()
            downloads.hung.append(port)
        return {"clients": clients, "kills": struck, "seed": seed, "ports": downloads.hung, **downloads.ends}


def main() -> int:
    """Runs the batteries one after the other; 1 if a download hung or had wrong bytes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[4, 8, 32])
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    bad = 0
    for clients in options.clients:
        found = battery(clients, options.kills, options.seed)
        print(json.dumps(found), flush=True)
        bad += found.get("hung", 0) + found.get("wrong", 0)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
