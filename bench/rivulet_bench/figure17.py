"""Figure 17: fairness of two clients at two servers: per-packet round robin against fixed connections.

Each client has several connections, on each of which it fetches a large file again and again; Jain's index is that of
the clients' bytes. Each server's queue holds one bandwidth-delay product. In a longer one, two windows need more time
than a run has to become equal, and with a new connection for each file slow starts decide (docs/simulator.md). A TCP
connection stays at the replica of its flow hash (in place of least connections: each replica gets half of them);
Rivulet's packets go round robin.
"""

from __future__ import annotations

import sys

from rivulet_demo.fairness import jain

from .bars import Bar, judge
from .plot import Points, lines
from .rig import Setting, Transport, finish, flags, plot_path, put, rig, start_load
from .stats import Json, interval, save

CONNECTIONS = (1, 2, 4, 8)
TRANSPORTS: tuple[Transport, ...] = ("rivulet", "tcp")
QUEUE = 50
"""Packets: one bandwidth-delay product of a server's link (50 Mb/s, 10 ms) is 42, and no link of the rack has less."""
FETCHES = 1_000_000
"""Most fetches on one connection, which no run reaches."""
JAIN = 0.98
"""Bound of Jain's index of the two clients with per-packet round robin."""


def bars(result: Json) -> list[Bar]:
    """Rivulet's fairness at each number of connections."""
    return [
        Bar(f"{row['connections']} connections: Jain's index of the clients", row["jain"], JAIN)
        for row in result["summary"]
        if row["transport"] == "rivulet"
    ]


def main() -> int:
    """Runs the bench and writes bench/results/figure17.json and .png."""
    options = flags(__doc__ or "").parse_args()
    # The servers' links are the bottleneck, as in the paper.
    setting = Setting(rate_mbit=100.0, replicas=2, policy="round_robin")
    path = put("2m.bin", 2_000_000)
    rows = []
    with rig("figure17", setting) as standing:
        for name in ("r1", "r2"):
            standing.rack.set_link(name, rate="50mbit", queue=str(QUEUE))
        for connections in CONNECTIONS:
            for repetition in range(options.repetitions):
                for transport in TRANSPORTS:
                    running = [
                        start_load(
                            standing,
                            host,
                            transport,
                            path,
                            seconds=options.seconds,
                            clients=connections,
                            per_connection=FETCHES,
                        )
                        for host in ("c1", "c2")
                    ]
                    results = [finish(load, options.seconds + 60) for load in running]
                    index = jain([float(result["bytes"]) for result in results])
                    rows.append(
                        {
                            "transport": transport,
                            "connections": connections,
                            "repetition": repetition,
                            "jain": index,
                            "bytes": [result["bytes"] for result in results],
                            "errors": sum(result["errors"] for result in results),
                        }
                    )
                    print(f"{connections:3} connections  {transport:8} Jain's index {index:.4f}", flush=True)
    series: dict[str, Points] = {}
    summary = []
    for transport in TRANSPORTS:
        points = []
        for connections in CONNECTIONS:
            chosen = [r["jain"] for r in rows if r["connections"] == connections and r["transport"] == transport]
            mean, half = interval(chosen)
            points.append((float(connections), mean, half))
            summary.append({"transport": transport, "connections": connections, "jain": mean, "half_width_95": half})
        series[transport] = points
    title = "two clients, two servers of 50 Mb/s: Jain's index of the clients' shares"
    lines(plot_path("figure17"), series, "connections of each client", "Jain's index", title)
    result = {"setting": title, "summary": summary, "runs": rows}
    print(save("figure17", result))
    return judge(bars(result))


if __name__ == "__main__":
    sys.exit(main())
