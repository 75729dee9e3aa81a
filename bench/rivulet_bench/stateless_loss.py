"""Ten thousand downloads of 10 kB at several rates of loss, by the kernel's own clients.

Every byte is compared, and the mean time with that of the same server on kernel TCP, alternating.
"""

from __future__ import annotations

from typing import Any

from .bars import Bar
from .host_rig import RIVULET_PORT, HostRig
from .rig import finish
from .stats import percentile

Json = dict[str, Any]

LOSSES = (0, 1, 2, 5)
"""Frames lost of a hundred each way."""
RTT_MS = 10.0
SIZE = 10_000
TRANSFERS = 10_000
AT_A_TIME = 100
ROUNDS = 4
PORTS = {"with ring": RIVULET_PORT, "without ring": RIVULET_PORT + 1, "kernel": RIVULET_PORT + 2}
MOST = {"with ring": 1.1, "without ring": 1.5}


def lossy(rig: HostRig, transfers: int) -> Json:
    """All kinds alternate, each with a part of its transfers."""
    path = rig.put(SIZE)
    rig.start_rivulet(plain="stateless", port=PORTS["with ring"], name="with ring")
    rig.start_rivulet("--no-ring", plain="stateless", port=PORTS["without ring"], name="without ring")
    rig.start_rivulet(plain="kernel", port=PORTS["kernel"], name="kernel")
    rows = []
    for percent in LOSSES:
        rig.lose(percent)
        took: dict[str, list[float]] = {kind: [] for kind in PORTS}
        failed, wrong, first_error = dict.fromkeys(PORTS, 0), dict.fromkeys(PORTS, 0), dict.fromkeys(PORTS, "")
        for part in range(ROUNDS):
            for kind, port in PORTS.items():
                log = rig.folder / "loss.csv"
                words = ("--one-thread", "--expect", str(rig.www / path), "--log", str(log), "--timeout", "120")
                # Requests of all clients together.
                each = -(-transfers // ROUNDS // AT_A_TIME)
                load = rig.start_load("tcp", path, *words, port=port, clients=AT_A_TIME, requests=each, seconds=600)
                result = finish(load, 700.0)
                lines = [line.split(",") for line in log.read_text().splitlines()[1:]]
                took[kind] += [int(line[1]) / 1e3 for line in lines if not line[2]]
                failed[kind] += result["errors"]
                wrong[kind] += result["wrong"]
                first_error[kind] = first_error[kind] or result["first_error"] or ""
            done = {kind: f"{sum(times) / len(times):.1f}" for kind, times in took.items() if times}
            print(f"{percent} % loss, part {part + 1} of {ROUNDS}: means {done} ms", flush=True)
        kernel = sum(took["kernel"]) / len(took["kernel"])
        for kind, times in took.items():
            mean = sum(times) / len(times) if times else float("nan")
            row = {
                "loss_percent": percent,
                "kind": kind,
                "transfers": len(times) + failed[kind],
                "exact": len(times),
                "wrong": wrong[kind],
                "first_error": first_error[kind],
                "mean_ms": mean,
                "of_kernel": mean / kernel,
                **{f"p{p}_ms": percentile(times, p) for p in (50, 90, 99, 100) if times},
            }
            rows.append(row)
            print(
                f"{percent} % loss  {kind:13} {row['exact']:6} of {row['transfers']:6} exact, mean {mean:7.1f} ms"
                f" ({row['of_kernel']:.2f} of the kernel's), p99 {row.get('p99_ms', 0):.0f} ms",
                flush=True,
            )
    for name in PORTS:
        rig.stop(name)
    return {"summary": rows, "rtt_ms": RTT_MS, "bytes": SIZE}


def bars(result: Json) -> list[Bar]:
    """Every transfer is correct, and the mean time is bounded."""
    found = []
    for row in result.get("loss", {}).get("summary", []):
        if row["kind"] == "kernel":
            continue
        what = f"{row['loss_percent']} % loss each way, {row['kind']}"
        found.append(Bar(f"{what}: transfers that are not exact", row["transfers"] - row["exact"], 0, at_most=True))
        found.append(Bar(f"{what}: mean time, of the kernel's", row["of_kernel"], MOST[row["kind"]], at_most=True))
    return found
