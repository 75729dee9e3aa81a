"""Replicas that an operator undrains, until their agents know which connections other replicas
hold.

Only then do slots name such a replica first again. Before that it would drop segments of those
connections, and clients would send them again after their retransmission timeout (docs/moves.md).
Only services under TRODS have such connections.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from .agents import Agent

RESTART_S = 20.0
"""How long an agent may be absent during a restart, while a stand-in sends its heartbeats."""


class Returning:
    """Replicas that are awaited. `left_at`: when a replica's agent disconnected (monotonic
    seconds), None if it never was connected, in which case the replica is not awaited.
    """

    def __init__(self, agents: Mapping[str, Agent], left_at: Callable[[str], float | None]) -> None:
        self._agents = agents
        self._left_at = left_at
        self._awaited: frozenset[str] = frozenset()

    def take_back(self, replica: str) -> None:
        """Starts to wait for a replica that an operator undrains."""
        self._awaited |= {replica}
        self.look()

    def forget(self) -> None:
        """Drops all: another controller has led meanwhile and may have decided otherwise."""
        self._awaited = frozenset()

    def look(self) -> bool:
        """Checks which replicas are still awaited; True if one no longer is."""
        before = self._awaited
        self._awaited = frozenset(filter(self._is_awaited, before))
        return self._awaited != before

    def awaited(self, away: frozenset[str], pools: Collection[Collection[str]]) -> frozenset[str]:
        """Replicas that slots must not name first yet. Leaves out a replica if it is the only one
        of a pool that could serve: all others are awaited or `away`.
        """
        out = away | self._awaited
        return frozenset(n for n in self._awaited if all(set(pool) - out for pool in pools if n in pool))

    def _is_awaited(self, replica: str) -> bool:
        agent = self._agents.get(replica)
        if agent is not None:
            return agent.asks
        left_at = self._left_at(replica)
        return left_at is not None and time.monotonic() - left_at < RESTART_S
