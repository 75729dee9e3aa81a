"""What a kill or a return of a replica looked like: bytes at each client, and what the switch did.

All times are milliseconds from the kill or the readmission. The switch's counters are read every 5 ms, which is the
resolution of its events.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from .meter import longest_gap
from .services import SwitchView

BEFORE_S, AFTER_S = 0.1, 0.3
"""The enlarged part around an action, seconds."""

Samples = list[tuple[float, int]]


def moment(
    mark: tuple[float, str, str],
    views: Sequence[SwitchView],
    samples: Mapping[str, Samples],
    ended: Mapping[str, tuple[float, int]],
) -> dict[str, Any]:
    """One action, enlarged. `ended`: time and exit code of the clients that gave up.

    A return is shown around the readmission by the switch, because a process takes long to start.
    """
    begun, what, replica = mark
    events = (killed if what == "kill" else returned)(begun, replica, views)
    at = begun
    if events.get("readmission_ms") is not None:
        shift = events["readmission_ms"]
        at += shift / 1e3
        moved = {key: round(ms - shift, 1) for key, ms in events.items() if isinstance(ms, float)}
        events = {**events, **moved, "start_ms": -shift}
    clients: dict[str, Any] = {}
    for name, all_samples in samples.items():
        inside = [(when, count) for when, count in all_samples if at - BEFORE_S <= when <= at + AFTER_S]
        base = max((count for when, count in all_samples if when < at - BEFORE_S), default=0)
        gave_up, code = ended.get(name, (float("inf"), 0))
        over = not all_samples or all_samples[-1][0] < at - BEFORE_S
        clients[name] = {
            "bytes": [[round((when - at) * 1e3, 2), count - base] for when, count in inside],
            "stall_ms": round(longest_gap(all_samples, at, at + AFTER_S) * 1e3, 1),
            "exit": code if at - BEFORE_S <= gave_up <= at + 10 * AFTER_S else None,
            "over": over,
        }
    return {"at": at, "what": what, "replica": replica, "switch": events, "clients": clients}


def killed(at: float, replica: str, views: Sequence[SwitchView]) -> dict[str, Any]:
    """The last heartbeat that the switch counted, the exclusion, and the replica that gets the packets next."""
    found: dict[str, Any] = {"last_heartbeat_ms": None, "exclusion_ms": None, "next_ms": None, "next": None}
    near = [view for view in views if at - 10 * BEFORE_S <= view.at <= at + 10 * AFTER_S]
    excluded: SwitchView | None = None
    for before, view in itertools.pairwise(near):
        ms = round((view.at - at) * 1e3, 1)
        if excluded is None and view.heartbeats[replica] > before.heartbeats[replica]:
            found["last_heartbeat_ms"] = ms
        if excluded is None and view.at >= at and view.excluded(replica):
            excluded = before
            found["exclusion_ms"] = ms if not before.excluded(replica) else 0.0
        if excluded is not None:
            others = [name for name in view.packets if name != replica and not view.excluded(name)]
            if others and any(view.packets[name] > excluded.packets[name] for name in others):
                found["next_ms"], found["next"] = ms, view.busiest(excluded, others)
                break
    return found


def returned(at: float, replica: str, views: Sequence[SwitchView]) -> dict[str, Any]:
    """The first heartbeat after a return, the end of the exclusion, and the first packet."""
    found: dict[str, Any] = {"first_heartbeat_ms": None, "readmission_ms": None, "next_ms": None, "next": None}
    later = [view for view in views if view.at >= at - BEFORE_S]
    for before, view in itertools.pairwise(later):
        ms = round((view.at - at) * 1e3, 1)
        if found["first_heartbeat_ms"] is None and view.heartbeats[replica] > before.heartbeats[replica]:
            found["first_heartbeat_ms"] = ms
        if found["readmission_ms"] is None and before.excluded(replica) and not view.excluded(replica):
            found["readmission_ms"] = ms
        if found["readmission_ms"] is not None and view.packets[replica] > before.packets[replica]:
            found["next_ms"], found["next"] = ms, replica
            break
    return found


WORDS = {
    "last_heartbeat_ms": "last heartbeat",
    "start_ms": "process started",
    "first_heartbeat_ms": "first heartbeat",
    "exclusion_ms": "excluded",
    "readmission_ms": "readmitted",
}
"""The switch's events, as the figure and the text name them."""


def events(one: Mapping[str, Any]) -> list[tuple[float, str]]:
    """The switch's events of a moment in order: milliseconds and words."""
    switch = one["switch"]
    found = [(switch[key], words) for key, words in WORDS.items() if switch.get(key) is not None]
    if switch["next_ms"] is not None:
        found.append((switch["next_ms"], f"packets to {switch['next']}"))
    # Events of one reading stay in their order.
    return sorted(found, key=lambda event: event[0])


def describe(one: Mapping[str, Any], start: float) -> str:
    """A line about a moment."""
    at = f"{one['at'] - start:.1f} s"
    what = f"kill -9 of {one['replica']}" if one["what"] == "kill" else f"return of {one['replica']}"
    parts = [f"{words} {_signed(ms)}" for ms, words in events(one)]
    return f"{what} at {at}; the switch: {', '.join(parts) or 'nothing seen'}."


def _signed(ms: float) -> str:
    if round(ms) == 0:
        return "then"
    return f"{abs(ms):.0f} ms {'before' if ms < 0 else 'after'}"
