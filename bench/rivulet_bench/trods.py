"""TRODS: the effect of a replica's death on plain connections, and the cost of their protection.

Compared are nginx alone, TRODS, TRODS with `--wake client`, and kernel TCP with a client that reconnects.

Output: bench/results/trods.json, and trods-kills.csv with a row per kill. --parts chooses parts; only a run of all
parts is stored, or with --update the parts that were measured again, which then have their own date.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from . import trods_cost, trods_crowd, trods_flood, trods_kills, trods_moves, trods_stall
from .bars import Bar, judge
from .host import nginx_version
from .rig import flags, plot_path
from .stats import load, save, updated
from .trods_host import trods_host_rig
from .trods_plot import plot
from .trods_rack import HARMS

Json = dict[str, Any]

ROUNDS = 2
"""Upgrades of each replica."""


def _kills(options: Any) -> Json:
    return trods_kills.kills(options.kills, options.kills_limit, options.seed, options.harms, options.stamps)


def _stall(options: Any) -> Json:
    return trods_stall.stalls(options.kinds, options.repetitions, options.bound)


def _crowd(options: Any) -> Json:
    return trods_crowd.crowd(options.idle, options.active)


def _cost(options: Any) -> Json:
    with trods_host_rig("cost", trods_cost.FILES if options.stamps else ()) as rig:
        return trods_cost.all_costs(rig, options.repetitions or 6, options.seconds, options.fetches)


def _flood(options: Any) -> Json:
    with trods_host_rig("flood") as rig:
        return trods_flood.floods(rig, options.repetitions or 3, 2 * options.seconds)


def _moves(options: Any) -> Json:
    return trods_moves.moves(options.rounds)


PARTS: dict[str, Callable[[Any], Json]] = {
    "cost": _cost,
    "flood": _flood,
    "crowd": _crowd,
    "stall": _stall,
    "kills": _kills,
    "moves": _moves,
}


def bars(result: Json) -> list[Bar]:
    """The bounds of the parts that were run."""
    parts = (trods_cost, trods_flood, trods_crowd, trods_stall, trods_kills, trods_moves)
    return [bar for part in parts for bar in part.bars(result)]


def main() -> int:
    """Runs the bench and writes bench/results/trods.json and .png."""
    parser = flags(__doc__ or "", repetitions=0)
    parser.set_defaults(seconds=2.0)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--kills", type=int, default=trods_kills.KILLS)
    parser.add_argument("--kills-limit", type=float, default=2100.0, help="time limit of the kills in seconds")
    parser.add_argument("--harms", nargs="+", choices=HARMS, default=HARMS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bound", type=float, default=trods_stall.BOUND_MS, help="exclusion bound of the stalls, ms")
    parser.add_argument("--kinds", nargs="+", choices=list(trods_stall.KINDS), default=list(trods_stall.KINDS))
    parser.add_argument("--idle", type=int, default=trods_crowd.IDLE, help="connections of the crowd")
    parser.add_argument("--active", type=int, default=trods_crowd.ACTIVE, help="downloads in it")
    parser.add_argument("--fetches", type=int, default=trods_cost.FETCHES, help="serial fetches of each server")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="upgrades of each replica")
    parser.add_argument("--stamps", action="store_true", help="cost, kills: without a store; the result is not stored")
    parser.add_argument("--update", action="store_true", help="replace the stored results of --parts")
    options = parser.parse_args()
    if options.update and not _is_full(options):
        parser.error("--update: only parts of full length are stored")
    result: Json = {"nginx_version": nginx_version()}
    began = time.monotonic()
    for part in options.parts:
        print(f"-- {part}", flush=True)
        result[part] = PARTS[part](options)
    result["took_s"] = time.monotonic() - began
    if _is_full(options) and (options.update or set(options.parts) == set(PARTS)):
        kept = updated(load("trods"), result, options.parts) if options.update else result
        plot(plot_path("trods"), kept)
        print(save("trods", kept))
    else:
        print("not all parts were run: the result is not stored")
    if options.stamps:
        return judge(trods_cost.bars(result, trods_cost.STAMPS) + trods_kills.bars(result))
    return judge(bars(result))


def _is_full(options: Any) -> bool:
    """Whether the chosen parts ran at their full length."""
    full = (
        (options.kills, trods_kills.KILLS),
        (options.idle, trods_crowd.IDLE),
        (options.active, trods_crowd.ACTIVE),
        (options.fetches, trods_cost.FETCHES),
        (options.rounds, ROUNDS),
        (len(set(options.kinds)), len(trods_stall.KINDS)),
        (len(set(options.harms)), len(HARMS)),
    )
    return not options.stamps and not options.repetitions and all(given >= wanted for given, wanted in full)


if __name__ == "__main__":
    sys.exit(main())
