"""When which replica is killed and comes back: all but one die in turn, then they return, in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One deed, seconds from the start."""

    at: float
    replica: str
    kill: bool


Plan = tuple[Step, ...]


def plan(replicas: Sequence[str], seconds: float) -> Plan:
    """Spreads the deeds over a download that takes about `seconds`: kills in its first half, returns after."""
    victims = list(replicas[:-1])
    count = 2 * len(victims)
    spacing = seconds / (count + 1)
    kills = [Step((i + 1) * spacing, name, True) for i, name in enumerate(victims)]
    returns = [Step((len(victims) + i + 1) * spacing, name, False) for i, name in enumerate(victims)]
    return tuple(kills + returns)
