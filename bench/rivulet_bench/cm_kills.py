"""A thousand kills of the daemon and of programs: how long the killed program's window stays unusable.

A program has a whole window outstanding and requests more; another program of the same user waits for a grant. Then
the first is killed, or it and the daemon, which is restarted at once. The second must get the window within two
retransmission timeouts of the macroflow, whose round-trip time is a millisecond: 400 ms.
"""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rivulet_lab import Process, binary

from .bars import Bar
from .cm_calls_rig import USER, CallsRig, calls_rig
from .cm_rig import PORT, SERVER
from .stats import percentile

Json = dict[str, Any]

TIMEOUTS_MS = 2 * 200.0
"""Two minimal retransmission timeouts (rules in host/cm), which apply to a path of a millisecond."""


def kills(options: Any) -> Json:
    """Every second kill includes the daemon."""
    took: dict[str, list[float]] = {"program": [], "daemon and program": []}
    with calls_rig() as rig:
        rig.receive()
        waiting = _program(rig, "wait")
        _line(waiting, "open")
        for number in range(options.kills):
            with_daemon = bool(number % 2)
            held = _program(rig, "hold")
            _line(held, "holds")
            _tell(waiting, b"\n")
            _line(waiting, "asked")
            began = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            if with_daemon:
                rig.end("daemon", signal.SIGKILL)
            rig.end("hold", signal.SIGKILL)
            if with_daemon:
                rig.serve()
            freed = (int(_line(waiting, "")) - began) / 1e6
            took["daemon and program" if with_daemon else "program"].append(freed)
            if (number + 1) % 100 == 0:
                longest = max(time for times in took.values() for time in times)
                print(f"{number + 1} kills, the longest {longest:.1f} ms", flush=True)
    rows = []
    for what, times in took.items():
        row = {"killed": what, "kills": len(times), "median_ms": statistics.median(times)}
        row |= {"p99_ms": percentile(times, 99), "longest_ms": max(times)}
        rows.append(row)
        print(f"{what}: median {row['median_ms']:.1f}, longest {row['longest_ms']:.1f} ms", flush=True)
    return {"bound_ms": TIMEOUTS_MS, "summary": rows}


def bars(result: Json) -> list[Bar]:
    """The longest time until the window is usable again, over all kills."""
    longest = max(row["longest_ms"] for row in result["summary"])
    what = "longest time until another program gets a killed one's window, ms"
    return [Bar(what, longest, result["bound_ms"], at_most=True)]


def library() -> str:
    """libcm.so in the folder of the binaries."""
    return str(Path(binary("rivulet")).with_name("libcm.so"))


def program(rig: CallsRig, name: str, user: int, *words: str) -> Process:
    """Starts a program of `cm_client` with pipes."""
    command = [sys.executable, "-m", "rivulet_bench.cm_client", library(), *words]
    pipes: Json = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return rig.client(name, user, command, **pipes)


def _program(rig: CallsRig, what: str) -> Process:
    return program(rig, what, USER, what, SERVER, str(PORT))


def _tell(process: Process, line: bytes) -> None:
    assert process.popen.stdin is not None
    process.popen.stdin.write(line)
    process.popen.stdin.flush()


def _line(process: Process, begins: str) -> str:
    assert process.popen.stdout is not None
    line = process.popen.stdout.readline().decode().strip()
    if not line or not line.startswith(begins):
        process.popen.kill()
        raise SystemExit(f"{process.name}: {line!r}: {process.popen.communicate()[1].decode()[-400:]}")
    return line
