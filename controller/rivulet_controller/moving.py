"""How far a replica that drains has got: connections with TRODS move, all others end where they are (docs/moves.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
