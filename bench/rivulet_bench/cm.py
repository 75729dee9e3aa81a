"""The Congestion Manager: the paper's figures 3 to 7, sharing, and users that die or lie.

Its TCP is compared with Reno, Cubic and BBR, its calls with TCP.

Figures 8 to 10, on adaptive streams, are in cm_layers.py.

Output: bench/results/cm.json. Each part is stored when it ends, with its date and machine: all parts take more than
an hour. Parts chosen with --parts are stored only with --update, and with ten repetitions or more.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rivulet_lab import binary, nginx

from . import cm_costs, cm_kills, cm_layers, cm_liar, cm_rivulet
from .bars import Bar, judge
from .beside import beside
from .cm_calls_rig import USER, CallsRig, calls_rig
from .cm_rig import PORT, SERVER, CmRig, Wire, cm_rig
from .rig import finish, flags
from .stats import interval, load, save, updated

Json = dict[str, Any]

CONTROLS = ("cm", "reno", "cubic", "bbr")
FETCHES = 9
FETCH_BYTES = 128 * 1024
FETCH_GAP_S = 0.5
FETCH = Wire(rate_mbit=20, rtt_ms=75)
LOSS = Wire(rate_mbit=10, rtt_ms=60)
LOSSES = (0.0, 0.005, 0.01, 0.02, 0.05)
SHARE = Wire(rate_mbit=20, rtt_ms=40, jitter_ms=2.5)
"""Jitter, as in the simulator: without it phase effects decide which packet a full queue drops (Floyd, Jacobson
1991)."""
UDP, UDP_SIZE = "cm-udp", 1448
"""Bytes of a datagram: as many as in a TCP segment."""
GROUPS = (1, 2, 4, 8, 16)
LONG = Wire(rate_mbit=100, rtt_ms=10)
SETUPS = 20
"""Connections with each congestion control in a repetition."""
STATS = Path("/proc/sys/kernel/bpf_stats_enabled")


def fetches(options: Any) -> Json:
    """Figure 7: curl fetches a file repeatedly from nginx, both unmodified."""
    took: dict[str, list[list[float]]] = {name: [] for name in CONTROLS}
    with cm_rig(FETCH) as rig:
        www = rig.folder / "www"
        www.mkdir(exist_ok=True)
        (www / "file").write_bytes(bytes(FETCH_BYTES))
        server = rig.start("nginx", nginx.command(rig.folder / "nginx", www, f"{SERVER}:80"), rig.spaces["s"])
        rig.until(lambda: f"{SERVER}:80" in rig.spaces["s"].run("ss", "-Hltn"), "nginx listens", 10.0, server)
        # The first ping makes both ends resolve their neighbour.
        rig.choose("reno")
        _fetch(rig)
        for _ in range(options.repetitions):
            for name in CONTROLS:
                rig.choose(name)
                took[name].append([_fetch(rig) for _ in range(FETCHES)])
    rows = []
    for name, runs in took.items():
        first = interval([run[0] for run in runs])
        later = interval([statistics.fmean(run[1:]) for run in runs])
        rows.append({"control": name, "first_ms": first, "later_ms": later, "runs_ms": runs})
        print(f"{name:6} first {first[0]:6.1f} ± {first[1]:.1f}, later {later[0]:6.1f} ± {later[1]:.1f} ms", flush=True)
    return {"wire": FETCH.flags(), "summary": rows}


def _fetch(rig: CmRig) -> float:
    time.sleep(FETCH_GAP_S)
    words = ("curl", "-sS", "--fail", "-o", "/dev/null", "-w", "%{time_total} %{size_download}")
    seconds, size = rig.spaces["c"].run(*words, f"http://{SERVER}/file").split()
    if int(float(size)) != FETCH_BYTES:
        raise SystemExit(f"{size} bytes of {FETCH_BYTES} arrived")
    return float(seconds) * 1e3


def losses(options: Any) -> Json:
    """Figure 3: one connection, and one CM-UDP socket, at each loss rate."""

    def at(loss: float) -> Json:
        got: dict[str, list[float]] = {name: [] for name in (*CONTROLS, UDP)}
        wire, name = Wire(LOSS.rate_mbit, LOSS.rtt_ms, loss), f"loss-{loss:g}"
        with cm_rig(wire, name) as rig:
            rig.send()
            for _ in range(options.repetitions):
                for control in CONTROLS:
                    got[control].append(rig.shares([control], 2.0, options.seconds)[0] * 8 / options.seconds / 1e6)
        # Takes about as long as a connection of Reno's.
        count = int(statistics.fmean(got["reno"]) * 1e6 / 8 / UDP_SIZE * (options.seconds + 2.0))
        with calls_rig(wire, name) as calls:
            calls.receive()
            for repetition in range(options.repetitions):
                got[UDP].append(_datagrams(calls, USER + repetition, count))
        return _row({"loss": loss}, got)

    return {"wire": LOSS.flags(), "summary": beside(at, LOSSES)}


def _datagrams(rig: CallsRig, user: int, count: int) -> float:
    """Mb/s of `count` datagrams of a user without history, sent as they are granted."""
    words = [binary("cm-udp"), "send", f"{SERVER}:{PORT}", "--style", "buffered", "--json"]
    words += ["--size", str(UDP_SIZE), "--count", str(count)]
    report = finish(rig.client("send", user, words, stdout=subprocess.PIPE, stderr=subprocess.PIPE), 600.0)
    return float((report["packets"] - report["lost"]) * UDP_SIZE * 8 / report["seconds"] / 1e6)


def sharing(options: Any) -> Json:
    """Groups of connections that share a link with one Reno connection."""

    def of(count: int) -> Json:
        runs: dict[str, list[float]] = {"cm": [], "reno": []}
        jain = []
        with cm_rig(SHARE, f"group-{count}") as rig:
            rig.send()
            for _ in range(options.repetitions):
                for name, shares in runs.items():
                    reno, *group = rig.shares(["reno", *[name] * count], 5.0, 3 * options.seconds)
                    shares.append(sum(group) / reno)
                    if name == "cm":
                        jain.append(sum(group) ** 2 / (count * sum(n * n for n in group)))
        row: Json = {"flows": count, "jain": interval(jain)}
        row |= {name: interval(shares) for name, shares in runs.items()}
        print(
            f"{count:2} beside one of Reno: cm {row['cm'][0]:.2f} ± {row['cm'][1]:.2f} of its share, Jain"
            f" {row['jain'][0]:.4f}; reno {row['reno'][0]:.2f}",
            flush=True,
        )
        return row

    return {"wire": SHARE.flags(), "summary": beside(of, GROUPS)}


def long(options: Any) -> Json:
    """Figures 4 and 5: a long connection, and the cost of its programs in the kernel."""
    got: dict[str, list[float]] = {name: [] for name in CONTROLS}
    with cm_rig(LONG) as rig, _counted():
        rig.send()
        for _ in range(options.repetitions):
            for name in CONTROLS:
                got[name].append(rig.shares([name], 2.0, options.seconds)[0] * 8 / options.seconds / 1e6)
        costs = _costs(rig)
        pairs = [rig.setups(["cm", "reno"], SETUPS) for _ in range(options.repetitions)]
    setups = [statistics.median(cm) / statistics.median(reno) for cm, reno in pairs]
    row = _row({}, got)
    ratios = [cm / reno for cm, reno in zip(got["cm"], got["reno"], strict=True)]
    print(f"an acknowledgement costs {costs['ack_ns']:.0f} ns", flush=True)
    of_reno = {"of_reno": interval(ratios), "setup_of_reno": interval(setups)}
    print(f"a connection's first byte takes {of_reno['setup_of_reno'][0]:.3f} of Reno's time", flush=True)
    return {"wire": LONG.flags(), "summary": [row], **of_reno, "costs": costs}


@contextmanager
def _counted() -> Iterator[None]:
    """Makes the kernel measure BPF programs during the block."""
    before = STATS.read_text()
    STATS.write_text("1")
    try:
        yield
    finally:
        STATS.write_text(before)


def _costs(rig: CmRig) -> Json:
    """Runs, and ns per run, of each BPF program. An acknowledgement runs cong_control."""
    programs = {
        one["name"]: {"runs": one["runs"], "ns": one["time"] / max(one["runs"], 1)}
        for one in json.loads(rig.cm("status", "--json"))["programs"]
    }
    # The kernel truncates names.
    return {"programs": programs, "ack_ns": programs["cm_tcp_cong_control"[:15]]["ns"]}


def _row(row: Json, got: dict[str, list[float]]) -> Json:
    row |= {name: interval(values) for name, values in got.items()}
    words = ", ".join(f"{name} {row[name][0]:.2f} ± {row[name][1]:.2f}" for name in got)
    print((f"{row['loss'] * 100:g} % loss: " if "loss" in row else "") + words + " Mb/s", flush=True)
    return row


PARTS: dict[str, Callable[[Any], Json]] = {
    "fetches": fetches,
    "rivulet": cm_rivulet.fetches,
    "losses": losses,
    "sharing": sharing,
    "long": long,
    "costs": cm_costs.costs,
    "kills": cm_kills.kills,
    "liar": cm_liar.liar,
    "layers": cm_layers.layers,
}


def bars(result: Json) -> list[Bar]:
    """The bounds of the parts that were run."""
    found = []
    of = {row["control"]: row for row in result.get("fetches", {}).get("summary", [])}
    if of:
        ratio = of["cm"]["later_ms"][0] / of["reno"]["later_ms"][0]
        found.append(Bar("figure 7: later fetches, of Reno's time", ratio, 0.6, at_most=True))
    found += cm_rivulet.bars(result.get("rivulet", {}))
    for row in result.get("losses", {}).get("summary", []):
        ratio = row["cm"][0] / row["reno"][0]
        what = f"figure 3: throughput at {row['loss'] * 100:g} % loss, of Reno's"
        found += [Bar(what, ratio, 0.9), Bar(what, ratio, 1.1, at_most=True)]
        what, ratio = what.replace("throughput", "CM-UDP's throughput"), row[UDP][0] / row["reno"][0]
        found += [Bar(what, ratio, 0.9), Bar(what, ratio, 1.1, at_most=True)]
    for row in result.get("sharing", {}).get("summary", []):
        what = f"{row['flows']} connections beside one of Reno"
        share = (f"{what}: its share", row["cm"][0])
        found += [Bar(*share, 0.8), Bar(*share, 1.25, at_most=True)]
        found.append(Bar(f"{what}: Jain's index among them", row["jain"][0], 0.99))
    if "long" in result:
        mean, half = result["long"]["of_reno"]
        found.append(Bar("figure 4: throughput of Reno's, upper end of the interval", mean + half, 0.995))
        mean, half = result["long"]["setup_of_reno"]
        what = "figure 5: time until a connection's first byte, of Reno's, lower end of the interval"
        found.append(Bar(what, mean - half, 1.005, at_most=True))
        found.append(Bar("figure 5: ns an acknowledgement", result["long"]["costs"]["ack_ns"], 300, at_most=True))
    parts = (("costs", cm_costs), ("kills", cm_kills), ("liar", cm_liar), ("layers", cm_layers))
    for name, part in parts:
        found += part.bars(result[name]) if name in result else []
    return found


def main() -> int:
    """Runs it and writes bench/results/cm.json."""
    parser = flags(__doc__ or "", repetitions=10)
    parser.set_defaults(seconds=10.0)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--packets", type=int, default=cm_costs.PACKETS, help="packets of each run of the part `costs`")
    parser.add_argument("--kills", type=int, default=1000, help="kills of the part `kills`")
    parser.add_argument("--update", action="store_true", help="replace the stored results of --parts")
    options = parser.parse_args()
    if options.update and options.repetitions < 10:
        parser.error("--update: what has ten repetitions is kept")
    keep = options.repetitions >= 10 and (options.update or set(options.parts) == set(PARTS))
    kept: Json = load("cm") if options.update else {}
    result: Json = {}
    for part in options.parts:
        print(f"-- {part}", flush=True)
        result[part] = PARTS[part](options)
        if keep:
            kept = updated(kept, result, [part])
            print(f"{part} is kept: {save('cm', kept)}", flush=True)
    if not keep:
        print("not all parts were run: the result is not stored")
    return judge(bars(result))


if __name__ == "__main__":
    sys.exit(main())
