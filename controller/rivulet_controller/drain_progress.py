"""Progress of a drain: connections under TRODS move to other replicas, all others end where they
are (docs/moves.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .health import ReplicaView

SETTLED_S = 2.0
"""Time after which the agent has received the drain and reported since."""
LATE_S = 30.0
"""Time by which connections move that can; the rest wait for a response, or for a replica that
adopts them."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A draining replica's progress, as its agent last reported."""

    moved: int
    """Connections that moved to other replicas since its agent started."""
    moving: int
    """Connections that have yet to move."""
    staying: int
    """Connections of its kernel that cannot move and end where they are."""

    @property
    def done(self) -> bool:
        """Whether all connections that can have moved."""
        return self.moving == 0

    @property
    def words(self) -> str:
        """For logs and rivuletctl."""
        staying = f"{self.staying} stay until they end" if self.staying else "none stays"
        return f"{self.moved} moved, {self.moving} to move, {staying}"


def progress(replica: Mapping[str, Any]) -> Progress:
    """The progress of a replica, from its object in the API."""
    trods = replica["trods"] or {"moved": 0, "watched": 0}
    return Progress(trods["moved"], trods["watched"], max(0, replica["load"] - trods["watched"]))


class MoveWatch:
    """Reports once for each drain that it is done (MOVED), and before that if it takes long
    (STILL_MOVING).
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._reported: dict[str, str] = {}

    def look(self, now: float, views: Iterable[ReplicaView], draining: frozenset[str]) -> list[tuple[str, str, str]]:
        """The events since the last call: kind, replica, progress in words."""
        self._since = {name: self._since.get(name, now) for name in draining}
        self._reported = {name: kind for name, kind in self._reported.items() if name in draining}
        events = []
        for view in views:
            if view.name not in draining or view.trods is None:
                continue
            so_far = progress({"trods": asdict(view.trods), "load": view.load})
            after = now - self._since[view.name]
            before = self._reported.get(view.name)
            if so_far.done and after >= SETTLED_S and before != "MOVED":
                kind = "MOVED"
            elif not so_far.done and after >= LATE_S and before is None:
                kind = "STILL_MOVING"
            else:
                continue
            self._reported[view.name] = kind
            events.append((kind, view.name, so_far.words))
        return events
