"""Stateless TCP: cost of requests, effects of loss, kills and floods, and memory, beside kernel TCP, nginx and DNS
servers.

Output: bench/results/stateless.json, and stateless-kills.csv with a row per kill. --parts chooses parts; only a run
of all parts is stored.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from . import stateless_cost, stateless_dns, stateless_floods, stateless_kills, stateless_loss, stateless_pipelining
from .bars import Bar, judge
from .host import nginx_version
from .host_rig import SERVICE, host_rig
from .rig import flags, plot_path
from .stateless_plot import plot
from .stats import save

Json = dict[str, Any]


def _rates(options: Any) -> Json:
    with host_rig("stateless") as rig:
        return stateless_cost.at_rates(rig, options.repetitions, options.seconds)


def _nginx(options: Any) -> Json:
    with host_rig("stateless") as rig:
        return stateless_cost.beside_nginx(rig, 2 * options.repetitions, options.seconds)


def _memory(options: Any) -> Json:
    with host_rig("stateless") as rig:
        return stateless_cost.memory(rig)


def _loss(options: Any) -> Json:
    with host_rig("stateless", rtt_ms=stateless_loss.RTT_MS) as rig:
        return stateless_loss.lossy(rig, options.transfers)


def _pipelining(options: Any) -> Json:
    with host_rig("stateless", rtt_ms=stateless_pipelining.RTT_MS) as rig:
        return stateless_pipelining.pipelined(rig, options.repetitions)


def _dns(options: Any) -> Json:
    with host_rig("stateless") as rig:
        return stateless_dns.queries(rig, 2 * options.repetitions, options.seconds)


def _kills(options: Any) -> Json:
    return stateless_kills.kills(options.kills, options.kills_limit, options.seed)


def _floods(options: Any) -> Json:
    return stateless_floods.floods(options.repetitions, 3 * options.seconds)


PARTS: dict[str, Callable[[Any], Json]] = {
    "rates": _rates,
    "nginx": _nginx,
    "memory": _memory,
    "loss": _loss,
    "pipelining": _pipelining,
    "kills": _kills,
    "dns": _dns,
    "floods": _floods,
}


def bars(result: Json) -> list[Bar]:
    """The bounds of the parts that were run."""
    parts = (
        stateless_cost,
        stateless_loss,
        stateless_pipelining,
        stateless_kills,
        stateless_dns,
        stateless_floods,
    )
    return [bar for part in parts for bar in part.bars(result)]


def main() -> int:
    """Runs the bench and writes bench/results/stateless.json and .png."""
    parser = flags(__doc__ or "", repetitions=3)
    parser.set_defaults(seconds=1.0)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument(
        "--transfers", type=int, default=stateless_loss.TRANSFERS, help="downloads for each rate of loss"
    )
    parser.add_argument("--kills", type=int, default=stateless_kills.KILLS)
    parser.add_argument("--kills-limit", type=float, default=600.0, help="time limit of the kills in seconds")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    result: Json = {
        "setting": f"a server ({SERVICE}), a client, a veth, offloads off, a core for each end",
        "nginx_version": nginx_version(),
    }
    began = time.monotonic()
    for part in options.parts:
        print(f"-- {part}", flush=True)
        result[part] = PARTS[part](options)
    result["took_s"] = time.monotonic() - began
    whole = set(options.parts) == set(PARTS) and options.transfers >= stateless_loss.TRANSFERS
    if whole and options.kills >= stateless_kills.KILLS:
        plot(plot_path("stateless"), result)
        print(save("stateless", result))
    else:
        print("not all parts were run: the result is not stored")
    return judge(bars(result))


if __name__ == "__main__":
    sys.exit(main())
