"""Decides which content (content.py) is in force for each service, and finds the replicas that have
another.
"""

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

REPORT_WAIT_S = 5.0
"""How long to wait for a replica that is absent or has not reported its content: as long as for a
new key."""


class Contents:
    """The contents in force. Calls `note` with an event about a replica, and `rotate` for a service
    that needs a new cookie key.
    """

    def __init__(
        self, rack: Rack, note: Callable[[str, str], None], rotate: Callable[[str, frozenset[Kind]], None]
    ) -> None:
        self._rack = rack
        self._note = note
        self._rotate = rotate
        self._awaited: dict[str, float] = {}
        """By service without a content in force: when replicas were first asked for theirs
        (monotonic seconds)."""

    def look(self, agents: Mapping[str, Agent], absent: Mapping[str, float]) -> None:
        """Updates the content in force, and the replicas with another, of every service that is (or
        will be) served without state or whose timestamps name objects (TRODS).

        `absent`: when each replica without an agent lost it, on the monotonic clock.
        """
        state = self._rack.state
        mismatched: dict[str, frozenset[str]] = {}
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
            mismatched[service.name] = frozenset(strange)
            for name in strange - self.mismatched(service.name):
                log.warning("service %s: replica %s has other content (%08x)", service.name, name, has[name])
                self._note("OTHER_CONTENT", name)
        self._rack.mismatched = mismatched

    def _next(
        self,
        service: Service,
        content: Content,
        ring: KeyRing,
        agents: Mapping[str, Agent],
        absent: Mapping[str, float],
    ) -> Content:
        """The content in force next. Draining replicas have no vote, unless all drain."""
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
        waits = any(clock - start < REPORT_WAIT_S for start in since)
        cookie = ring.usable(Kind.COOKIE)
        after = step(content, elect(has, content.version, len(voters), waits), cookie.epoch if cookie else 0)
        if after.version:
            self._awaited.pop(service.name, None)
        return after

    def awaits(self, service: str) -> bool:
        """Whether to keep waiting for replicas' reports; a replica that has not reported by then is
        not waited for.
        """
        asked = self._awaited.get(service)
        return asked is not None and time.monotonic() - asked < REPORT_WAIT_S

    def mismatched(self, service: str) -> frozenset[str]:
        """Replicas with content for a service's plain clients that differs from the one in force."""
        return self._rack.mismatched.get(service, frozenset())

    def mismatched_services(self, replica: str) -> list[str]:
        """Services for which a replica has content other than the one in force."""
        return [service for service, names in self._rack.mismatched.items() if replica in names]
