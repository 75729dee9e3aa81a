"""The wide area (Figures 13 to 15): Rivulet by Reno and by Cubic beside kernel TCP by Reno, Cubic and BBR.

One server and one client on an emulated wire of 100 Mb/s. `paths` is Figure 15 on an emulated network: one connection
at round trips of 10 to 300 ms, with loss each way, jitter or reordering. `background` is Figure 13: one connection
among connections of kernel TCP by Reno. `pipelined` is Figure 14: objects of 20 and 250 kB, ten requests at a time on
one connection. `cubic` has Cubic's own bars. All kinds take turns within each repetition.
"""

from __future__ import annotations

import csv
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rivulet_lab import Process, RackError, binary

from .bars import Bar, judge
from .host_rig import RIVULET_PORT, SERVICE, TCP_PORT, HostRig, Transport, host_rig
from .rig import finish, flags, plot_path
from .stats import RESULTS, Json, load, save, updated
from .wide_plot import plot, words

RATE_MBIT = 100.0
KINDS = ("rivulet", "rivulet-cubic", "reno", "cubic", "bbr")
CUBIC_PORT = 82
"""Port of the replica that uses Cubic."""
LEAST_OF_RENO = 0.9
PIPELINED_OF_RENO = 0.95
CUBIC_TIMES_RENO = 2.0
FAIR = (0.8, 1.25)
OUTSTANDING = 10
"""Requests at a time on a pipelined connection, as in section 5.2 of the paper."""
BIGGEST = 400_000_000
"""Bytes of the file of downloads that a time limits."""

PIPELINE = """
import json, socket, sys, time
host, port, path, size, outstanding, seconds = sys.argv[1], int(sys.argv[2]), *sys.argv[3:4], *map(int, sys.argv[4:7])
stream = socket.create_connection((host, port), timeout=60)
stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
request = f"GET /{path} HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n".encode()
began = time.monotonic()
stream.sendall(request)
first = b""
while b"\\r\\n\\r\\n" not in first:
    first += stream.recv(65536)
head = first.index(b"\\r\\n\\r\\n") + 4
answer = head + size  # heads of one file have one length, up to the date's constant width
got, asked, warm, counted = len(first), 1, began + seconds / 4, None
while (now := time.monotonic()) < began + seconds:
    wanted = got // answer + outstanding
    if asked < wanted:
        stream.sendall(request * (wanted - asked))
        asked = wanted
    got += len(stream.recv(1 << 18))
    if counted is None and now >= warm:
        counted, warm = got, now
mbps = (got - counted) * 8 / (time.monotonic() - warm) / 1e6
print(json.dumps({"errors": 0, "mbps": mbps * size / answer}))
"""


@dataclass(frozen=True, slots=True)
class Wire:
    """Settings of the wire; loss applies each way, jitter and reordering to data."""

    rtt_ms: float
    loss: float = 0.0
    jitter_ms: float = 0.0
    reorder: float = 0.0

    def words(self) -> dict[str, list[str]]:
        """Settings of rivulet-wire for each direction; end `a` is the server's."""
        queue = max(int(RATE_MBIT * 1e6 * self.rtt_ms / 1e3 / 8 / 1514), 32)
        way = [f"delay={self.rtt_ms / 2:g}ms", f"loss={self.loss:g}"]
        down = [f"rate={RATE_MBIT:g}mbit", f"queue={queue}", f"jitter={self.jitter_ms:g}ms"]
        down += [f"reorder={self.reorder:g}", f"reorder-by={max(self.rtt_ms / 10, 0.1):g}ms"]
        return {"a-to-b": [*way, *down], "b-to-a": [*way, "queue=10000"]}

    @property
    def name(self) -> str:
        """As printed."""
        parts = [f"{self.rtt_ms:g} ms"]
        parts += [f"{self.loss * 100:g} % lost"] if self.loss else []
        parts += [f"±{self.jitter_ms:g} ms"] if self.jitter_ms else []
        parts += [f"{self.reorder * 100:g} % reordered"] if self.reorder else []
        return ", ".join(parts)


ALL_PATHS = (
    *(Wire(rtt, loss) for rtt in (10, 50, 100, 200, 300) for loss in (0.0, 0.001, 0.01, 0.05)),
    *(Wire(rtt, jitter_ms=rtt / 20) for rtt in (10, 100)),
    *(Wire(rtt, reorder=0.01) for rtt in (10, 100)),
)
SHORT_PATHS = (
    Wire(10),
    Wire(100),
    Wire(10, 0.01),
    Wire(100, 0.001),
    Wire(100, 0.01),
    Wire(300, 0.001),
    Wire(50, 0.05),
    Wire(50, jitter_ms=2.5),
    Wire(50, reorder=0.01),
)


class Wide:
    """The rig with one replica for each congestion control, and nginx."""

    def __init__(self, rig: HostRig) -> None:
        self.rig = rig
        rig.put(BIGGEST)
        for size in (20_000, 250_000):
            rig.put(size)
        rig.start_nginx()
        rig.start_rivulet()
        rig.start_rivulet("--congestion", "cubic", port=CUBIC_PORT, name="rivulet-cubic")
        known = rig.run("s", ["sysctl", "-n", "net.ipv4.tcp_available_congestion_control"]).split()
        self.kinds = tuple(kind for kind in KINDS if kind.startswith("rivulet") or kind in known)
        self.missing = [kind for kind in KINDS if kind not in self.kinds]
        for name in ("s", "c"):
            rig.spaces[name].set("net.ipv4.tcp_no_metrics_save=1", "net.ipv4.tcp_rmem=4096 16777216 33554432")
        rig.spaces["s"].set("net.ipv4.tcp_wmem=4096 4194304 33554432")

    def wire(self, path: Wire) -> None:
        """Changes the running wire to this path."""
        socket = str(self.rig.folder / "wire.sock")
        for direction, settings in path.words().items():
            self.rig.run("m", [binary("rivulet-wire"), "set", socket, direction, *settings])

    def port(self, kind: str) -> int:
        """Port of the server; for kernel TCP it also sets the congestion control of later connections."""
        if kind.startswith("rivulet"):
            return RIVULET_PORT if kind == "rivulet" else CUBIC_PORT
        route = ["10.77.0.0/16", "dev", "s0", "src", "10.77.0.1", "congctl", kind]
        self.rig.run("s", ["ip", "route", "change", *route])
        return TCP_PORT

    def start(self, kind: str, seconds: float, warm: float, clients: int = 1) -> Process:
        """Starts downloads that count bytes from `warm` to `seconds`."""
        transport: Transport = "rivulet" if kind.startswith("rivulet") else "tcp"
        limits = {"clients": clients, "seconds": f"{seconds:g}", "warm": f"{warm:g}", "requests": 1, "timeout": 60}
        options = [word for name, value in limits.items() for word in (f"--{name}", str(value))]
        return self.rig.start_load(transport, f"{BIGGEST}.bin", *options, port=self.port(kind))

    def download(self, kind: str, seconds: float) -> float:
        """Mb/s of one connection without its first fifth."""
        return mbps(finish(self.start(kind, seconds, seconds / 5), seconds + 60), kind)

    def among(self, kind: str, background: int, seconds: float) -> float:
        """Mb/s of one connection among connections of kernel TCP by Reno, which start a second earlier."""
        if not background:
            return self.download(kind, seconds)
        others = self.start("reno", seconds + 2, 1, background)
        time.sleep(1)
        rate = self.download(kind, seconds)
        finish(others, seconds + 60)
        return rate

    def beside(self, kind: str, other: str, seconds: float) -> float:
        """Bytes of one connection divided by those of another at the same time."""
        first = self.start(other, seconds, seconds / 3)
        time.sleep(0.3)  # the route's congestion control applies to connections that it opens
        second = self.start(kind, seconds, seconds / 3)
        rate = mbps(finish(second, seconds + 60), kind)
        return rate / mbps(finish(first, seconds + 60), other)

    def pipeline(self, kind: str, size: int, seconds: float) -> float:
        """Mb/s of objects, ten requests at a time on one connection.

        Kernel TCP pipelines, and the rate is that without the first quarter. Rivulet's requests are parallel streams
        of one connection, as in the paper (`msk_request`).
        """
        if kind.startswith("rivulet"):
            limits = ("--clients", str(OUTSTANDING), "--seconds", f"{seconds:g}", "--per-connection", "1000000")
            load = self.rig.start_load("rivulet", f"{size}.bin", *limits, port=self.port(kind))
            return mbps(finish(load, seconds + 60), kind)
        arguments = [SERVICE, self.port(kind), f"{size}.bin", size, OUTSTANDING, max(round(seconds), 2)]
        client = [sys.executable, "-c", PIPELINE, *map(str, arguments)]
        return mbps(finish(self.rig.client(client), seconds + 60), kind)


def mbps(result: Json, kind: str) -> float:
    """The rate of a load; RackError if a request failed."""
    if result["errors"]:
        raise RackError(f"{kind}: {result.get('first_error', result['errors'])}")
    return float(result["mbps"])


def turns(kinds: Sequence[str], repetitions: int, measure: Callable[[str], float]) -> Json:
    """Rates of each kind, which take turns so that other work of the machine affects all alike."""
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(repetitions):
        for kind in kinds:
            rates[kind].append(measure(kind))
    return {kind: {"median": statistics.median(got), "runs": got} for kind, got in rates.items()}


def print_rates(point: str, rates: Json) -> None:
    """Prints the medians of a point."""
    print(f"{point:42}" + "  ".join(f"{kind} {row['median']:.1f}" for kind, row in rates.items()), flush=True)


def run_paths(wide: Wide, paths: Sequence[Wire], repetitions: int, seconds: float) -> list[Json]:
    """One connection on each path. Long round trips get more time, for slow start and recovery."""
    rows = []
    for path in paths:
        wide.wire(path)
        length = max(seconds, path.rtt_ms / 1e3 * 100)
        rates = turns(wide.kinds, repetitions, lambda kind, length=length: wide.download(kind, length))  # type: ignore[misc]
        print_rates(path.name, rates)
        rows.append({**asdict(path), "name": path.name, "seconds": length, "rates": rates})
    return rows


def run_background(wide: Wide, counts: Sequence[int], repetitions: int, seconds: float) -> list[Json]:
    """Figure 13: one connection among others, at 20 ms."""
    wide.wire(Wire(20))
    rows = []
    for count in counts:
        rates = turns(wide.kinds, repetitions, lambda kind, count=count: wide.among(kind, count, seconds))  # type: ignore[misc]
        print_rates(f"among {count}", rates)
        rows.append({"background": count, "rates": rates})
    return rows


def run_pipelined(wide: Wide, rtts: Sequence[float], repetitions: int, seconds: float) -> list[Json]:
    """Figure 14, and the paper's 250 kB at 10 ms."""
    rows = []
    for size, rtt in [(size, rtt) for size in (20_000, 250_000) for rtt in rtts]:
        wide.wire(Wire(rtt))
        rates = turns(wide.kinds, repetitions, lambda kind, size=size: wide.pipeline(kind, size, seconds))  # type: ignore[misc]
        print_rates(f"{size // 1000} kB, {rtt:g} ms", rates)
        rows.append({"bytes": size, "rtt_ms": rtt, "rates": rates})
    return rows


def run_cubic(wide: Wide, repetitions: int, seconds: float) -> list[Json]:
    """Cubic beside Cubic of the kernel, one connection each, at 20 and 100 ms."""
    rows = []
    for rtt in (20.0, 100.0):
        wide.wire(Wire(rtt))
        length = max(seconds, 30.0)
        shares = [wide.beside("rivulet-cubic", "cubic", length) for _ in range(repetitions)]
        print(f"Cubic beside the kernel's at {rtt:g} ms: {', '.join(f'{share:.2f}' for share in shares)}", flush=True)
        rows.append({"rtt_ms": rtt, "shares": shares, "median": statistics.median(shares)})
    return rows


def bars(result: Json) -> list[Bar]:
    """Bounds relative to the kernel's Reno and Cubic in the same run."""
    found = []
    for row in result.get("paths", []):
        rates = {kind: row["rates"][kind]["median"] for kind in row["rates"]}
        found.append(Bar(f"{row['name']}: of Reno's rate", rates["rivulet"] / rates["reno"], LEAST_OF_RENO))
        if (row["rtt_ms"], row["loss"]) == (100, 0.001):
            what = f"{row['name']}: Rivulet by Cubic, times the kernel's Reno"
            found.append(Bar(what, rates["rivulet-cubic"] / rates["reno"], CUBIC_TIMES_RENO))
    for row in result.get("background", []):
        rates = {kind: row["rates"][kind]["median"] for kind in row["rates"]}
        what = f"among {row['background']} connections: of Reno's rate there"
        found.append(Bar(what, rates["rivulet"] / rates["reno"], LEAST_OF_RENO))
    for row in result.get("pipelined", []):
        rates = {kind: row["rates"][kind]["median"] for kind in row["rates"]}
        what = f"pipelined {row['bytes'] // 1000} kB, {row['rtt_ms']:g} ms: of Reno's rate"
        found.append(Bar(what, rates["rivulet"] / rates["reno"], PIPELINED_OF_RENO))
    for row in result.get("cubic", []):
        what = f"Cubic beside the kernel's Cubic at {row['rtt_ms']:g} ms: its share"
        found += [Bar(what, row["median"], FAIR[0]), Bar(what, row["median"], FAIR[1], at_most=True)]
    return found


def table_of(result: Json) -> list[Json]:
    """A row of the CSV for each run of a kind."""
    rows = []
    for part in ("paths", "background", "pipelined"):
        for row in result.get(part, []):
            point = row.get("name") or ", ".join(f"{key} {row[key]}" for key in row if key != "rates")
            for kind, rates in row["rates"].items():
                rows += [{"part": part, "point": point, "kind": kind, "mbps": rate} for rate in rates["runs"]]
    for row in result.get("cubic", []):
        point = f"{row['rtt_ms']:g} ms, share of the kernel's Cubic"
        rows += [{"part": "cubic", "point": point, "kind": "rivulet-cubic", "mbps": s} for s in row["shares"]]
    return rows


def write_csv(path: Path, result: Json) -> None:
    """Writes all runs."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["part", "point", "kind", "mbps"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(table_of(result))


__all__ = ("bars", "main", "words")
PARTS = ("paths", "background", "pipelined", "cubic")


def main() -> int:
    """Runs the bench and writes bench/results/wide.json, .csv and .png."""
    parser = flags(__doc__ or "", repetitions=3)
    parser.set_defaults(seconds=10.0)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="measure these alone")
    parser.add_argument("--full", action="store_true", help="all 24 paths (about two hours) instead of nine")
    parser.add_argument("--rtt", type=float, nargs="+", help="only the paths with these round trips, ms")
    parser.add_argument("--loss", type=float, nargs="+", help="only the paths with these losses, as 0.01")
    parser.add_argument("--background", type=int, nargs="+", default=(0, 1, 4, 16, 64), help="numbers of connections")
    parser.add_argument("--pipelined-rtt", type=float, nargs="+", default=(10.0, 50.0, 100.0), help="ms")
    parser.add_argument("--note", default="", help="words about the machine during the run, for the results")
    options = parser.parse_args()
    paths = [
        path
        for path in (ALL_PATHS if options.full else SHORT_PATHS)
        if (not options.rtt or path.rtt_ms in options.rtt) and (not options.loss or path.loss in options.loss)
    ]
    with host_rig("wide", rtt_ms=10.0) as rig:
        wide = Wide(rig)
        measures: dict[str, Callable[[], list[Json]]] = {
            "paths": lambda: run_paths(wide, paths, options.repetitions, options.seconds),
            "background": lambda: run_background(wide, options.background, options.repetitions, options.seconds),
            "pipelined": lambda: run_pipelined(wide, options.pipelined_rtt, options.repetitions, options.seconds),
            "cubic": lambda: run_cubic(wide, options.repetitions, options.seconds),
        }
        result: Json = {
            "setting": f"{RATE_MBIT:g} Mb/s, queue of one bandwidth-delay product, {options.repetitions} runs",
            "missing": wide.missing,
            "note": options.note,
        }
        for part in options.parts:
            result[part] = measures[part]()
    if wide.missing:
        print(f"not measured, because this kernel lacks them: {', '.join(wide.missing)}")
    kept = updated(load("wide"), result, (*options.parts, "setting", "missing", "note"))
    print(save("wide", kept))
    write_csv(RESULTS / "wide.csv", kept)
    plot(plot_path("wide"), kept)
    return judge(bars(result))


if __name__ == "__main__":
    sys.exit(main())
