"""Times at which replicas are killed and restarted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One action, in seconds from the start."""

    at: float
    replica: str
    kill: bool


Plan = tuple[Step, ...]


def failover(replicas: Sequence[str], seconds: float) -> Plan:
    """All replicas but one die one after the other in the first half of a download of `seconds`, then return."""
    victims = list(replicas[:-1])
    count = 2 * len(victims)
    spacing = seconds / (count + 1)
    kills = [Step((i + 1) * spacing, name, True) for i, name in enumerate(victims)]
    returns = [Step((len(victims) + i + 1) * spacing, name, False) for i, name in enumerate(victims)]
    return tuple(kills + returns)


def rolling(replicas: Sequence[str], seconds: float) -> Plan:
    """Each replica is killed and started again before the next one."""
    spacing = seconds / (len(replicas) + 1)
    steps = []
    for place, name in enumerate(replicas):
        start = (place + 0.5) * spacing
        steps += [Step(start, name, True), Step(start + spacing / 2, name, False)]
    return tuple(steps)
