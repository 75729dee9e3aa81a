"""Figure 9: aggregate throughput of many clients that fetch a 500 kB file repeatedly, each time over a new connection.

Rivulet and kernel TCP (Reno) alternate in one run, through the same switch and links.
"""

from __future__ import annotations

import sys

from .bars import Bar, judge
from .plot import Points, lines
from .rig import Setting, Transport, flags, load, plot_path, put, rig
from .stats import Json, interval, save

CLIENTS = (1, 10, 100, 1000)
WARM_S = 1.0
"""Warm-up: slow start and, with many clients, their simultaneous start, seconds."""

TRANSPORTS: tuple[Transport, ...] = ("rivulet", "tcp")
OF_TCP = 0.97
"""Bound relative to kernel TCP's aggregate, at ten clients and more (the paper's section 8 has 0.9)."""


def bars(result: Json) -> list[Bar]:
    """The aggregate of many clients, relative to kernel TCP in the same run."""
    mbps = {(row["transport"], row["clients"]): row["mbps"] for row in result["summary"]}
    return [
        Bar(f"{clients:,} clients: aggregate, of kernel TCP", mbps["rivulet", clients] / mbps["tcp", clients], OF_TCP)
        for transport, clients in mbps
        if transport == "rivulet" and clients >= 10
    ]


def main() -> int:
    """Runs the bench and writes bench/results/figure9.json and .png."""
    parser = flags(__doc__ or "")
    parser.add_argument("--clients", type=int, nargs="+", default=list(CLIENTS))
    options = parser.parse_args()
    rows = []
    setting = Setting()
    path = put("500k.bin", 500_000)
    with rig("figure9", setting) as standing:
        for clients in options.clients:
            for repetition in range(options.repetitions):
                for transport in TRANSPORTS:
                    # A thousand clients take a while to start; bytes after that count, of incomplete answers too.
                    warm = WARM_S + clients / 250
                    result = load(standing, "c1", transport, path, warm + options.seconds, clients=clients, warm=warm)
                    rows.append({"repetition": repetition, **{k: v for k, v in result.items() if k != "shares"}})
                    print(
                        f"{clients:5} clients  {transport:8} {result['mbps']:7.1f} Mb/s  {result['errors']} errors",
                        flush=True,
                    )
    series: dict[str, Points] = {}
    summary = []
    for transport in TRANSPORTS:
        points = []
        for clients in options.clients:
            mean, half = interval([r["mbps"] for r in rows if r["clients"] == clients and r["transport"] == transport])
            points.append((float(clients), mean, half))
            errors = sum(r["errors"] for r in rows if r["clients"] == clients and r["transport"] == transport)
            summary.append(
                {"transport": transport, "clients": clients, "mbps": mean, "half_width_95": half, "errors": errors}
            )
        series[transport] = points
    title = f"500 kB files, a new connection each, {setting.rate_mbit:g} Mb/s, {setting.rtt_ms:g} ms"
    lines(plot_path("figure9"), series, "clients", "Mb/s of file bytes", title)
    result = {"setting": title, "summary": summary, "runs": rows}
    print(save("figure9", result))
    return judge(bars(result))


if __name__ == "__main__":
    sys.exit(main())
