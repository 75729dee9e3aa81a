"""Figure 16 with live replicas: the cost of a kill, over many kills, and kernel TCP for comparison.

Long downloads at 100 Mb/s and 10 ms; in each, one or two of three replicas are killed with SIGKILL at random times
and restarted. For each kill: the longest time without a new in-order byte at the application, the time of the
exclusion at the switch, and the time until goodput is at 90 % of its former value. Bounds: the median stall is at
most the exclusion bound plus 3 round trips, its 99th percentile plus 6; goodput is back within 20 ms in the median and
within 150 ms after nine of ten kills. Round trips are those under load, measured in the same run: the link's queue
holds one bandwidth-delay product, so they are up to twice those of the idle link, which are reported too.
"""

from __future__ import annotations

import math
import random
import sys
import time
from typing import Any

from rivulet_demo.meter import longest_gap, recovered_after
from rivulet_demo.scenario import Standing
from rivulet_demo.services import make_file, ping_ms
from rivulet_lab import RackError

from .bars import Bar, judge
from .plot import histogram
from .rig import BUILD, Setting, flags, plot_path, rig
from .soak import Chaos
from .stats import Json, percentile, save

SIZE = 60_000_000
BEFORE_S = 0.5
"""Seconds before a kill from which its former goodput is computed."""

SETTLE_S = 0.8
"""Least seconds from a replica's return to the next kill, so that the window has recovered."""

BACK_MS = {"p50": 20.0, "p90": 150.0}
"""Bounds of the time until goodput is back."""
SPAN_ROUND_TRIPS = 4
"""Round trips that must have 90 % of the former goodput together."""


def one(standing: Standing, chaos: Chaos, rng: random.Random, client: str, host: str, via: str) -> list[dict[str, Any]]:
    """A download with kills; one row per kill."""
    standing.rack.until(chaos.all_up, "the replicas come back", 60.0)
    first, seen = len(chaos.kills), len(standing.watch.history)
    standing.client(client, host, via, f"figure16-{SIZE}.bin", SIZE)
    process, _ = standing.clients[client]
    began = time.monotonic()
    due = began + 1.2
    while process.running():
        chaos.bring_back()
        now = time.monotonic()
        if now >= due and chaos.all_up():
            chaos.strike()
            due = now + 1.5 * SETTLE_S + rng.uniform(0.0, 0.5)
        if now - began > 120.0:
            raise RackError("a download does not end")
        time.sleep(0.0005)
    result = standing.result(client)
    samples = [(float(at), int(count)) for at, count in result["samples"]]
    rtt = standing.parameters.rtt_ms / 1e3
    excluded = [(at, who) for at, who, out in standing.watch.history[seen:] if out]
    rows = []
    kills = chaos.kills[first:]
    # Two at once are one event for the client: it is measured from the first, and the stall counts once.
    for place, (at, who) in enumerate(kills):
        if place and at - kills[place - 1][0] < 0.1:
            continue
        if at < samples[0][0] + BEFORE_S or at > samples[-1][0] - 0.5:
            continue
        back = recovered_after(samples, at, BEFORE_S, SPAN_ROUND_TRIPS * rtt)
        seen_after = [when - at for when, name in excluded if name == who and when >= at]
        rows.append(
            {
                "client": client,
                "replicas": sum(1 for other, _ in kills if 0 <= other - at < 0.1),
                "stall_ms": round(longest_gap(samples, at, at + 0.5) * 1e3, 2),
                "recovered_ms": None if back is None else round(back * 1e3, 1),
                "exclusion_ms": round(min(seen_after) * 1e3, 1) if seen_after else None,
                "connections": result["connections_opened"],
                "whole": int(result["complete"]),
            }
        )
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Percentiles of one client's kills."""
    stalls = [row["stall_ms"] for row in rows]
    back = [row["recovered_ms"] if row["recovered_ms"] is not None else float("inf") for row in rows]
    out = [row["exclusion_ms"] for row in rows if row["exclusion_ms"] is not None]
    found: dict[str, Any] = {"kills": len(rows), "broken": sum(r["connections"] != 1 for r in rows)}
    for name, values in (("stall_ms", stalls), ("recovered_ms", back), ("exclusion_ms", out)):
        if values:
            found[name] = {f"p{p}": finite(percentile(values, p)) for p in (10, 50, 90, 99, 100)}
    return found


def finite(value: float) -> float | None:
    """None for infinity, which JSON lacks."""
    return round(value, 1) if value < float("inf") else None


def bars(result: Json) -> list[Bar]:
    """Cost of a kill for a Rivulet connection, in terms of the exclusion bound and the round trip under load."""
    mine, bounds = result["clients"]["rivulet"], result["bounds"]
    back = mine["recovered_ms"]
    return [
        Bar("median stall, ms", mine["stall_ms"]["p50"], bounds["stall_p50_ms"], at_most=True),
        Bar("99th percentile of the stall, ms", mine["stall_ms"]["p99"], bounds["stall_p99_ms"], at_most=True),
        *(
            Bar(f"{name} until goodput is back, ms", math.nan if back[name] is None else back[name], most, at_most=True)
            for name, most in BACK_MS.items()
        ),
        Bar("broken connections", mine["broken"], 0, at_most=True),
    ]


def main() -> int:
    """Runs the bench and writes bench/results/figure16.json and .png; 0 if the bounds are kept."""
    parser = flags(__doc__ or "")
    parser.add_argument("--kills", type=int, default=100, help="kills of the Rivulet client")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=600.0, help="time limit in seconds")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    setting = Setting()
    make_file(BUILD / "www", f"figure16-{SIZE}.bin", SIZE)
    rows: list[dict[str, Any]] = []
    began = time.monotonic()
    with rig("figure16", setting) as standing:
        idle = ping_ms(standing.rack, "c1", standing.rack.spec.of("replica")[0].ip)
        bound = standing.parameters.liveness_ms
        chaos = Chaos(standing, rng)
        loaded: list[float] = []
        while len([r for r in rows if r["client"] == "rivulet"]) < options.kills:
            if time.monotonic() - began > options.limit:
                break
            rows += one(standing, chaos, rng, "rivulet", "c1", standing.via_rivulet("c1"))
            # One TCP download for two Rivulet ones, since it is only for comparison.
            if len(rows) % 2 == 0:
                rows += one(standing, chaos, rng, "tcp", "c2", "")
            print(f"\r{len(rows)} kills   ", end="", flush=True)
        standing.client("rtt", "c1", standing.via_rivulet("c1"), f"figure16-{SIZE}.bin", SIZE)
        while standing.clients["rtt"][0].running():
            if standing.so_far("rtt") > SIZE / 10 and len(loaded) < 5:
                loaded.append(ping_ms(standing.rack, "c1", standing.rack.spec.of("replica")[0].ip))
            time.sleep(0.05)
    print()
    rtt = max(idle, percentile(loaded, 50)) if loaded else idle
    clients = {name: summary([r for r in rows if r["client"] == name]) for name in ("rivulet", "tcp")}
    bounds = {
        "stall_p50_ms": round(bound + 3 * rtt, 1),
        "stall_p99_ms": round(bound + 6 * rtt, 1),
    }
    title = f"{setting.rate_mbit:g} Mb/s, {setting.rtt_ms:g} ms, exclusion bound {bound:g} ms"
    series = {name: [r["stall_ms"] for r in rows if r["client"] == name] for name in ("rivulet", "tcp")}
    histogram(plot_path("figure16"), series, "longest time without a new byte after a kill, ms", title)
    result = {
        "setting": title,
        "rtt_ms": {"idle": idle, "under_load": round(rtt, 2)},
        "clients": clients,
        "bounds": bounds,
        "seed": options.seed,
        "runs": rows,
    }
    print(save("figure16", result), clients)
    return judge(bars(result))


if __name__ == "__main__":
    sys.exit(main())
