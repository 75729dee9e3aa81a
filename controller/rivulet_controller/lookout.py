"""Once a second: what became of each replica, and who heartbeats and answers nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from .agents import Agent
from .chronicle import Chronicle
from .config import Config
from .fleet import Fleet
from .health import ReplicaView
from .moving import MoveWatch
from .mute import MuteWatch

log = logging.getLogger("rivulet.lookout")


class Lookout:
    """Looks at all replicas; `spare` is called when those that the controller leaves out are others than before."""

    def __init__(self, fleet: Fleet, chronicle: Chronicle, spare: Callable[[], None]) -> None:
        self.chronicle = chronicle
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
        """One look; `draining`: those that an operator drains."""
        self._fleet.health.remember()
        views = [view(replica.name) for replica in config.replicas]
        counted = self._fleet.health.counted(config.replicas, agents)
        pools: dict[str, set[str]] = {}
        for service in config.services:
            pools.setdefault(service.pool_name, set()).update(service.replicas)
        live = [view.name for view in views if view.state == "live"]
        before = self.left_out()
        for kind, replica in self._mute.look(time.monotonic(), config.mute, counted, pools.values(), live):
            log.warning("replica %s: %s", replica, kind.lower().replace("_", " "))
            self._fleet.note(kind, replica)
            if kind == "LEFT_OUT":
                self.chronicle.excluded(replica, "the controller", self.words(replica))
        if self.left_out() != before:
            self._spare()
        for kind, replica, words in self._moves.look(time.monotonic(), views, draining):
            log.info("replica %s: %s", replica, words)
            self._fleet.note(kind, replica, words)
        self.chronicle.note(views)

    def left_out(self) -> frozenset[str]:
        """Mute replicas that get nothing new."""
        return self._mute.left_out()

    def take_back(self, replica: str) -> None:
        """An operator wants it back."""
        self._mute.take_back(replica, time.monotonic())

    def words(self, replica: str) -> str:
        """Why a replica counts as mute; empty for one that does not."""
        requests = self._mute.mute(replica)
        if requests is None:
            return ""
        words = f"heartbeats are heard, but none of {requests} requests was answered"
        if replica in self.left_out():
            words += f"; it gets nothing new for {self._mute.tried_again_in(replica, time.monotonic()):.0f} s"
        return words
