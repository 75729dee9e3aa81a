"""Checks all replicas once a second: records their states, and watches for mute replicas and
drains.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from .agents import Agent
from .config import Config
from .drain_progress import MoveWatch
from .fleet import Fleet
from .health import ReplicaView
from .mute import MuteWatch
from .state_history import StateHistory

log = logging.getLogger("rivulet.monitor")


class Monitor:
    """Calls `spare` when the set of replicas that the controller excludes has changed."""

    def __init__(self, fleet: Fleet, history: StateHistory, spare: Callable[[], None]) -> None:
        self.history = history
        self._fleet = fleet
        self._spare = spare
        self._mute = MuteWatch()
        self._moves = MoveWatch()

    def look(
        self,
        config: Config,
        agents: Mapping[str, Agent],
        view: Callable[[str], ReplicaView],
        draining: frozenset[str],
    ) -> None:
        """One check of all replicas; `draining`: those that an operator drains."""
        self._fleet.health.record_history()
        views = [view(replica.name) for replica in config.replicas]
        counted = self._fleet.health.request_counts(config.replicas, agents)
        pools: dict[str, set[str]] = {}
        for service in config.services:
            pools.setdefault(service.pool_name, set()).update(service.replicas)
        live = [view.name for view in views if view.state == "live"]
        before = self.left_out()
        for kind, replica in self._mute.look(time.monotonic(), config.mute, counted, pools.values(), live):
            log.warning("replica %s: %s", replica, kind.lower().replace("_", " "))
            self._fleet.note(kind, replica)
            if kind == "LEFT_OUT":
                self.history.excluded(replica, "the controller", self.words(replica))
        if self.left_out() != before:
            self._spare()
        for kind, replica, words in self._moves.look(time.monotonic(), views, draining):
            log.info("replica %s: %s", replica, words)
            self._fleet.note(kind, replica, words)
        self.history.note(views)

    def left_out(self) -> frozenset[str]:
        """Mute replicas that the controller excludes."""
        return self._mute.left_out()

    def take_back(self, replica: str) -> None:
        """An operator undrained the replica."""
        self._mute.take_back(replica, time.monotonic())

    def words(self, replica: str) -> str:
        """Why a replica counts as mute; empty if it does not."""
        requests = self._mute.mute(replica)
        if requests is None:
            return ""
        words = f"heartbeats arrive, but none of {requests} requests was answered"
        if replica in self.left_out():
            words += f"; excluded for another {self._mute.tried_again_in(replica, time.monotonic()):.0f} s"
        return words
