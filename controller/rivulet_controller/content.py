"""Which content is served to a service's plain clients without connection state (docs/plain.md,
"New content").

Each replica builds a table from its own directory, and any replica may answer any packet. So one
version is in force at a time, the majority's, and replicas with another version serve none of these
clients. A connection belongs to the content in force when it began: a change of content brings a
new cookie key, so that no client receives bytes of two contents.

Pure functions: the replicas' versions are arguments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Content:
    """The version in force for a service, and the version that replaces it."""

    version: int = 0
    """Version as replicas report it; 0: undecided."""
    epoch: int = 0
    """Epoch of the cookie key with which this version came into force; older connections belong to
    older content. 0: any."""
    following: int = 0
    """Version that comes into force with the next cookie key; 0: none."""
    since: int = 0
    """Epoch of the cookie key in use when `following` was chosen; its successor is the first key
    for `following`."""

    @property
    def rotates(self) -> bool:
        """Whether a change of content waits for a new cookie key."""
        return self.following != 0

    def __str__(self) -> str:
        """For logs and the status page."""
        if not self.version:
            return "undecided"
        return f"{self.version:08x}" + (f", {self.following:08x} follows" if self.following else "")


def elect(has: Mapping[str, int], now: int, voters: int, waits: bool) -> int:
    """The version that should be in force; 0 if undecided.

    `has`: each reporting replica's version, in the configuration's order. `now`: the version in
    force. `voters`: number of replicas with a vote, reporting or not. `waits`: some replicas may
    still report, so a version must have a majority of all voters to replace the one in force.

    The most frequent version wins. On a tie the version in force stays, else the first in the
    configuration's order wins.
    """
    votes = Counter(has.values())
    if not votes:
        return now
    most = max(votes.values())
    if votes.get(now) == most or (waits and 2 * most <= voters):
        return now
    return next(version for version in has.values() if votes[version] == most)


def step(content: Content, wanted: int, cookie: int) -> Content:
    """The next state. `cookie`: epoch of the cookie key that is usable now, 0 if there is none."""
    if wanted == content.version:
        # The replicas reverted to the version in force: the change is cancelled, though a new key
        # may be on its way.
        return replace(content, following=0, since=0)
    if not content.version:
        return Content(wanted)
    if not content.rotates:
        return replace(content, following=wanted, since=cookie)
    if cookie != content.since:
        return Content(wanted, cookie)
    return replace(content, following=wanted)
