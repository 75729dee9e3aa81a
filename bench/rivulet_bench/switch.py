"""The embedded switch, BMv2 and a bare forwarder: highest rate without loss on veth, in one run.

Programs: a plain router with one route; the ToR program with all checks enforced and three replicas, for requests of
one and of four ranges and for responses; each with the shortest possible frames and with 1400 bytes. Also the engine
without packet I/O, and with --stf the counts of p4c's own tests; without --stf it takes the counts of an earlier run,
which contain their date.

No request is sent twice: the sender increments the response number within a proof of 65,536 packets. Before the
search, fresh requests must pass and repeated ones must not. During the search replays are counted instead of dropped,
at the same cost per packet: the sketch is sized for 16,384 requests in 4.19 s, and after hundreds of thousands fresh
numbers look used.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from rivulet_lab import Lab, Process, RackError, binary, standing, switches

from . import switch_stf
from .bars import Bar, judge
from .rig import BUILD, plot_path
from .stats import REPOSITORY, RESULTS, interval, save
from .switch_rig import (
    GRPC,
    PORTS,
    Control,
    Trace,
    connect,
    listening,
    pps,
    running,
    send,
)
from .switch_soak import soak

WORK = BUILD / "switch"
ENGINE = REPOSITORY / "switch" / "engine"
TOR = REPOSITORY / "p4src" / "build"
TEMPLATES = 100
"""Requests with their own proofs; each is sent with 65,536 numbers. The first one is for the test of the checks."""
COUNT_FIELDS = ("--count-at", "60,92", "--checksum-at", "50")
"""Offsets of the number's low half in the option and in the continuation, and of TCP's checksum, in an untagged
frame."""
WAIT_S = 1.0
"""Seconds from the start of a switch until its clock has passed the time in the requests."""

ROUTER_INFO = """
pkg_info { arch: "v1model" }
tables {
  preamble { id: 33554433 name: "RouterIngress.routes" alias: "routes" }
  match_fields { id: 1 name: "hdr.ipv4.dst_addr" bitwidth: 32 match_type: LPM }
  action_refs { id: 16777217 }
  action_refs { id: 16777218 }
  size: 65536
}
actions { preamble { id: 16777217 name: "RouterIngress.drop" alias: "drop" } }
actions {
  preamble { id: 16777218 name: "RouterIngress.forward" alias: "forward" }
  params { id: 1 name: "port" bitwidth: 9 }
  params { id: 2 name: "next_hop" bitwidth: 48 }
}
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of packet, and the switch's bar as a multiple of BMv2's rate."""

    name: str
    program: str
    source: str
    sinks: tuple[str, ...]
    factor: int
    sizes: tuple[str, ...] = ("0", "1400")
    """The shortest possible size, and 1400 bytes."""
    since: str = ""
    """Table that a program must have to handle this kind."""


REPLICAS = ("h1", "h2", "h3")
CASES = (
    Case("router", "router", "h1", ("h2",), 5),
    Case("range1", "tor", "h5", REPLICAS, 20),
    Case("range4", "tor", "h5", REPLICAS, 20),
    Case("response", "tor", "h1", ("h5",), 5),
    Case("plain_kernel", "tor", "h5", REPLICAS, 5),
    Case("plain_syn", "tor", "h5", ("h5",), 5, sizes=("0",), since="cookie_keys"),
    Case("plain_data", "tor", "h5", REPLICAS, 5, since="cookie_keys"),
)
SWITCHES = ("af_packet", "af_xdp", "bmv2", "before")
OF_BEFORE = 0.9
"""Bound relative to the rate of an earlier program, for each kind."""
FORWARDERS = ("bare_af_packet", "bare_af_xdp")
BARE_SHARE = 0.6
FRAMES = 30_000
"""Least frames of an attempt: a switch may hold thousands in queues at its end, which count as forwarded."""
HIGHEST = {"bmv2": "400000"}
LABELS = {
    "af_packet": "embedded, AF_PACKET",
    "af_xdp": "embedded, AF_XDP",
    "bmv2": "simple_switch_grpc",
    "before": "embedded, AF_PACKET, program before",
    "bare_af_packet": "bare forwarder, AF_PACKET",
    "bare_af_xdp": "bare forwarder, AF_XDP",
}
COLOURS = dict(zip(LABELS, ("#0b6e4f", "#3fa37c", "#b23a48", "#d9a441", "#8d99a6", "#c3cbd3"), strict=True))


def ipv4_frame(size: int) -> bytes:
    """A UDP packet for the router's only route."""
    head = bytes.fromhex("450000000001000040110000") + bytes([10, 0, 0, 1, 10, 0, 1, 1])
    head = head[:2] + (size - 14).to_bytes(2, "big") + head[4:]
    total = sum(int.from_bytes(head[i : i + 2], "big") for i in range(0, 20, 2))
    total = (total & 0xFFFF) + (total >> 16)
    checksum = ((total & 0xFFFF) + (total >> 16)) ^ 0xFFFF
    head = head[:10] + checksum.to_bytes(2, "big") + head[12:]
    return (bytes.fromhex("0200000000090200000000080800") + head).ljust(size, b"\0")


def write_frames() -> Trace:
    """Writes the files of frames; returns the ToR's entries."""
    script = ENGINE / "benches" / "tor_trace.py"
    text = subprocess.run(
        [sys.executable, str(script), str(TEMPLATES), "whole"], capture_output=True, text=True, check=True, timeout=120
    ).stdout
    trace = Trace.read(text)
    trace.packets |= {"router-0": [ipv4_frame(64)], "router-1400": [ipv4_frame(1400)]}
    for kind, frames in trace.packets.items():
        (WORK / f"{kind}.hex").write_text("\n".join(frame.hex() for frame in frames[1:] or frames) + "\n")
        (WORK / f"{kind}-check.hex").write_text(frames[0].hex() + "\n")
    return trace


@contextmanager
def switch(lab: Lab, name: str, program: str, trace: Trace, build: Path = TOR) -> Iterator[tuple[Control, Process]]:
    """A switch with program and entries, and with a heartbeat of every replica; its controller and its process."""
    ports = {port: f"s{port}" for port in PORTS}
    io = "af_packet" if name == "before" else name
    kind, flags = ("bmv2", ["-L", "off"]) if name == "bmv2" else ("embedded", ["--io", io])
    command = switches.command(kind, ports, GRPC, device_id=0, flags=flags)
    with running(lab, name, command, listening) as process:
        if program == "router":
            control = Control(ROUTER_INFO, ENGINE / "benches" / "router.json")
            route = "insert routes hdr.ipv4.dst_addr=0a000100/24 -> forward port=2 next_hop=20000000202"
            control.install([route.split()])
        else:
            control = Control((build / "rivulet.p4info.txtpb").read_text(), build / "rivulet.json")
            control.install(trace.lines)
            for port, frame in trace.beats:
                send(f"h{port}", frame)
        try:
            time.sleep(WAIT_S)
            yield control, process
        finally:
            control.close()


def check(case: Case, size: str, tool: Path) -> None:
    """RackError unless all fresh packets pass, and no repeated request does."""
    frames = WORK / f"{case.name}-{size}-check.hex"
    request = case.name.startswith("range")
    flags = ("--rate", "2000", "--seconds", "0.5", *(COUNT_FIELDS if request else ()))
    for again in (False, True) if request else (False,):
        seen = pps(tool, case.source, case.sinks, frames, *flags)
        wanted = 0 if again else seen["sent"]
        if seen["received"] != wanted or seen["sent"] == 0:
            what = "replays" if again else "packets"
            raise RackError(f"{seen['received']} of {seen['sent']} {what} came out, not {wanted}")


def search(
    case: Case, size: str, tool: Path, name: str, options: argparse.Namespace, near: int | None = None
) -> dict[str, Any]:
    """The highest rate without loss; `near` is the rate of the round before."""
    fields = COUNT_FIELDS if case.name.startswith("range") else ()
    flags = ("--seconds", str(options.seconds), "--highest", HIGHEST.get(name, "2000000"), *fields)
    flags += ("--frames-at-least", str(FRAMES), *(("--near", str(near)) if near else ()))
    return pps(tool, case.source, case.sinks, WORK / f"{case.name}-{size}.hex", *flags)


def measure_one(
    lab: Lab, name: str, program: str, trace: Trace, tool: Path, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """All measurements of a switch with one program, a row each."""
    mine = [case for case in CASES if case.program == program]
    if name in FORWARDERS:
        io = name.removeprefix("bare_")
        command = [switches.program("embedded"), "--bare-forwarder", "--io", io, "-i", "1@s1", "-i", "2@s2"]
        started = time.monotonic()
        with running(lab, name, command, lambda: time.monotonic() > started + WAIT_S):
            yield from searches(mine, tool, name, options)
        return
    build = options.program if name == "before" else TOR
    with switch(lab, name, program, trace, build) as (control, _):
        mine = [case for case in mine if not case.since or control.has(case.since)]
        for case in mine:
            for size in case.sizes:
                check(case, size, tool)
        if program == "tor":
            control.install([count_replays(trace)])
        yield from searches(mine, tool, name, options)


def count_replays(trace: Trace) -> list[str]:
    """The change of entries that makes the service's checks count replays instead of dropping them."""
    # The first service is the requests' one.
    checks = next(line for line in trace.lines if line[:2] == ["insert", "service_checks"])
    return ["modify", *("replay_mode=1" if word.startswith("replay_mode=") else word for word in checks[1:])]


def soaked(lab: Lab, trace: Trace, tool: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The soak: the embedded switch under requests of one range for the given time."""
    (case,) = (case for case in CASES if case.name == "range1")
    with switch(lab, "af_packet", "tor", trace) as (control, process):
        control.install([count_replays(trace)])
        return soak(
            process,
            control,
            lambda i: f"routes destination=20010db8aa00{i:04x}0000000000000000/64 -> route_to next_hop=1",
            lambda: search(case, "0", tool, "af_packet", options),
            (tool, case.source, case.sinks, WORK / f"{case.name}-0.hex", COUNT_FIELDS),
            options.soak,
        )


def searches(cases: list[Case], tool: Path, name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each kind and size."""
    for case in cases:
        for size in case.sizes:
            found = search(case, size, tool, name, options, options.before.get((name, case.name, size)))
            options.before[name, case.name, size] = found["pps"]
            yield {"switch": name, "packet": case.name, "bytes": found["size"], "pps": found["pps"]}


def measure(lab: Lab, options: argparse.Namespace) -> dict[str, Any]:
    """Rounds over all switches, until the number of rounds or the time limit is reached."""
    WORK.mkdir(parents=True, exist_ok=True)
    trace = write_frames()
    tool = Path(binary("examples/pps"))
    there = {"bmv2": shutil.which("simple_switch_grpc") is not None, "before": False}
    names = [name for name in SWITCHES if there.get(name, True)]
    plan = [(name, program) for program in ("router", "tor") for name in names]
    plan[0:0] = [(name, "router") for name in FORWARDERS]
    # For the comparison.
    if options.program is not None:
        plan.insert(plan.index(("af_packet", "tor")) + 1, ("before", "tor"))
    began = time.monotonic()
    options.before = {}
    rows: list[dict[str, Any]] = []
    failures: list[dict[str, str]] = []
    for repetition in range(options.repetitions):
        for name, program in plan:
            if repetition > 0 and time.monotonic() - began > options.limit:
                break
            try:
                for row in measure_one(lab, name, program, trace, tool, options):
                    rows.append({"repetition": repetition, **row})
                    print(
                        f"{row['pps']:9} packets/s  {row['packet']:9}{row['bytes']:5} bytes  {LABELS[name]}", flush=True
                    )
            except (RackError, subprocess.TimeoutExpired) as error:
                failures.append({"switch": name, "program": program, "why": str(error)})
                print(f"{LABELS[name]}, {program}: {error}", file=sys.stderr, flush=True)
    result: dict[str, Any] = {"runs": rows, "failures": failures}
    if options.soak:
        result["soak"] = soaked(lab, trace, tool, options)
        print(f"soak: {result['soak']}", flush=True)
    return result


def summarize(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per kind and size: the best run of each switch (disturbances only slow it down) with the ratios, and the
    mean of all runs with its 95 % interval."""
    summary = []
    for case in CASES:
        for large in (size != "0" for size in case.sizes):
            mine = [r for r in rows if r["packet"] == case.name and (r["bytes"] == 1400) == large]
            best = {n: max((r["pps"] for r in mine if r["switch"] == n), default=None) for n in SWITCHES}
            bare_rows = [r for r in rows if r["switch"] in FORWARDERS and (r["bytes"] == 1400) == large]
            bare = {n: max((r["pps"] for r in bare_rows if r["switch"] == n), default=None) for n in FORWARDERS}
            row: dict[str, Any] = {"packet": case.name, "bytes": mine[0]["bytes"] if mine else None, "pps": best | bare}
            row["mean_pps"] = means([*mine, *bare_rows])
            for io in ("af_packet", "af_xdp"):
                ours, forwarder, bmv2 = best[io], bare[f"bare_{io}"], best["bmv2"]
                if not ours:
                    continue
                goals = [BARE_SHARE * forwarder] if forwarder else []
                goals += [case.factor * bmv2] if bmv2 else []
                row[io] = {
                    "times_bmv2": round(ours / bmv2, 2) if bmv2 else None,
                    "share_of_bare": round(ours / forwarder, 3) if forwarder else None,
                    "goal_pps": round(min(goals)) if goals else None,
                    "reached": ours >= min(goals) if goals else None,
                }
            if best["before"] and best["af_packet"]:
                row["of_before"] = round(best["af_packet"] / best["before"], 3)
            summary.append(row)
    return summary


def means(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean of each switch's runs, and half-width of its 95 % interval (`None` for a single run)."""
    found: dict[str, Any] = {}
    for name in (*SWITCHES, *FORWARDERS):
        values = [row["pps"] for row in rows if row["switch"] == name]
        if values:
            mean, half = interval(values)
            width = None if half == float("inf") else round(half)
            found[name] = {"mean": round(mean), "half_width_95": width, "runs": len(values)}
    return found


def engine() -> dict[str, Any]:
    """Packets per second of the engine alone."""

    WORK.mkdir(parents=True, exist_ok=True)
    script = ENGINE / "benches" / "tor_trace.py"
    trace = WORK / "engine.trace"
    trace.write_text(subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout)
    command = [os.environ.get("CARGO", "cargo"), "bench", "--locked", "-p", "rivulet-engine", "--bench", "packets"]
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env={**os.environ, "TOR_TRACE": str(trace)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def plot(path: Path, summary: list[dict[str, Any]]) -> None:
    """Bars by kind and size, on a logarithmic axis, because the rates differ by orders of magnitude."""
    figure, axis = pyplot.subplots(figsize=(10, 4.6))
    width = 0.8 / len(LABELS)
    for i, (name, label) in enumerate(LABELS.items()):
        bars = [(at, row["pps"][name]) for at, row in enumerate(summary) if row["pps"].get(name)]
        x = [at + (i - (len(LABELS) - 1) / 2) * width for at, _ in bars]
        axis.bar(x, [value for _, value in bars], width, label=label, color=COLOURS[name])
    axis.set_yscale("log")
    axis.set_xticks(range(len(summary)), [f"{row['packet']}\n{row['bytes']} B" for row in summary])
    axis.set_ylabel("packets/s without loss")
    axis.set_title("Highest rate without loss on veth, one machine, one run", loc="left", fontsize=11)
    axis.grid(axis="y", alpha=0.3)
    axis.legend(frameon=False, fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.13))
    for spine in ("top", "right"):
        axis.spines[spine].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def bars(summary: list[dict[str, Any]]) -> list[Bar]:
    """The bars of each kind of packet and of packet I/O, if the comparison was measured."""
    return [
        Bar(f"{row['packet']}, {row['bytes']} bytes, {io}: packets/s", row["pps"][io], row[io]["goal_pps"])
        for row in summary
        for io in ("af_packet", "af_xdp")
        if io in row and row[io]["goal_pps"] is not None
    ] + [
        Bar(f"{row['packet']}, {row['bytes']} bytes: of the program before", row["of_before"], OF_BEFORE)
        for row in summary
        if "of_before" in row
    ]


def write(measured: dict[str, Any], options: argparse.Namespace) -> int:
    """Writes JSON and plot, judges the bars; returns the exit code."""
    summary = summarize(measured["runs"])
    result = {
        "setting": {
            "attempt_s": options.seconds,
            "attempt_frames": FRAMES,
            "lost_of_a_million": 0,
            "replicas": 3,
            "checks": "all enforced, every request with a number of its own; replay: enforced before the search "
            "(fresh ones pass, the same again are all dropped), counted during the search, for "
            "above 16,384 in 4.19 s the sketch cannot tell fresh from used; the work for a packet is the same",
            "horizon": "an hour, for the requests are made beforehand",
            "queues": "what waits at the end of an attempt and still comes out counts: a rate is too high by up to a "
            "switch's queue over the length of the attempt, which is attempt_s and at least attempt_frames",
            "figures": "pps: the best of the repetitions; mean_pps: all of them; the runs themselves are under runs",
        },
        "summary": summary,
        **measured,
    }
    stf = measured.get("stf") or switch_stf.carried(RESULTS / "switch.json")
    if stf is not None:
        result["stf"] = stf
    plot(plot_path("switch"), summary)
    print(save("switch", result))
    return judge(bars(summary))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5, help="most rounds")
    parser.add_argument("--seconds", type=float, default=0.25, help="shortest attempt at one rate")
    parser.add_argument("--limit", type=float, default=480.0, help="seconds after which no further round starts")
    parser.add_argument(
        "--soak",
        type=float,
        default=0,
        metavar="SECONDS",
        help="afterwards a soak at the highest rate with changing tables",
    )
    parser.add_argument("--without-engine", action="store_true", help="skip the engine without packet I/O")
    parser.add_argument("--stf", type=Path, metavar="FOLDER", help="count p4c's compiled tests in this folder")
    parser.add_argument(
        "--program", type=Path, metavar="FOLDER", help="compare with this earlier rivulet.json and rivulet.p4info.txtpb"
    )
    parser.add_argument(
        "--only-stf", action="store_true", help="only count p4c's tests; the other results stay unchanged"
    )
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only_stf and options.stf is None:
        parser.error("--only-stf needs --stf FOLDER")
    return options


def main() -> int:
    """Runs the bench and writes bench/results/switch.json and .png."""
    options = parse()
    if options.inside:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        measured = measure(Lab(WORK), options)
        if not options.without_engine:
            measured["engine"] = engine()
        if options.stf:
            measured["stf"] = switch_stf.counts(Path(binary("stf-run")), options.stf)
        missed = write(measured, options)
        return missed if not measured["failures"] else 1
    build = [os.environ.get("CARGO", "cargo"), "build", "--release", "--locked"]
    if options.stf:
        subprocess.run([*build, "-p", "rivulet-engine", "--bin", "stf-run"], cwd=REPOSITORY, check=True)
    if options.only_stf:
        stf = switch_stf.counts(Path(binary("stf-run")), options.stf)
        switch_stf.replace(RESULTS / "switch.json", stf)
        print(json.dumps(stf, indent=1))
        return 0
    subprocess.run([*build, "-p", "rivulet-pktio", "--example", "pps"], cwd=REPOSITORY, check=True)
    with standing(Lab(WORK)) as lab:
        space = lab.namespace("switch")
        connect(space)
        command = [sys.executable, "-m", "rivulet_bench.switch", "--inside", *sys.argv[1:]]
        # A new session has its own scheduling group, which would take time from the switch's.
        child = lab.start("inside", command, space, stdout=None, stderr=None, start_new_session=True)
        # On kernels without such groups realtime priority has the same effect.
        with suppress(OSError):
            Path(f"/proc/{child.pid}/autogroup").write_text("-10")
        return child.popen.wait()


if __name__ == "__main__":
    sys.exit(main())
