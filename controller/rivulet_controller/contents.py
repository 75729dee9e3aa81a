"""What replicas have for plain clients, against what is in force (content.py): each service's, at every round."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from .agents import Agent
from .config import Service
from .content import Content, elect, step
from .keys import KeyRing, Kind
from .modes import settled
from .rack import Rack
from .trods import is_named

log = logging.getLogger("rivulet.contents")

PATIENCE_S = 5.0
"""How long a replica that is not there, or says nothing of its content, is waited for: as long as for a key."""


class Contents:
    """The contents in force. `note` is called with an event about a replica, `rotate` with a service that needs another
    cookie key.
    """

    def __init__(
        self, rack: Rack, note: Callable[[str, str], None], rotate: Callable[[str, frozenset[Kind]], None]
    ) -> None:
        self._rack = rack
        self._note = note
        self._rotate = rotate
        self._awaited: dict[str, float] = {}
        """Since when replicas are asked, by service, where nothing is in force yet."""

    def look(self, agents: Mapping[str, Agent], absent: Mapping[str, float]) -> None:
        """Of every service that is or shall be answered without state, or whose objects timestamps name (TRODS), the
        content in force, and who has another.

        `absent`: since when each replica without an agent has been so, on the monotonic clock.
        """
        state = self._rack.state
        strangers: dict[str, frozenset[str]] = {}
        for service in self._rack.config.services:
            mode = state.modes.get(service.name) or settled(service.plain)
            named = is_named(service) and "trods" in (mode.replicas, mode.drains)
            if not named and "stateless" not in (service.plain, mode.replicas, mode.drains, mode.tors):
                state.set_content(service.name, None)
                self._awaited.pop(service.name, None)
                continue
            content = state.contents.get(service.name, Content())
            ring = state.rings[service.name]
            after = self._next(service, content, ring, agents, absent)
            if str(after) != str(content):
                log.info("service %s: content %s", service.name, after)
            newest = ring.accepted(Kind.COOKIE)[-1:]
            if after.rotates and newest == (ring.usable(Kind.COOKIE),):
                self._rotate(service.name, frozenset({Kind.COOKIE}))
            state.set_content(service.name, after)
            has = {name: agents[name].content for name in service.replicas if name in agents}
            strange = {name for name, version in has.items() if after.version and version not in (0, after.version)}
            strangers[service.name] = frozenset(strange)
            for name in strange - self.strangers(service.name):
                log.warning("service %s: replica %s has other content (%08x)", service.name, name, has[name])
                self._note("OTHER_CONTENT", name)
        self._rack.strangers = strangers

    def _next(
        self,
        service: Service,
        content: Content,
        ring: KeyRing,
        agents: Mapping[str, Agent],
        absent: Mapping[str, float],
    ) -> Content:
        """What is in force next. Who drains has no say, unless all do."""
        clock = time.monotonic()
        asked = float("-inf") if content.version else self._awaited.setdefault(service.name, clock)
        maintained = {replica.name for replica in self._rack.config.replicas if replica.maintenance}
        names = [name for name in service.replicas if name not in maintained]
        voters = [name for name in names if name not in self._rack.draining - self._rack.returning] or names
        has = {name: agents[name].content for name in voters if name in agents and agents[name].content}
        since = (
            max(agents[name].connected_at, asked) if name in agents else absent[name]
            for name in voters
            if name not in has
        )
        waits = any(clock - start < PATIENCE_S for start in since)
        cookie = ring.usable(Kind.COOKIE)
        after = step(content, elect(has, content.version, len(voters), waits), cookie.epoch if cookie else 0)
        if after.version:
            self._awaited.pop(service.name, None)
        return after

    def awaits(self, service: str) -> bool:
        """Whether replicas may still say what content they have. Those that say nothing for a while never do."""
        asked = self._awaited.get(service)
        return asked is not None and time.monotonic() - asked < PATIENCE_S

    def strangers(self, service: str) -> frozenset[str]:
        """Replicas of a service whose content for plain clients is another than the one in force."""
        return self._rack.strangers.get(service, frozenset())

    def strange_at(self, replica: str) -> list[str]:
        """The services at which a replica has other content."""
        return [service for service, names in self._rack.strangers.items() if replica in names]
