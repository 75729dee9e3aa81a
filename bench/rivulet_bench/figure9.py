"""Figure 9: aggregate throughput of many clients that fetch a 500 kB file again and again, a new connection each.

Rivulet and kernel TCP (Reno) in the same run, turn by turn, through the same switch and the same links.
"""

from __future__ import annotations

import sys

from .plot import Points, lines
from .rig import Setting, Transport, flags, load, plot_path, put, rig
from .stats import interval, save

CLIENTS = (1, 10, 100, 1000)
WARM_S = 1.0
"""Slow start and, with many clients, the first rush."""

TRANSPORTS: tuple[Transport, ...] = ("rivulet", "tcp")


def main() -> int:
    """Runs it and writes bench/results/figure9.json and .png."""
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
                    # A thousand clients take a while to start; what comes after that counts, whole answers or not.
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
    print(save("figure9", {"setting": title, "summary": summary, "runs": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
