"""Finds mute replicas (heartbeats, but no responses) from switches' counters, and excludes them if
configured.

A switch counts a request by the replica that it sends it to, and a response by its ingress port. A
replica is *mute* if it got enough requests for a while, not counting those that its agent reports
as refused, and no response came from its port, while other members of its pools answered. If no
member answers, the replica is not at fault. One response ends it.

If the configuration allows it, the controller excludes a mute replica as if it were drained: a
switch still uses it when no other member is live. It is tried again after a pause that doubles each
time, and at once when it answers, when its process is restarted, or when an operator undrains it.
It is never excluded while no other member of one of its pools is live.

Bookkeeping only: time and readings are arguments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from .config import Mute

PAUSE_S = 30.0
"""How long a mute replica is excluded the first time."""

PAUSE_MAX_S = 960.0

PAUSE_RESET_S = 600.0
"""A replica that has not been mute for this long starts again with the shortest pause."""


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Counters of one replica since its switches started."""

    requests: int
    """Requests that switches sent to it."""
    answers: int
    """Responses that came from its port."""
    refused: int
    """Requests that it refused, as its agent reports."""
    incarnation: int
    """Incarnation: identifies the replica's process."""


@dataclass(slots=True)
class _ReplicaRecord:
    now: RequestCounts
    since: float
    """When the last response was counted, or counting started again."""
    then: RequestCounts
    """The counters at `since`."""
    answering: float = float("-inf")
    """When a response was last counted."""
    mute: bool = False
    out: bool = False
    until: float = 0.0
    """When an excluded replica is tried again."""
    pause: float = 0.0
    found: float = float("-inf")
    """When it last became mute."""

    def begin(self, now: float) -> None:
        """Starts to count from here."""
        self.since, self.then = now, self.now

    def unanswered(self) -> int:
        """Requests since `since` that it neither answered nor refused."""
        return self.now.requests - self.then.requests - (self.now.refused - self.then.refused)


MuteEvent = tuple[str, str]
"""The kind of event (MUTE, ANSWERS, LEFT_OUT, TRIED_AGAIN), and the replica."""


class MuteWatch:
    """Watches all replicas; call `look` about once a second."""

    def __init__(self) -> None:
        self._watched: dict[str, _ReplicaRecord] = {}

    def mute(self, replica: str) -> int | None:
        """The number of requests that a mute replica left unanswered; None for a replica that is
        not mute.
        """
        known = self._watched.get(replica)
        return known.unanswered() if known is not None and known.mute else None

    def left_out(self) -> frozenset[str]:
        """Replicas that the controller excludes now."""
        return frozenset(name for name, known in self._watched.items() if known.out)

    def tried_again_in(self, replica: str, now: float) -> float:
        """Seconds until an excluded replica is tried again."""
        return max(self._watched[replica].until - now, 0.0)

    def take_back(self, replica: str, now: float) -> None:
        """An operator undrained the replica: uses it again now, and with the shortest pause if it
        becomes mute again.
        """
        if known := self._watched.get(replica):
            known.out, known.pause = False, 0.0
            known.begin(now)

    def look(
        self,
        now: float,
        rule: Mute,
        counted: Mapping[str, RequestCounts],
        pools: Collection[Collection[str]],
        live: Collection[str],
    ) -> list[MuteEvent]:
        """Takes a reading. `counted`: replicas whose counters are all fresh. `live`: replicas that
        serve.
        """
        for name in [name for name in self._watched if not any(name in pool for pool in pools)]:
            del self._watched[name]
        events = [event for name, reading in counted.items() for event in self._take(now, name, reading)]
        for name, known in self._watched.items():
            if name not in counted:
                # Without a reading of its port or its switch, it may have answered unnoticed.
                known.begin(now)
            elif (
                not known.mute
                and self._is_unanswered(now, rule, known)
                and self._others_answer(known.since, name, pools)
            ):
                known.mute, known.found = True, now
                events.append(("MUTE", name))
        serving = {name for name in live if not self._is_bad(name)}
        for name, known in self._watched.items():
            spared = any(not (serving - {name}).intersection(pool) for pool in pools if name in pool)
            if known.out and (spared or not rule.exclude or now >= known.until):
                known.out = False
                known.begin(now)
                events.append(("TRIED_AGAIN", name))
            elif known.mute and not known.out and rule.exclude and not spared and self._is_unanswered(now, rule, known):
                known.pause = min(known.pause * 2 or PAUSE_S, PAUSE_MAX_S)
                known.out, known.until = True, now + known.pause
                events.append(("LEFT_OUT", name))
        return events

    def _take(self, now: float, name: str, reading: RequestCounts) -> Iterator[MuteEvent]:
        known = self._watched.setdefault(name, _ReplicaRecord(reading, now, reading))
        before, known.now = known.now, reading
        if now - known.found > PAUSE_RESET_S and not known.mute:
            known.pause = 0.0
        answered = reading.answers > before.answers
        # Counters restart with their switch or agent.
        restarted = reading.requests < before.requests or reading.answers < before.answers
        restarted |= reading.refused < before.refused or reading.incarnation != before.incarnation
        if not answered and not restarted:
            return
        known.begin(now)
        if answered:
            known.answering = now
        if known.mute and (answered or reading.incarnation != before.incarnation):
            known.mute = False
            yield "ANSWERS", name
            if known.out:
                known.out = False
                yield "TRIED_AGAIN", name

    def _is_bad(self, name: str) -> bool:
        known = self._watched.get(name)
        return known is not None and (known.mute or known.out)

    @staticmethod
    def _is_unanswered(now: float, rule: Mute, known: _ReplicaRecord) -> bool:
        return now - known.since >= rule.after and known.unanswered() >= rule.requests

    def _others_answer(self, since: float, name: str, pools: Collection[Collection[str]]) -> bool:
        """Whether in each of its pools another member has answered since."""
        answering = {other for other, known in self._watched.items() if other != name and known.answering > since}
        return all(answering.intersection(pool) for pool in pools if name in pool)
