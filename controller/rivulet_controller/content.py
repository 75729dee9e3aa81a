"""Which content a service's plain clients are answered from without state (docs/plain.md, "New content").

Each replica has a table of its own directory, and any replica may answer any packet. So one version is in force at a
time, that of most replicas, and whoever has another answers none of these clients. A connection belongs to the content
to which it began: with a change comes another cookie key, so that no client is ever given octets of two contents.

Pure: who has what comes in as an argument.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Content:
    """What is in force for a service, and what follows."""

    version: int = 0
    """As replicas tell it; 0: not decided."""
    epoch: int = 0
    """Epoch of the first cookie key under which connections to it began; 0: any."""
    following: int = 0
    """The version that is in force next, once connections begin under another cookie key; 0: none."""
    since: int = 0
    """The cookie key that was in use when `following` was chosen; its successor is the first one of `following`."""

    @property
    def rotates(self) -> bool:
        """Whether another cookie key is awaited."""
        return self.following != 0

    def __str__(self) -> str:
        """In words, for people."""
        if not self.version:
            return "undecided"
        return f"{self.version:08x}" + (f", {self.following:08x} follows" if self.following else "")


def elect(has: Mapping[str, int], now: int, voters: int, waits: bool) -> int:
    """The version that should be in force, 0 for none yet.

    `has`: by replica, what it has, in the configuration's order; `now`: what is in force; `voters`: how many replicas
    there are, whether they are there or not; `waits`: some of them may still be on their way here, so that nothing is
    decided against what they may have.

    Most decide. Of versions that as many have, the one in force stays, else the first one in the configuration's order.
    """
    votes = Counter(has.values())
    if not votes:
        return now
    most = max(votes.values())
    if votes.get(now) == most or (waits and 2 * most <= voters):
        return now
    return next(version for version in has.values() if votes[version] == most)


def step(content: Content, wanted: int, cookie: int) -> Content:
    """The next stage, or the same. `cookie`: epoch of the cookie key that is usable now, 0 if there is none."""
    if wanted == content.version:
        # Who changed their minds meanwhile have brought another key, and nothing else.
        return replace(content, following=0, since=0)
    if not content.version:
        return Content(wanted)
    if not content.rotates:
        return replace(content, following=wanted, since=cookie)
    if cookie != content.since:
        return Content(wanted, cookie)
    return replace(content, following=wanted)
