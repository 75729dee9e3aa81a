"""How far a replica that drains has got: connections with TRODS move, all others end where they are (docs/moves.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .health import ReplicaView

SETTLED_S = 2.0
"""After a drain began its agent has heard of it, and has reported since."""
LATE_S = 30.0
"""By then all have moved that soon can; what is left waits for a response, or for who goes on with it."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What its agent reported last."""

    moved: int
    """Connections that it left to others since it began."""
    moving: int
    """Connections that are still to move."""
    staying: int
    """Connections of its kernel that end where they are."""

    @property
    def done(self) -> bool:
        """Whether all have moved that can."""
        return self.moving == 0

    @property
    def words(self) -> str:
        """For people."""
        staying = f"{self.staying} stay until they end" if self.staying else "none stays"
        return f"{self.moved} moved, {self.moving} to move, {staying}"


def progress(replica: Mapping[str, Any]) -> Progress:
    """Of a replica as the API shows it."""
    trods = replica["trods"] or {"moved": 0, "watched": 0}
    return Progress(trods["moved"], trods["watched"], max(0, replica["load"] - trods["watched"]))


class MoveWatch:
    """Tells once of each drain that all have moved that can (MOVED), before that if it takes long (STILL_MOVING)."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._told: dict[str, str] = {}

    def look(self, now: float, views: Iterable[ReplicaView], draining: frozenset[str]) -> list[tuple[str, str, str]]:
        """What there is to tell since the last look: kind, replica, how far it has got."""
        self._since = {name: self._since.get(name, now) for name in draining}
        self._told = {name: kind for name, kind in self._told.items() if name in draining}
        told = []
        for view in views:
            if view.name not in draining or view.trods is None:
                continue
            so_far = progress({"trods": asdict(view.trods), "load": view.load})
            after = now - self._since[view.name]
            before = self._told.get(view.name)
            if so_far.done and after >= SETTLED_S and before != "MOVED":
                kind = "MOVED"
            elif not so_far.done and after >= LATE_S and before is None:
                kind = "STILL_MOVING"
            else:
                continue
            self._told[view.name] = kind
            told.append((kind, view.name, so_far.words))
        return told
