"""Effect of a lying user on another one.

Two users send with the Congestion Manager's calls to one receiver over a slow link, each with his own window. In
every second run one of them reports fewer sent bytes, and more arrived bytes than he sent. The other's throughput
must equal that beside an honest user. (A user that acknowledges packets in flight, or hides losses, gets more, as a
program without congestion control does: docs/congestion-manager.md.)
"""

from __future__ import annotations

from typing import Any

from .bars import Bar
from .cm_calls_rig import USER, calls_rig
from .cm_kills import program
from .cm_rig import PORT, SERVER, Wire
from .stats import interval

Json = dict[str, Any]

WIRE = Wire(rate_mbit=10, rtt_ms=40)
WITHIN = 0.05


def liar(options: Any) -> Json:
    """The other user's throughput beside an honest user and beside a liar."""
    seconds = 3 * options.seconds
    got: dict[str, list[float]] = {"honest": [], "liar": []}
    with calls_rig(WIRE) as rig:
        rig.receive()
        for repetition in range(options.repetitions):
            for number, how in enumerate(got):
                # Users without history, so that no run uses what another has learnt.
                user = USER + 1 + 4 * repetition + 2 * number
                words = ("send", SERVER, str(PORT), f"{seconds:g}")
                them = program(rig, "them", user, *words, how)
                us = program(rig, "us", user + 1, *words, "honest")
                got[how].append(int(us.output(seconds + 60)) * 8 / seconds / 1e6)
                them.output(seconds + 60)
    row = {how: interval(values) for how, values in got.items()}
    for how, (mean, half) in row.items():
        print(f"beside one who is {how}: {mean:.3f} ± {half:.3f} Mb/s", flush=True)
    return {"wire": WIRE.flags(), "seconds": seconds, "summary": row, "of_honest": row["liar"][0] / row["honest"][0]}


def bars(result: Json) -> list[Bar]:
    """The throughput must be as beside an honest user."""
    what, ratio = "a user's throughput beside a liar, of that beside an honest one", result["of_honest"]
    return [Bar(what, ratio, 1 - WITHIN), Bar(what, ratio, 1 + WITHIN, at_most=True)]
