"""Replicas that heartbeat and answer nothing: found from what the switches count, left out where that is wanted.

A request is counted with the replica that gets it, a response where it comes in. A replica that gets requests for a
while, more than its agent says it refused, while no response comes in from its port, is *mute*, if others of its pools
answer meanwhile: what nobody answers is not the replica's fault. One response ends that.

Where the configuration says so the controller leaves a mute replica out as if it was drained, so that a switch still
sends it what nobody else takes. It is tried again after a pause that doubles each time, and at once when it answers, or
its process is another, or an operator takes it back. It is never left out while no other of a pool of its is live.

Pure: time and readings come in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from .config import Mute

PAUSE_S = 30.0
"""How long a mute replica is left out the first time."""

PAUSE_MAX_S = 960.0

FORGIVEN_S = 600.0
"""One that was not found mute for so long begins with the first pause again."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Of one replica, since its switches started."""

    requests: int
    """That the switches sent to it."""
    answers: int
    """Responses that came in from its port."""
    refused: int
    """Requests that it refused, as its agent says."""
    incarnation: int
    """Of its process."""


@dataclass(slots=True)
class _Watched:
    now: Counted
    since: float
    """When the last response was counted, or the watch began anew."""
    then: Counted
    """What was counted by then."""
    answering: float = float("-inf")
    """When responses were last counted."""
    mute: bool = False
    out: bool = False
    until: float = 0.0
    """When one that is left out is tried again."""
    pause: float = 0.0
    found: float = float("-inf")
    """When it was last found mute."""

    def begin(self, now: float) -> None:
        """Watches anew from here."""
        self.since, self.then = now, self.now

    def unanswered(self) -> int:
        """Requests since then that it neither answered nor refused."""
        return self.now.requests - self.then.requests - (self.now.refused - self.then.refused)


Verdict = tuple[str, str]
"""What happened (MUTE, ANSWERS, LEFT_OUT, TRIED_AGAIN) and to which replica."""


class MuteWatch:
    """One for all replicas; `look` about once a second."""

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}

    def mute(self, replica: str) -> int | None:
        """Requests of which a mute replica answered none; None for one that is not mute."""
        known = self._watched.get(replica)
        return known.unanswered() if known is not None and known.mute else None

    def left_out(self) -> frozenset[str]:
        """Those that the controller leaves out now."""
        return frozenset(name for name, known in self._watched.items() if known.out)

    def tried_again_in(self, replica: str, now: float) -> float:
        """Seconds until one that is left out is tried again."""
        return max(self._watched[replica].until - now, 0.0)

    def take_back(self, replica: str, now: float) -> None:
        """An operator wants it back: it is tried now, and the pauses begin anew."""
        if known := self._watched.get(replica):
            known.out, known.pause = False, 0.0
            known.begin(now)

    def look(
        self,
        now: float,
        rule: Mute,
        counted: Mapping[str, Counted],
        pools: Collection[Collection[str]],
        live: Collection[str],
    ) -> list[Verdict]:
        """Takes a reading in. `counted` has those of which everything was just read, `live` those that serve."""
        for name in [name for name in self._watched if not any(name in pool for pool in pools)]:
            del self._watched[name]
        verdicts = [said for name, reading in counted.items() for said in self._take(now, name, reading)]
        for name, known in self._watched.items():
            if name not in counted:
                # Its port, or its switch, is not read: what was asked meanwhile may have been answered.
                known.begin(now)
            elif not known.mute and self._silent(now, rule, known) and self._others_answer(known.since, name, pools):
                known.mute, known.found = True, now
                verdicts.append(("MUTE", name))
        serving = {name for name in live if not self._is_bad(name)}
        for name, known in self._watched.items():
            spared = any(not (serving - {name}).intersection(pool) for pool in pools if name in pool)
            if known.out and (spared or not rule.exclude or now >= known.until):
                known.out = False
                known.begin(now)
                verdicts.append(("TRIED_AGAIN", name))
            elif known.mute and not known.out and rule.exclude and not spared and self._silent(now, rule, known):
                known.pause = min(known.pause * 2 or PAUSE_S, PAUSE_MAX_S)
                known.out, known.until = True, now + known.pause
                verdicts.append(("LEFT_OUT", name))
        return verdicts

    def _take(self, now: float, name: str, reading: Counted) -> Iterator[Verdict]:
        known = self._watched.setdefault(name, _Watched(reading, now, reading))
        before, known.now = known.now, reading
        if now - known.found > FORGIVEN_S and not known.mute:
            known.pause = 0.0
        answered = reading.answers > before.answers
        # Counters of a switch that restarted, or an agent's, begin anew.
        anew = reading.requests < before.requests or reading.answers < before.answers
        anew |= reading.refused < before.refused or reading.incarnation != before.incarnation
        if not answered and not anew:
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
    def _silent(now: float, rule: Mute, known: _Watched) -> bool:
        return now - known.since >= rule.after and known.unanswered() >= rule.requests

    def _others_answer(self, since: float, name: str, pools: Collection[Collection[str]]) -> bool:
        """Whether in each of its pools some other answered meanwhile."""
        answering = {other for other, known in self._watched.items() if other != name and known.answering > since}
        return all(answering.intersection(pool) for pool in pools if name in pool)
