"""What the controller knows of one switch besides its entries."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from .clock import OffsetEstimate
from .entry import Entry
from .neighbours import Neighbours
from .numbers import Tor
from .paths import Paths
from .sources import Sources
from .supervise import Loop
from .switch import SwitchLink


@dataclass(slots=True)
class SwitchState:
    """State of one switch besides its entries."""

    link: SwitchLink
    task: asyncio.Task[None] | None = None
    applying: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Makes computing and writing the desired entries one step."""
    loops: tuple[Loop, ...] = ()
    """Its write loop and its read loop, so that a switch that hangs delays no other."""
    tor: Tor | None = None
    estimate: OffsetEstimate = field(default_factory=OffsetEstimate)
    settled_at: float = 0.0
    """Until then, events may carry the time of an earlier clock offset (monotonic seconds)."""
    readmitted: dict[tuple[int, int], int] = field(default_factory=dict)
    """By (pool, replica) numbers: the count of exclusions up to which plain TCP is allowed again;
    desired value of the `readmitted` parameter."""
    allowed: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """Values of `readmitted` that the switch has, each with the count of ready heartbeats when it
    was first seen."""
    sources: Sources = field(default_factory=Sources)
    neighbours: Neighbours = field(default_factory=Neighbours)
    paths: Paths = field(default_factory=Paths)
    sequence: int | None = None
    holds: bool = False
    """Whether it has accepted all of the desired entries in this session."""
    problem: str = ""
    retry_at: float = 0.0
    lost_at: float = 0.0
    began_at: float = 0.0
    """Start of the session (monotonic seconds)."""
    without_heartbeat: frozenset[tuple[int, int]] = frozenset()
    """Members that got no traffic at the last reading, for lack of a heartbeat."""
    converged_at: float = 0.0
    reported: set[str] = field(default_factory=set)
    """Replicas with an exclusion reported by an event since the last reading."""


async def end(switch: SwitchState) -> None:
    """Ends its loops and its session."""
    for loop in switch.loops:
        await loop.stop()
    if switch.task is not None:
        switch.task.cancel()
        await asyncio.gather(switch.task, return_exceptions=True)


def allowed_by_rows(link: SwitchLink) -> dict[tuple[int, int], int]:
    """By (pool, replica) numbers, the switch's values of `readmitted`."""
    rows = [dict(row.match) | dict(row.params) for row in rows_of(link, "heartbeat_sources")]
    return {(int_of(r["pool"]), int_of(r["replica"])): int_of(r["readmitted"]) for r in rows}


def rows_of(link: SwitchLink, table: str) -> list[Entry]:
    """The entries of a table that the switch holds."""
    return [item for item in link.items() if isinstance(item, Entry) and item.table == table]


def int_of(value: object) -> int:
    """The value of an exact match or a parameter, which is an integer."""
    assert isinstance(value, int)
    return value
