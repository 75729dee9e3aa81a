"""Agents, servers, links and the store are killed under downloads, and come back: no download may hang.

    make bench-trods-hangs
    make bench-trods-hangs BENCH_FLAGS='--clients 32 --kills 60 --harms agent'

bench/results/trods-hangs.json has a row per battery (number of clients), trods-hangs.csv one per kill.

After each kill, every connection must soon be held by a replica that answers, or be reset: within the exclusion bound
and two seconds. So after every ten kills the bench waits until all replicas take connections again, and a moment more.
Then it reads from the clients' kernel when each connection last received a segment. A download that receives nothing
for 12 s hangs in any case. Protected connections that broke, and wrong bytes, are counted separately. So are
connections that broke because their replica was killed while the killed store had lost its records: TRODS does not
protect from both at once (docs/trods.md).
"""

from __future__ import annotations

import math
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, get_args

from rivulet_demo.spec import SERVICE_PORT, SERVICE_V4
from rivulet_lab import Process, RackError, prompt

from . import batteries, trods_protected
from .bars import Bar, judge
from .host_rig import descriptors
from .trods_rack import WWW, Harm, TrodsRack, put, spec, store_command, trods_rack

REPLICAS = 3
BOUND_MS = 150.0
RATE_MBIT, RTT_MS = 100.0, 10.0
SILENCE_S = 12
"""Seconds without data after which a download counts as hanging."""
RULE_S = BOUND_MS / 1e3 + 2.0
SLACK_S = 1.0
"""Seconds by which a busy machine may exceed that bound."""
ROUND = 10
"""Kills between two checks of all connections."""
CURL_TIMES_OUT = 28
PORT, PORTS = 20_000, 10_000
"""Local ports of the clients, used one after the other."""
SIZES = (300_000, 3_000_000, 12_000_000)
PARTS = ((0, 99_999), (150_000, 299_999))
"""Ranges of an answer in several parts, which a record cannot protect."""
MULTIPART = 0.12
"""Share of downloads that request such an answer."""
RETURN_S = (0.2, 0.9)
PAUSE_S = (1.0, 3.0)
STORE_S = 2.5
"""Seconds until the killed store is restarted."""
RETURNS_S = 15.0
"""Longest wait for all replicas to take connections again; then the connections are checked anyway."""
STORE_HARMS = ("store-freeze", "store-kill")
STORED_AGAIN_S = 1.0
"""Seconds after the store's return by which the replicas have stored their records again."""
KILLS = 1000
"""Least number of kills for the claim."""
ALL = ("both", *get_args(Harm), *STORE_HARMS)

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Strike:
    """A kill, in seconds of the monotonic clock."""

    at: float
    what: str
    how: str
    returns: float


@dataclass(slots=True)
class Download:
    """One download by curl."""

    process: Process
    file: str
    port: int
    parts: bool
    opened: float


class Downloads:
    """A number of parallel downloads; a new one replaces each that ends."""

    def __init__(self, rack: TrodsRack, clients: int, rng: random.Random) -> None:
        self.rack, self.rng = rack, rng
        self.files = [put(size) for size in SIZES]
        self.running: dict[int, Download] = {}
        self.hung: list[int] = []
        self.broken: list[Json] = []
        self.ends: Counter[str] = Counter()
        self.number = 0
        for place in range(clients):
            self._start(place)

    def _start(self, place: int) -> None:
        self.number += 1
        file, parts = self.rng.choice(self.files), self.rng.random() < MULTIPART
        out = self.rack.folder / f"got-{place}"
        url = f"http://{SERVICE_V4}:{SERVICE_PORT}/{file}"
        # By its port a download that hangs is found in the agents' logs.
        port = PORT + self.number % PORTS
        command = [*prompt(), "curl", "-s", "-o", str(out), "--limit-rate", "2M", "--local-port", str(port)]
        command += ["--speed-limit", "1", "--speed-time", str(SILENCE_S), "--connect-timeout", "20"]
        command += ["-w", "connected %{time_connect}"]
        if parts:
            command += ["-r", ",".join(f"{first}-{last}" for first, last in PARTS)]
        process = self.rack.start(f"curl-{self.number}", [*command, url], self.rack.spaces["c1"])
        self.running[place] = Download(process, file, port, parts, time.monotonic())

    def look(self, again: bool) -> None:
        """Records ended downloads, and with `again` starts new ones in their places."""
        for place, download in list(self.running.items()):
            code = download.process.popen.poll()
            if code is None:
                continue
            del self.running[place]
            end = self._end(place, code, download)
            self.ends[end] += 1
            if end == "hung":
                self.hung.append(download.port)
            elif end.startswith("curl"):
                row = {"port": download.port, "opened": download.opened, "closed": time.monotonic()}
                self.broken.append({**row, "end": end})
            if again:
                self._start(place)

    def _end(self, place: int, code: int, download: Download) -> str:
        if code and re.search(r"connected 0\.0+$", download.process.text()):
            return "not connected"
        if code == CURL_TIMES_OUT:
            return "hung"
        if code:
            return f"curl {code}"
        got, whole = (self.rack.folder / f"got-{place}").read_bytes(), (WWW / download.file).read_bytes()
        if download.parts:
            return "whole" if all(whole[first : last + 1] in got for first, last in PARTS) else "wrong"
        return "whole" if got == whole else "wrong"

    def silent(self, since_s: float) -> list[int]:
        """Ports of connections on which the clients' kernel has received nothing for this many
        seconds.
        """
        command = ("ss", "-tniH", "state", "established", "dst", f"{SERVICE_V4}:{self.rack.service_port}")
        found, port = [], 0
        for line in self.rack.spaces["c1"].run(*command).splitlines():
            if not line[0].isspace():
                port = int(line.split()[2].rpartition(":")[2])
                continue
            last = [int(ms) for ms in re.findall(r"last(?:rcv|ack):(\d+)", line)]
            if last and min(last) > since_s * 1e3:
                found.append(port)
        return found


class Kills:
    """The parts that are down, and when each of them returns."""

    def __init__(self, rack: TrodsRack, rng: random.Random, harms: list[str]) -> None:
        self.rack, self.rng, self.harms = rack, rng, harms
        self.down: dict[str, tuple[str, float]] = {}
        self.strikes: list[Strike] = []

    def strike(self) -> None:
        """Kills a part that is up, but never the last replica."""
        now = time.monotonic()
        there = [name for name in self.rack.replicas if name not in self.down]
        how = self.rng.choice(self.harms)
        if how in STORE_HARMS:
            if "store" in self.down:
                return
            store = self.rack.processes["store"]
            store.popen.send_signal(signal.SIGSTOP if how == "store-freeze" else signal.SIGKILL)
            self._note("store", how, now + STORE_S)
        elif len(there) < 2:
            return
        else:
            name = self.rng.choice(there)
            self._harm(name, how)
            self._note(name, how, now + self.rng.uniform(*RETURN_S))

    def _note(self, what: str, how: str, returns: float) -> None:
        self.down[what] = (how, returns)
        self.strikes.append(Strike(time.monotonic(), what, how, returns))

    def lost_with_store(self, opened: float, closed: float) -> bool:
        """Whether a replica was killed while the store had lost its records, during this time."""
        return any(
            lost.how == "store-kill" and lost.at <= strike.at <= lost.returns + STORED_AGAIN_S
            for lost in self.strikes
            for strike in self.strikes
            if strike.what != "store" and opened <= strike.at <= closed and lost.at <= closed
        )

    def _harm(self, name: str, how: str) -> None:
        if how == "both":
            self.rack.end(f"agent-{name}")
            self.rack.end(f"nginx-{name}")
        else:
            self.rack.harm(name, how)  # type: ignore[arg-type]

    def heal(self) -> None:
        """Restarts the parts that have been down for long enough."""
        for name, (how, at) in list(self.down.items()):
            if time.monotonic() < at:
                continue
            del self.down[name]
            if how == "store-freeze":
                self.rack.processes["store"].popen.send_signal(signal.SIGCONT)
            elif how == "store-kill":
                self.rack.end("store")
                command = [*descriptors(), *prompt(7), *store_command(self.rack.spec.host("kv").ip)]
                self.rack.start("store", command, self.rack.spaces["kv"])
            elif how == "both":
                self.rack.start_nginx(name)
                self.rack.start_agent(name)
            else:
                self.rack.heal(name, how)  # type: ignore[arg-type]


class Battery:
    """Kills during a number of parallel downloads."""

    def __init__(self, kills: Kills, downloads: Downloads, rng: random.Random) -> None:
        self.rack, self.rng = kills.rack, rng
        self.kills, self.downloads = kills, downloads
        self.silent: list[int] = []
        self.looked = 0

    def _for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.kills.heal()
            self.downloads.look(True)
            time.sleep(0.02)

    def run(self, kills: int, limit_s: float = math.inf) -> None:
        """Makes this many kills, or stops when the time is over."""
        self._for(1.0)
        until = time.monotonic() + limit_s
        while (struck := len(self.kills.strikes)) < kills and time.monotonic() < until:
            self.kills.strike()
            if len(self.kills.strikes) % ROUND or len(self.kills.strikes) == struck:
                self._for(self.rng.uniform(*PAUSE_S))
            else:
                self._check()

    def _check(self) -> None:
        # A replica that returns may not send before it takes connections again, which the controller has to allow.
        until = time.monotonic() + RETURNS_S
        while (self.kills.down or not self.rack.whole()) and time.monotonic() < until:
            self._for(0.05)
        self._for(RULE_S + SLACK_S)
        self.looked += len(self.downloads.running)
        for port in self.downloads.silent(RULE_S + SLACK_S - 0.05):
            self.silent.append(port)
            held = [f"{name}\n{self.rack.spaces[name].run('ss', '-tanoi')}" for name in self.rack.replicas]
            (self.rack.folder / f"silent-{port}.txt").write_text("\n".join(held))
            print(f"nothing was received on port {port}", flush=True)

    def finish(self) -> None:
        """Waits until all downloads have ended."""
        until = time.monotonic() + 60.0
        while self.kills.down or (self.downloads.running and time.monotonic() < until):
            self.kills.heal()
            self.downloads.look(False)
            time.sleep(0.05)
        self.downloads.ends["hung"] += len(self.downloads.running)
        for download in self.downloads.running.values():
            download.process.popen.kill()
            self.downloads.hung.append(download.port)


def battery(clients: int, kills: int, seed: int, harms: list[str]) -> tuple[Json, list[Json]]:
    """Runs a battery; returns the results of the downloads, and a row per kill."""
    os.environ.setdefault("RIVULET_LOG", trods_protected.LOG)
    with trods_rack("hangs", spec(REPLICAS, BOUND_MS, RATE_MBIT, RTT_MS)) as rack:
        rng = random.Random(seed)
        found = Battery(Kills(rack, rng, harms), Downloads(rack, clients, rng), rng)
        began = time.monotonic()
        try:
            found.run(kills)
        finally:
            found.finish()
        downloads, strikes = found.downloads, found.kills.strikes
        said = trods_protected.read(rack.folder.glob("agent-*.log"))
        broken = [row for row in downloads.broken if trods_protected.was_protected(said, row)]
        lost = [row for row in broken if found.kills.lost_with_store(row["opened"], row["closed"])]
        row = {
            "clients": clients,
            "kills": len(strikes),
            "by_harm": dict(Counter(strike.how for strike in strikes)),
            "seed": seed,
            "seconds": round(time.monotonic() - began),
            "downloads": downloads.ends.total(),
            "hung": 0,
            "hung_ports": downloads.hung,
            "looked_at": found.looked,
            "silent": len(found.silent),
            "silent_ports": found.silent,
            "broken_protected": len(broken) - len(lost),
            "broken_ports": [(row["port"], row["end"]) for row in broken if row not in lost],
            "lost_with_store": len(lost),
            "wrong": 0,
            **downloads.ends,
        }
        return row, [
            {
                "second": round(strike.at - began, 2),
                "what": strike.what,
                "harm": strike.how,
                "away_s": round(strike.returns - strike.at, 2),
            }
            for strike in strikes
        ]


def bars(result: Json) -> list[Bar]:
    """In 1,000 kills no download hangs, no protected one breaks, and no byte is wrong."""
    rows = result["batteries"]

    def total(what: str) -> int:
        return sum(row[what] for row in rows)

    return [
        Bar("kills", total("kills"), KILLS),
        Bar("downloads that hung", total("hung"), 0, at_most=True),
        Bar("connections silent for longer than the bound and 3 s", total("silent"), 0, at_most=True),
        Bar("protected downloads that broke", total("broken_protected"), 0, at_most=True),
        Bar("downloads with wrong bytes", total("wrong"), 0, at_most=True),
    ]


def main() -> int:
    """Runs the batteries and judges the bars."""
    options = batteries.command_line(__doc__, ALL, [4, 8, 32], 340).parse_args()
    harms = batteries.chosen(options.harms, ALL)
    result = batteries.run(
        "trods-hangs", options.clients, lambda clients: battery(clients, options.kills, options.seed, harms)
    )
    return judge(bars(result))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RackError as e:
        sys.exit(str(e))
