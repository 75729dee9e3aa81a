"""Replicas that an operator takes back, until their agents say that they are ready.

The slots name a replica first again only then. An agent that has just begun does not know yet whose connections others
hold: what clients say would be lost on it, and come again after their retransmission timeout (docs/moves.md).
"""

from __future__ import annotations

from collections.abc import Mapping

from .agents import Agent


class Returning:
    """Those that are awaited. Where no agent is registered nobody is: heartbeats alone decide there."""

    def __init__(self, agents: Mapping[str, Agent]) -> None:
        self._agents = agents
        self._awaited: frozenset[str] = frozenset()

    def take_back(self, replica: str) -> None:
        """An operator wants it back, who drained it."""
        self._awaited |= {replica}
        self.look()

    def look(self) -> bool:
        """Whether somebody is not awaited any more since the last look."""
        before = self._awaited
        self._awaited = frozenset(filter(self._is_awaited, before))
        return self._awaited != before

    def awaited(self) -> frozenset[str]:
        """Who is first in no slot yet."""
        return self._awaited

    def _is_awaited(self, replica: str) -> bool:
        agent = self._agents.get(replica)
        return agent is not None and (agent.report is None or not agent.report.ready)
