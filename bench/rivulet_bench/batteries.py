"""The command line of the benches that kill parts under load, and their results as JSON and CSV."""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable, Iterable
from typing import Any

from .stats import RESULTS, save
from .trods_rack import FOLDER

Json = dict[str, Any]


def command_line(doc: str | None, harms: Iterable[str], clients: list[int], kills: int) -> argparse.ArgumentParser:
    """A parser with the flags that these benches share; `clients` and `kills` are defaults."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=clients, help="one battery for each number")
    parser.add_argument("--kills", type=int, default=kills, help="kills of each battery")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--harms", nargs="+", choices=(*harms, "all"), default=["all"])
    return parser


def chosen(harms: list[str], known: Iterable[str]) -> list[str]:
    """The harms that the command line names."""
    return list(known) if "all" in harms else harms


def run(name: str, clients: list[int], battery: Callable[[int], tuple[Json, list[Json]]]) -> Json:
    """One battery after the other: its result becomes a row of NAME.json, its kills become rows of NAME.csv."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    result: Json = {"batteries": []}
    kills: list[Json] = []
    for number in clients:
        row, struck = battery(number)
        print(json.dumps(row), flush=True)
        result["batteries"].append(row)
        kills += [{"clients": number, **kill} for kill in struck]
        # A run that is ended early stores the batteries that have ended.
        save(name, result)
        with (RESULTS / f"{name}.csv").open("w", newline="") as out:
            writer = csv.DictWriter(out, fieldnames=list(kills[0]) if kills else ["clients"])
            writer.writeheader()
            writer.writerows(kills)
    return result
