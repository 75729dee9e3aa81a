"""Response times of clients that pipeline, which send requests without waiting for earlier answers.

Stateless TCP is compared with the same server on kernel TCP. At a round trip of 10 ms, one round trip more is visible.
"""

from __future__ import annotations

import json
import sys
from statistics import median
from typing import Any

from .bars import Bar
from .host_rig import RIVULET_PORT, SERVICE, HostRig
from .stateless_cost import rounds

Json = dict[str, Any]

RTT_MS = 10.0
REQUESTS = 30
SIZE = 1_000
TIMES = 10
"""Connections of each kind of client in a round."""
MOST = 1.2
"""Bound of the time relative to kernel TCP."""
CLIENTS = ("one write", "a write each", "behind the first answer")

SCRIPT = """
import json, socket, sys, time
host, port, path, count, times, how = sys.argv[1], int(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:7])
def request(last):
    close = "Connection: close\\r\\n" if last else ""
    return f"GET {path} HTTP/1.1\\r\\nHost: h\\r\\n{close}\\r\\n".encode()
all = [request(n == count - 1) for n in range(count)]
took = []
for _ in range(times):
    began = time.perf_counter()
    stream = socket.create_connection((host, port), timeout=60)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    got = b""
    if how == 0:
        stream.sendall(b"".join(all))
    elif how == 1:
        for each in all:
            stream.sendall(each)
    else:
        stream.sendall(all[0])
        got = stream.recv(65536)
        stream.sendall(b"".join(all[1:]))
    while piece := stream.recv(65536):
        got += piece
    took.append(time.perf_counter() - began)
    if got.count(b"HTTP/1.1 200 OK") != count:
        sys.exit(f"{got.count(b'HTTP/1.1 200 OK')} answers of {count}")
print(json.dumps(took))
"""


def pipelined(rig: HostRig, repetitions: int) -> Json:
    """Times of each connection's requests, for each kind of server in each round."""
    path = "/" + rig.put(SIZE).lstrip("/")
    rows: list[Json] = []
    for repetition, kind, _, _ in rounds(rig, ("stateless", "kernel"), repetitions):
        for how, client in enumerate(CLIENTS):
            words = (SERVICE, RIVULET_PORT, path, REQUESTS, TIMES, how)
            said = rig.run("c", [sys.executable, "-c", SCRIPT, *map(str, words)])
            row = {"repetition": repetition, "kind": kind, "client": client, "seconds": median(json.loads(said))}
            print(f"{client:24} {kind:10} {1e3 * row['seconds']:8.1f} ms", flush=True)
            rows.append(row)
    return {
        "rtt_ms": RTT_MS,
        "requests": REQUESTS,
        "summary": [_compared(rows, client) for client in CLIENTS],
        "runs": rows,
    }


def _compared(rows: list[Json], client: str) -> Json:
    def of(kind: str) -> float:
        return float(median(row["seconds"] for row in rows if row["client"] == client and row["kind"] == kind))

    ours, kernel = of("stateless"), of("kernel")
    return {"client": client, "seconds": ours, "kernel_seconds": kernel, "of_kernel": ours / kernel}


def bars(result: Json) -> list[Bar]:
    """Stateless TCP takes at most 1.2 times as long as kernel TCP."""
    summary = result.get("pipelining", {}).get("summary", [])
    return [
        Bar(f"pipelined requests, {row['client']}: time, of the kernel's", row["of_kernel"], MOST, at_most=True)
        for row in summary
    ]
