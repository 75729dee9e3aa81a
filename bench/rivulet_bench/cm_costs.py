"""Cost of a packet with each interface of the Congestion Manager (the paper's Figure 6 and Table 1).

`cm-udp` sends small and large packets with each interface, all acknowledged, over a link at the machine's speed. It
is compared with TCP without Nagle's algorithm and delayed acknowledgements, whose packets are those on the link:
segments that the kernel joins count as one. TCP runs outside the cgroup whose datagrams are counted.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from rivulet_lab import binary

from .bars import Bar
from .cm_calls_rig import USER, CallsRig, calls_rig
from .cm_rig import CLIENT, PORT, SERVER
from .stats import interval

Json = dict[str, Any]

SIZES = (64, 168, 400, 700, 1000, 1400)
STYLES = ("tcp", "tcp-cm", "buffered", "alf", "alf-noconnect", "bulk")
PACKETS = 200_000
OF_TCP = {"alf-noconnect": 0.75, "bulk": 0.9}
"""Packets a second, relative to TCP without delays."""


def costs(options: Any) -> Json:
    """Figure 6 and Table 1."""
    times: dict[tuple[str, int], list[float]] = {(style, size): [] for style in STYLES for size in SIZES}
    calls: dict[str, Json] = {}
    lost: dict[str, int] = dict.fromkeys(STYLES, 0)
    with calls_rig() as rig:
        _prepare(rig)
        for repetition in range(options.repetitions + 1):
            for size in SIZES:
                for style in STYLES:
                    report = _send(rig, style, size, options.packets)
                    # The first run has no window and no resolved neighbour.
                    if repetition:
                        times[style, size].append(report["us_a_packet"])
                        lost[style] += report["lost"]
                        calls[style] = {name: n / report["packets"] for name, n in report["calls"].items()}
    rows = []
    for size in SIZES:
        row: Json = {"size": size, **{style: interval(times[style, size]) for style in STYLES}}
        rows.append(row)
        words = ", ".join(f"{style} {row[style][0]:.2f} ± {row[style][1]:.2f}" for style in STYLES)
        print(f"{size:4} bytes: {words} us a packet", flush=True)
    for style in STYLES:
        words = ", ".join(f"{n:.2f} {name}" for name, n in calls[style].items() if n)
        print(f"{style}: {words or 'no call'} a packet; {lost[style]} lost", flush=True)
    return {"packets": options.packets, "summary": rows, "calls_a_packet": calls, "lost": lost}


def bars(result: Json) -> list[Bar]:
    """Each interface's packets a second at its worst packet size, relative to TCP."""
    found = []
    for style, wanted in OF_TCP.items():
        worst = min(row["tcp"][0] / row[style][0] for row in result["summary"])
        found.append(Bar(f"figure 6: packets a second by {style}, of TCP's, at the worst size", worst, wanted))
    return found


def _prepare(rig: CallsRig) -> None:
    subprocess.run(rig.cm("load"), check=True, capture_output=True)
    # Each write is a packet, and each packet is acknowledged.
    for name in ("s", "c"):
        rig.spaces[name].set("net.ipv4.tcp_autocorking=0", "net.ipv4.tcp_no_metrics_save=1")
    rig.spaces["s"].ip(f"route add {CLIENT}/32 dev s0 quickack 1")
    rig.receive(*_pinned(1))


def _pinned(processor: int) -> list[str]:
    """Pins sender and receiver to different processors if there are two."""
    there = sorted(os.sched_getaffinity(0))
    return ["taskset", "-c", str(there[processor % len(there)])]


def _send(rig: CallsRig, style: str, size: int, packets: int) -> Json:
    words = [binary("cm-udp"), "send", f"{SERVER}:{PORT}", "--style", style, "--json"]
    words += ["--size", str(size), "--count", str(packets), "--congestion", rig.name]
    pipes: Json = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if style.startswith("tcp"):
        process = rig.start("send", [*_pinned(0), *words], rig.spaces["c"], **pipes)
    else:
        # One user per interface, so that they do not share windows.
        process = rig.client("send", USER + STYLES.index(style), [*_pinned(0), *words], **pipes)
    report: Json = json.loads(process.output(300.0))
    return report
