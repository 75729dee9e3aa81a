"""Figure 10: one client fetches small objects, each over a new connection, at a round-trip time of 10 ms.

Kernel TCP (Reno, nginx) without and with Fast Open, and Rivulet without and with an address token, alternate in one
run; all begin with a window of ten segments. The response time in round trips shows the cost of each handshake.
"""

from __future__ import annotations

import sys

from .bars import Bar, judge
from .host_rig import HostRig, Transport, host_rig
from .plot import Points, lines
from .rig import flags, plot_path
from .stats import Json, interval, save

SIZES = (1, 100, 1_000, 3_000, 10_000, 30_000, 100_000)
KINDS: dict[str, tuple[Transport, tuple[str, ...]]] = {
    "rivulet": ("rivulet", ()),
    "rivulet-token": ("rivulet", ("--token",)),
    "tcp": ("tcp", ()),
    "tcp-fastopen": ("tcp-fastopen", ()),
}
RTT_MS = 10.0
OF_TCP = 1.05
"""Bound of the response time relative to kernel TCP with the same handshake: without token to TCP, with token to Fast
Open."""


def bars(result: Json) -> list[Bar]:
    """The response time for each size, relative to kernel TCP in the same run."""
    rtts = {(row["kind"], row["bytes"]): row["rtts"] for row in result["summary"]}
    return [
        Bar(f"{size:,} bytes: {ours}, of {theirs}'s time", rtts[ours, size] / rtts[theirs, size], OF_TCP, at_most=True)
        for ours, theirs in (("rivulet", "tcp"), ("rivulet-token", "tcp-fastopen"))
        for kind, size in rtts
        if kind == ours
    ]


def fetch(rig: HostRig, kind: str, size: int, requests: int) -> Json:
    """One client, one request after the other."""
    transport, words = KINDS[kind]
    result = rig.load(transport, rig.put(size), "--one-thread", *words, clients=1, requests=requests, seconds=60)
    return {
        "kind": kind,
        "bytes": size,
        "ms": result["latency_us"]["p50"] / 1000,
        "rtts": result["latency_us"]["p50"] / 1000 / RTT_MS,
        "kbytes_per_second": result["bytes"] / result["seconds"] / 1000,
    }


def main() -> int:
    """Runs the bench and writes bench/results/figure10.json and .png."""
    parser = flags(__doc__ or "")
    parser.add_argument("--requests", type=int, default=25, help="requests of a run")
    options = parser.parse_args()
    rows: list[Json] = []
    with host_rig("figure10", rtt_ms=RTT_MS) as rig:
        for size in SIZES:
            rig.put(size)
        rig.start_nginx()
        rig.start_rivulet()
        for kind in KINDS:
            # The first connection gets the cookie or the token; it is not measured.
            fetch(rig, kind, SIZES[0], 3)
        for size in SIZES:
            for repetition in range(options.repetitions):
                for kind in KINDS:
                    row = fetch(rig, kind, size, options.requests)
                    rows.append({"repetition": repetition, **row})
                    print(f"{size:7} bytes  {kind:14} {row['ms']:7.2f} ms  {row['rtts']:5.2f} RTT", flush=True)
    summary = []
    series: dict[str, Points] = {}
    for kind in KINDS:
        points = []
        for size in SIZES:
            mine = [r for r in rows if r["kind"] == kind and r["bytes"] == size]
            rtts, half = interval([r["rtts"] for r in mine])
            speed, speed_half = interval([r["kbytes_per_second"] for r in mine])
            points.append((float(size), rtts, half))
            summary.append(
                {
                    "kind": kind,
                    "bytes": size,
                    "rtts": rtts,
                    "rtts_half_95": half,
                    "kbytes_per_second": speed,
                    "kbytes_per_second_half_95": speed_half,
                }
            )
        series[kind] = points
    title = f"One client, a new connection for each object, {RTT_MS:g} ms"
    lines(plot_path("figure10"), series, "bytes of the object", "response time, round trips", title)
    setting = f"{title}, no rate limit; medians of {options.requests} requests a run"
    result = {"setting": setting, "rtt_ms": RTT_MS, "summary": summary, "runs": rows}
    print(save("figure10", result))
    return judge(bars(result))


if __name__ == "__main__":
    sys.exit(main())
