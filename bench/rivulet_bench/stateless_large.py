"""Large downloads by stateless TCP: beside the kernel's Reno and Cubic, through kills behind the ToR, and in parallel.

Output: bench/results/stateless-large.json, and stateless-large-kills.csv with a row per kill. Each part is stored
when it ends.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from . import stateless_kills, stateless_large_long
from . import stateless_large_cost as cost
from . import stateless_large_tor as tor
from . import stateless_large_wire as wire
from .bars import Bar, judge
from .rig import flags
from .stats import load, save, updated
from .words import table

Json = dict[str, Any]

WHOLE = 5
"""Least repetitions of a stored result."""


PARTS: dict[str, Callable[[Any], Any]] = {
    "paths": lambda options: [wire.measure(path, options.repetitions) for path in wire.PATHS],
    "cpu": lambda options: cost.measure(options.repetitions),
    "memory": lambda options: cost.memory(),
    "fairness": lambda options: [wire.beside(flows, max(3, options.repetitions // 2)) for flows in wire.FLOWS],
    "kills": lambda options: tor.kills(options.repetitions),
    "demo": lambda options: tor.demo(max(3, options.repetitions // 3)),
    "long": lambda options: stateless_large_long.long(),
    "many": lambda options: stateless_kills.kills(options.kills, 1200.0, 1, stateless_kills.LARGE),
}


def words(result: Json) -> str:
    """Its section of the results."""
    said = []
    if "paths" in result:
        head = ("Mb/s, round trip, lost each way", *wire.KINDS, "large, of Reno's")
        rows = [
            (
                f"{row['rate_mbit']:g}, {row['rtt_ms']:g} ms, {row['loss'] * 100:g} %",
                *(f"{row['medians'][kind]:,.1f} ({row[kind][0]:,.1f} ± {row[kind][1]:.1f})" for kind in wire.KINDS),
                f"{row['medians']['large'] / row['medians']['reno']:.2f}",
            )
            for row in result["paths"]
        ]
        said += [
            "Mb/s of a download by curl, one replica without a ToR beside nginx, medians (and means):",
            table(head, rows),
        ]
    if "cpu" in result:
        columns = (
            "Mb/s",
            *(f"{kind}, {what}" for kind in cost.KINDS for what in ("Mb/s", "core seconds a GB")),
            "large, of Reno's",
        )
        rows = [
            (
                f"{row['rate_mbit']:g}" if row["rate_mbit"] else "unshaped",
                *(
                    f"{row[kind][what]:,.{digits}f}"
                    for kind in cost.KINDS
                    for what, digits in (("mbps", 0), ("core_s_per_gb", 2))
                ),
                f"{row['large']['core_s_per_gb'] / row['reno']['core_s_per_gb']:.2f}",
            )
            for row in result["cpu"]
        ]
        said += ["Cost of a download on the server's core, without offloads:", table(columns, rows)]
    if "memory" in result:
        rows = [
            (
                f"{row['downloads']:,}",
                "on" if row["soft"] else "off",
                f"{row['bytes'] / 1e6:,.1f}",
                f"{row['bytes_each']:.2f}",
            )
            for row in result["memory"]
        ]
        said += ["Memory while the clients of open downloads have closed their windows in the middle:"]
        said += [table(("downloads", "soft state", "MB", "bytes each"), rows)]
    if "fairness" in result:
        rows = [
            (str(row["flows"]), f"{row['median']:.2f}", ", ".join(f"{share:.2f}" for share in row["shares"]))
            for row in result["fairness"]
        ]
        said += ["Share of Reno's throughput, beside as many Reno downloads on one wire of 100 Mb/s:"]
        said += [table(("downloads", "median", "each"), rows)]
    if "kills" in result:
        part = result["kills"]
        stalls = ", ".join(f"{name} {value} ms" for name, value in part["stall_ms"].items())
        said.append(
            f"{len(part['downloads'])} downloads of {part['megabytes']:g} MB at 100 Mb/s and 10 ms, in each of which"
            f" the sending replica was killed three times: {part['broken']} broken, stall {stalls},"
            f" {part['of_reno']:.2f} of the rate of Reno that met no kill."
        )
    if "demo" in result:
        rows = [
            (
                f"{part['rate_mbit']:g}",
                name,
                *(f"{part['medians'][what][name]:.1f}" for what in ("one", "three", "kills")),
            )
            for part in result["demo"]
            for name in part["medians"]["one"]
        ]
        said += ["The three clients of `make demo`, Mb/s:"]
        said += [table(("link, Mb/s", "client", "one replica", "three", "three, two killed"), rows)]
    if "long" in result:
        part = result["long"]
        said.append(
            f"A download of {part['megabytes']:g} MB through {part['kills']} kills, {part['pauses']} times closed"
            f" for a minute, to a client with `tcp_retries2={part['retries']}`:"
            f" {part['seconds'] / 60:.1f} minutes, {part['broken']} broken,"
            f" longest stall {part['longest_gap_s']:.1f} s."
        )
    if "many" in result:
        part = result["many"]
        said.append(
            f"{part['kills']:,} kills under {part['requests']:,} downloads of 1 kB to 100 MB: {part['failed']} failed,"
            f" {part['wrong']} with wrong bytes. Rows: `bench/results/stateless-large-kills.csv`."
        )
    return "\n\n".join(said)


def bars(result: Json) -> list[Bar]:
    """The bounds of the parts that were run."""
    found = wire.bars(result) + cost.bars(result) + tor.bars(result) + stateless_large_long.bars(result)
    return found + stateless_kills.bars({"kills": result.get("many")})


def main() -> int:
    """Runs the bench and writes bench/results/stateless-large.json."""
    parser = flags(__doc__ or "", repetitions=WHOLE)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--kills", type=int, default=stateless_kills.KILLS, help="kills of the part `many`")
    options = parser.parse_args()
    keep = options.repetitions >= WHOLE and options.kills >= stateless_kills.KILLS
    result: Json = {}
    kept: Json = load("stateless-large")
    for part in options.parts:
        print(f"-- {part}", flush=True)
        result[part] = PARTS[part](options)
        if keep:
            kept = updated(kept, result, [part])
            print(f"{part} is stored: {save('stateless-large', kept)}", flush=True)
    if not keep:
        print("not all parts were run: the result is not stored")
    return judge(bars(result))


if __name__ == "__main__":
    sys.exit(main())
