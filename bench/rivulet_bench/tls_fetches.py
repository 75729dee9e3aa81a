"""HTTPS downloads by curl: of one file on a new connection, or of many files one behind the other on one connection.

The size of the file of each curl is read every few milliseconds, so that stalls are known without a change of curl.
"""

from __future__ import annotations

import random
import re
import time
from dataclasses import dataclass, field
from typing import Any

from rivulet_demo.spec import SERVICE_V4
from rivulet_lab import prompt

from .tls_rack import CERTIFICATE, TlsRack
from .trods_hangs import CURL_TIMES_OUT, PORT, PORTS, SILENCE_S, Download, Downloads
from .trods_rack import WWW, put

Json = dict[str, Any]

SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)
WEIGHTS = (6, 6, 6, 6, 4, 1)
KEPT_SIZES = SIZES[:4]
KEPT = 12
"""Files of a kept connection."""
KEPT_SHARE = 0.5
GAP_S = 0.04
"""Shortest gap between two looks with new bytes that counts as a stall."""
FORMAT = "%{num_connects} %{time_appconnect} %{http_code} %{size_download}\\n"


@dataclass(slots=True)
class Fetch(Download):
    """One curl, with all of its files."""

    files: list[str] = field(default_factory=list)
    size: int = 0
    moved: float = 0.0
    stalls: list[tuple[float, float, float]] = field(default_factory=list)
    """Beginning and end of each gap, and the age of the request at its beginning."""


class Fetches(Downloads):
    """So many at a time, one behind the other."""

    def __init__(self, rack: TlsRack, clients: int, rng: random.Random) -> None:
        self.by_size = {size: put(size) for size in SIZES}
        self.fetches: dict[int, Fetch] = {}
        self.rows: list[Json] = []
        super().__init__(rack, clients, rng)

    def _start(self, place: int) -> None:
        self.number += 1
        # By its port a download is found in the agents' logs and in the kernels' tables.
        port = PORT + self.number % PORTS
        if self.rng.random() < KEPT_SHARE:
            files = [self.by_size[size] for size in self.rng.choices(KEPT_SIZES, k=KEPT)]
            more = ["--rate", "180/m"]
        else:
            files, more = [self.by_size[size] for size in self.rng.choices(SIZES, WEIGHTS)], []
        command = [*prompt(), "curl", "-s", "-N", "--fail", "--fail-early", "--cacert", str(CERTIFICATE), *more]
        command += ["--local-port", str(port), "--speed-limit", "1", "--speed-time", str(SILENCE_S)]
        command += ["--connect-timeout", "20", "-w", FORMAT]
        for at, file in enumerate(files):
            out = self.rack.folder / f"got-{place}-{at}"
            out.unlink(missing_ok=True)
            command += ["-o", str(out), f"https://{SERVICE_V4}/{file}"]
        process = self.rack.start(f"curl-{self.number}", command, self.rack.spaces["c1"])
        now = time.monotonic()
        self.running[place] = self.fetches[place] = Fetch(process, files[0], port, False, now, files, 0, now)

    def look(self, again: bool) -> None:
        """Records gaps, counts downloads that have ended, and begins others."""
        for place, fetch in list(self.fetches.items()):
            self._grow(place, fetch)
            code = fetch.process.popen.poll()
            if code is None:
                continue
            del self.running[place], self.fetches[place]
            end, transfers = self._result(place, code, fetch)
            self.ends[end] += 1
            if end == "hung":
                self.hung.append(fetch.port)
            row = {"port": fetch.port, "opened": fetch.opened, "closed": time.monotonic(), "end": end}
            self.rows.append({**row, "files": fetch.files, "transfers": transfers, "stalls": fetch.stalls})
            if fetch.process.log is not None and end == "whole":
                fetch.process.log.unlink(missing_ok=True)
            if again:
                self._start(place)

    def _grow(self, place: int, fetch: Fetch) -> None:
        """Notes how far its single file has come. On kept connections the client pauses itself."""
        if len(fetch.files) > 1:
            return
        try:
            size = (self.rack.folder / f"got-{place}-0").stat().st_size
        except OSError:
            return
        now = time.monotonic()
        if size == fetch.size:
            return
        if fetch.size and now - fetch.moved > GAP_S:
            fetch.stalls.append((fetch.moved, now, fetch.moved - fetch.opened))
        fetch.size, fetch.moved = size, now

    def _result(self, place: int, code: int, fetch: Fetch) -> tuple[str, str]:
        rows = re.findall(r"^(\d+) ([\d.]+) (\d+) (\d+)$", fetch.process.text(), re.MULTILINE)
        transfers = "; ".join(" ".join(row) for row in rows)
        if code and (not rows or (len(rows) == 1 and not float(rows[0][1]))):
            return "no handshake", transfers
        if code == CURL_TIMES_OUT:
            return "hung", transfers
        if code:
            return f"curl {code}", transfers
        if sum(int(row[0]) for row in rows) > 1:
            return "opened again", transfers
        for at, file in enumerate(fetch.files):
            if (self.rack.folder / f"got-{place}-{at}").read_bytes() != (WWW / file).read_bytes():
                return "wrong", transfers
        return "whole", transfers
