"""What became of each replica: the states it was in, when, and who excluded it last. Bounded, in memory.

The switches say that a replica was excluded; why is known once its counters and its agent's report are looked at, which
is what `states` brings.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from .health import ReplicaView

STATES_KEPT = 50
"""Newest states of a replica that are kept."""

REASON_LATE_S = 3.0
"""A state seen so long after an exclusion tells why: counters are read once a second."""


SHORT = "neither heard nor ready for longer than the bound; it was back before anybody looked"
"""Why, where no look came in time to tell more."""


@dataclass(frozen=True, slots=True)
class Entered:
    """A state that a replica was in from `time` (Unix seconds) on, until the next one."""

    time: float
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class Exclusion:
    """When a replica was last left out, by which switch (or the controller), and why."""

    time: float
    by: str
    why: str


@dataclass(slots=True)
class _Story:
    states: deque[Entered] = field(default_factory=lambda: deque(maxlen=STATES_KEPT))
    exclusion: Exclusion | None = None


class Chronicle:
    """The stories of the configuration's replicas."""

    def __init__(self) -> None:
        self._stories: dict[str, _Story] = {}

    def note(self, views: Iterable[ReplicaView], now: float | None = None) -> None:
        """One look at all replicas there are; others are forgotten."""
        now = time.time() if now is None else now
        stories = {view.name: self._stories.get(view.name, _Story()) for view in views}
        for view in views:
            story = stories[view.name]
            if not story.states or story.states[-1].state != view.state:
                story.states.append(Entered(now, view.state, view.reason))
            elif story.states[-1].reason != view.reason:
                # The newest reason, and the time at which the state began.
                story.states[-1] = replace(story.states[-1], reason=view.reason)
            last = story.exclusion
            if last is not None and not last.why and view.state == "excluded" and now - last.time <= REASON_LATE_S:
                story.exclusion = replace(last, why=view.reason)
        self._stories = stories

    def excluded(self, replica: str, by: str, why: str = "", now: float | None = None) -> None:
        """A switch, or the controller, left a replica out; without `why` the next look tells."""
        self._stories.setdefault(replica, _Story()).exclusion = Exclusion(time.time() if now is None else now, by, why)

    def brief(self, replica: str) -> dict[str, Any]:
        """Since when it is in its state, and its last exclusion."""
        story = self._stories.get(replica, _Story())
        last = story.exclusion
        if last is not None and not last.why:
            last = replace(last, why=SHORT if time.time() - last.time > REASON_LATE_S else "not yet looked at")
        return {
            "since": story.states[-1].time if story.states else 0.0,
            "last_exclusion": asdict(last) if last else None,
        }

    def states(self, replica: str) -> list[dict[str, Any]]:
        """The states it was in, oldest first."""
        return [asdict(entered) for entered in self._stories.get(replica, _Story()).states]
