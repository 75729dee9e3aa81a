"""Downloads with unmodified curl, which it starts again after a failure.

    python -m rivulet_demo.fetch --out fetch.json [--via "rivulet run --"] URL SIZE

When curl ends before SIZE bytes have arrived, it is started again with `-C` and the bytes so far, as download tools do;
every start counts as an opened connection. With --once it is not started again. `meter` records the bytes as they reach
the application.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from .meter import BIN_S, Meter

RETRY_S = 0.1
"""Pause before curl is started again: shorter than the default of any tool, in favour of TCP."""

PIPE = 1 << 20
"""Bytes that fit between curl and the meter."""

STALLED_S = 20
"""Seconds without a byte after which curl gives up a connection (by default it never does)."""


def fetch(
    url: str, size: int, via: list[str], live: Path | None, deadline_s: float, once: bool = False
) -> dict[str, object]:
    """Downloads until `size` bytes have arrived or the time is over; returns the measurements."""
    meter = Meter()
    started = time.monotonic()
    failures: list[dict[str, object]] = []
    connections = 0
    shown = 0.0
    if live is not None:
        show_live(live, 0)
    while meter.count < size and time.monotonic() - started < deadline_s:
        connections += 1
        command = [*via, "curl", "-sS", "--fail", "-N", "--connect-timeout", "3"]
        command += ["--speed-limit", "1", "--speed-time", str(STALLED_S), "--max-time", f"{deadline_s:g}"]
        if meter.count:
            command += ["-C", str(meter.count)]
        with subprocess.Popen([*command, url], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as curl:
            assert curl.stdout is not None and curl.stderr is not None
            fcntl.fcntl(curl.stdout, fcntl.F_SETPIPE_SZ, PIPE)
            while data := os.read(curl.stdout.fileno(), PIPE):
                now = time.monotonic()
                meter.take(data, now)
                if len(data) < PIPE // 2:
                    # Bytes within one bin are one sample, so this needs to wake up once for them.
                    time.sleep(BIN_S)
                if live is not None and now - shown > 0.1:
                    shown = now
                    show_live(live, meter.count)
            error = curl.stderr.read().decode(errors="replace").strip()
        if curl.returncode != 0:
            failures.append(
                {"at": time.monotonic(), "exit": curl.returncode, "bytes": meter.count, "message": error[-300:]}
            )
            time.sleep(RETRY_S)
        elif meter.count < size:
            failures.append({"at": time.monotonic(), "exit": 0, "bytes": meter.count, "message": "ended early"})
            time.sleep(RETRY_S)
        if once:
            break
    if live is not None:
        show_live(live, meter.count)
    return {
        "bytes": meter.count,
        "complete": meter.count == size,
        "sha256": meter.digest.hexdigest(),
        "started": started,
        "ended": time.monotonic(),
        "connections_opened": connections,
        "failures": failures,
        "longest_gap_ms": round(meter.gap_s * 1e3, 3),
        "samples": meter.samples,
    }


def show_live(live: Path, count: int) -> None:
    """Replaces the file atomically, so that no reader sees it empty."""
    fresh = live.with_name(live.name + ".new")
    fresh.write_text(str(count))
    fresh.replace(live)


def main() -> int:
    """Exit code 0 when all bytes arrived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("size", type=int, help="size of the file in bytes")
    parser.add_argument("--out", type=Path, required=True, help="file for the result, JSON")
    parser.add_argument("--via", default="", help="command in front of curl, such as 'rivulet run --'")
    parser.add_argument("--live", type=Path, help="file that is kept up to date with the bytes so far")
    parser.add_argument("--deadline", type=float, default=300.0, help="seconds after which the download is abandoned")
    parser.add_argument("--once", action="store_true", help="do not start curl again after a failure")
    options = parser.parse_args()
    via = shlex.split(options.via)
    result = fetch(options.url, options.size, via, options.live, options.deadline, options.once)
    options.out.write_text(json.dumps(result))
    return 0 if result["complete"] else 1


if __name__ == "__main__":
    sys.exit(main())
