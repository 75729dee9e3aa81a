"""Replicas that an operator takes back, until their agents know whose connections others hold.

The slots name a replica first again only then: before, what clients say would be lost on it, and come again after their
retransmission timeout (docs/moves.md). Only services under TRODS have such connections.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from .agents import Agent

STANDS_S = 20.0
"""For so long an agent may be gone while it is restarted: somebody else sends its heartbeats."""


class Returning:
    """Those that are awaited. `left_at`: when an agent that was there went; where none ever was nobody is awaited."""

    def __init__(self, agents: Mapping[str, Agent], left_at: Callable[[str], float | None]) -> None:
        self._agents = agents
        self._left_at = left_at
        self._awaited: frozenset[str] = frozenset()

    def take_back(self, replica: str) -> None:
        """An operator wants it back, who drained it."""
        self._awaited |= {replica}
        self.look()

    def forget(self) -> None:
        """Another controller may have decided since."""
        self._awaited = frozenset()

    def look(self) -> bool:
        """Whether somebody is not awaited any more since the last look."""
        before = self._awaited
        self._awaited = frozenset(filter(self._is_awaited, before))
        return self._awaited != before

    def awaited(self, away: frozenset[str], pools: Collection[Collection[str]]) -> frozenset[str]:
        """Who is first in no slot yet. Where nobody else stays, besides those that are away, nobody is waited for."""
        out = away | self._awaited
        return frozenset(n for n in self._awaited if all(set(pool) - out for pool in pools if n in pool))

    def _is_awaited(self, replica: str) -> bool:
        agent = self._agents.get(replica)
        if agent is not None:
            return agent.asks
        left_at = self._left_at(replica)
        return left_at is not None and time.monotonic() - left_at < STANDS_S
