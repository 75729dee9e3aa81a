"""A download of 35 minutes by stateless TCP behind the ToR, through kills, to a client with few retries.

The client reads continuously, except for pauses of a minute: its window closes, and only window probes keep the
connection. In one pause all replicas are killed, so that no soft state is left.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from rivulet_demo.scenario import Parameters, Standing, standing_rack
from rivulet_demo.services import SwitchView
from rivulet_demo.spec import SERVICE_V4, STATELESS_PORT
from rivulet_lab import RackError, prompt

from .bars import Bar
from .rig import BUILD

Json = dict[str, Any]

OUT = BUILD / "stateless-large-long"
RATE_MBIT = 2.0
SIZE_MB = 460.0
"""Megabytes of more than half an hour at that rate, without the pauses."""
MINUTES = 35.0
EVERY_S, CLOSED_S = 300.0, 60.0
"""Seconds between two pauses, and seconds of each pause."""
ALL_DIE = 3
"""Index of the pause in which all replicas are killed."""
KILLS_S = 40.0
"""Mean seconds between two kills."""
AWAY_S = 2.0
RETRIES = 5
PATIENCE_S = 600.0
"""Seconds without a new byte after which the client counts as stuck."""


def long() -> Json:
    """Runs the download with its kills."""
    values = Parameters(
        rate_mbit=RATE_MBIT, rtt_ms=10.0, size_mb=SIZE_MB, replicas=3, switch="embedded", out=OUT, live=False
    )
    services = (("files-stateless", STATELESS_PORT, "stateless"),)
    serve = ("--large",)
    # The machine does other work for half an hour, so nothing but the download is fast.
    with standing_rack(
        "long", values, clients=1, services=services, serve=serve, liveness_ms=200.0, heartbeat_ms=20.0
    ) as standing:
        standing.watch.interval_s = 0.1
        folder, space = standing.rack.folder, standing.rack.spaces["c1"]
        space.set(f"net.ipv4.tcp_retries2={RETRIES}")
        result = folder / "long.json"
        result.unlink(missing_ok=True)
        command = [*prompt(), sys.executable, "-m", __name__, "--live", str(folder / "live"), str(result)]
        client = standing.rack.start("long", command, space)
        kills = _strike(standing, lambda: client.running(), folder / "live")
        if not result.exists():
            raise RackError(f"the client wrote no result:\n{client.last_lines()}")
        found: Json = json.loads(result.read_text())
    found |= {"kills": kills, "broken": int(found["sha256"] != standing.sha256), "megabytes": SIZE_MB}
    found |= {"retries": RETRIES}
    print({key: value for key, value in found.items() if key != "sha256"}, flush=True)
    return found


def _strike(standing: Standing, running: Any, live: Path) -> int:
    """Kills the sending replica now and then until the client ends; returns the number of kills."""
    dice, kills, all_died = random.Random(1), 0, False
    next_kill = time.monotonic() + KILLS_S
    back: list[tuple[float, str]] = []
    views: list[SwitchView] = []
    last, moved = -1, time.monotonic()
    while running():
        now = time.monotonic()
        if standing.watch.view is not None:
            views.append(standing.watch.view)
            del views[:-100]
        said = json.loads(live.read_text()) if live.exists() else {"bytes": 0, "pauses": 0}
        if said["bytes"] != last:
            last, moved = said["bytes"], now
        if now - moved > PATIENCE_S:
            raise RackError(f"no new byte for {PATIENCE_S:g} s, {last:,} bytes of {SIZE_MB:g} MB arrived")
        while back and now >= back[0][0]:
            standing.restart(back.pop(0)[1])
        if said["pauses"] == ALL_DIE and not all_died and said["pausing"] > CLOSED_S / 2:
            all_died = True
            for name in standing.replicas.alive():
                standing.kill(name)
                back.append((now + AWAY_S, name))
                kills += 1
        elif now >= next_kill and len(standing.replicas.alive()) == 3 and views:
            standing.kill(views[-1].busiest(views[0], standing.replicas.alive()))
            kills, next_kill = kills + 1, now + dice.uniform(0.5, 1.5) * KILLS_S
            back.append((now + AWAY_S, standing.marks[-1][2]))
        time.sleep(0.02)
    return kills


def fetch(live: Path) -> Json:
    """The client: bytes, time, and the reason if it ended early."""
    digest, count, pauses, gap = hashlib.sha256(), 0, 0, 0.0
    began = last = time.monotonic()
    problem = ""

    def emit(pausing: float = 0.0) -> None:
        live.with_name("live.new").write_text(json.dumps({"bytes": count, "pauses": pauses, "pausing": pausing}))
        live.with_name("live.new").replace(live)

    emit()
    try:
        connection = HTTPConnection(SERVICE_V4, STATELESS_PORT)
        connection.request("GET", "/file.bin")
        answer = connection.getresponse()
        while data := answer.read1(1 << 16):
            digest.update(data)
            count += len(data)
            now = time.monotonic()
            gap, last = max(gap, now - last), now
            if now - began > (pauses + 1) * EVERY_S:
                pauses += 1
                while (pausing := time.monotonic() - now) < CLOSED_S:
                    emit(pausing)
                    time.sleep(1.0)
                last = time.monotonic()
            emit()
    except OSError as error:
        problem = str(error)
    seconds = time.monotonic() - began
    return {
        "bytes": count,
        "sha256": digest.hexdigest(),
        "seconds": seconds,
        "pauses": pauses,
        "longest_gap_s": gap,
        "problem": problem,
    }


def bars(result: Json) -> list[Bar]:
    """The download completes."""
    part = result.get("long")
    if not part:
        return []
    return [
        Bar(
            f"a download through {part['kills']} kills, tcp_retries2={part['retries']}: broken",
            part["broken"],
            0,
            at_most=True,
        ),
        Bar("a download through kills: minutes", part["seconds"] / 60, MINUTES),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--live", type=Path, required=True)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    options.out.write_text(json.dumps(fetch(options.live)))
