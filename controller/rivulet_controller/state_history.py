"""Each replica's history of states, and its last exclusion. Bounded, in memory.

A switch reports an exclusion without a reason. The reason follows from counters and the agent's
report, with the next `note`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from .health import ReplicaView

STATES_KEPT = 50
"""Newest states kept for each replica."""

REASON_LATE_S = 3.0
"""A state seen up to this long after an exclusion explains it: counters are read once a second."""


REASON_UNKNOWN = "no ready heartbeat for longer than the bound; it was back before the next reading"
"""Reason of an exclusion that was over before the counters were read."""


@dataclass(frozen=True, slots=True)
class StateChange:
    """A state that a replica change at `time` (Unix seconds)."""

    time: float
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A replica's last exclusion: when, by which switch (or the controller), and why."""

    time: float
    by: str
    why: str


@dataclass(slots=True)
class _History:
    states: deque[StateChange] = field(default_factory=lambda: deque(maxlen=STATES_KEPT))
    exclusion: Exclusion | None = None


class StateHistory:
    """The histories of all configured replicas."""

    def __init__(self) -> None:
        self._histories: dict[str, _History] = {}

    def note(self, views: Iterable[ReplicaView], now: float | None = None) -> None:
        """Takes the views of all replicas; drops histories of others."""
        now = time.time() if now is None else now
        histories = {view.name: self._histories.get(view.name, _History()) for view in views}
        for view in views:
            history = histories[view.name]
            if not history.states or history.states[-1].state != view.state:
                history.states.append(StateChange(now, view.state, view.reason))
            elif history.states[-1].reason != view.reason:
                # Keeps the time at which the state began, with the newest reason.
                history.states[-1] = replace(history.states[-1], reason=view.reason)
            last = history.exclusion
            if last is not None and not last.why and view.state == "excluded" and now - last.time <= REASON_LATE_S:
                history.exclusion = replace(last, why=view.reason)
        self._histories = histories

    def excluded(self, replica: str, by: str, why: str = "", now: float | None = None) -> None:
        """A switch, or the controller, excluded a replica; without `why` the next `note` adds the
        reason.
        """
        self._histories.setdefault(replica, _History()).exclusion = Exclusion(
            time.time() if now is None else now, by, why
        )

    def summary(self, replica: str) -> dict[str, Any]:
        """For the API: when the replica change its state, and its last exclusion."""
        history = self._histories.get(replica, _History())
        last = history.exclusion
        if last is not None and not last.why:
            last = replace(last, why=REASON_UNKNOWN if time.time() - last.time > REASON_LATE_S else "not yet known")
        return {
            "since": history.states[-1].time if history.states else 0.0,
            "last_exclusion": asdict(last) if last else None,
        }

    def states(self, replica: str) -> list[dict[str, Any]]:
        """The replica's states, oldest first."""
        return [asdict(change) for change in self._histories.get(replica, _History()).states]
