"""Decides which agents may register as which replica: by certificate over TCP, by the process's
user over a Unix socket.

An agent receives its replica's keys. An agent without the required fact (certificate, user, or a
user outside of this user namespace) is refused.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

Users = Mapping[str, tuple[str, ...]]
"""By user (name or number), the replicas as which its processes may register
(`listen.agents_users`)."""

OVERFLOW_UID = Path("/proc/sys/kernel/overflowuid")


class Admission(Protocol):
    """Decides about each agent that registers."""

    def refusal(self, replica: str, peer: str, authentication: Mapping[str, Iterable[bytes]]) -> str:
        """Why an agent must not register as a replica; empty if it may.

        `peer` and `authentication` are gRPC's facts about the connection.
        """


class RefuseAll:
    """Refuses every agent: the admission of an `AgentServer` that does not listen yet."""

    def refusal(self, replica: str, peer: str, authentication: Mapping[str, Iterable[bytes]]) -> str:
        """A reason, always."""
        return f"no listener admits {replica!r}"


class ByCertificate:
    """For TCP: the certificate, verified by the TLS handshake, names the replica."""

    def refusal(self, replica: str, peer: str, authentication: Mapping[str, Iterable[bytes]]) -> str:
        """Empty if the common name or a subject alternative name is the replica's name."""
        names = certified_names(authentication)
        if replica in names:
            return ""
        has = f"is for {', '.join(sorted(names))}" if names else "has no name"
        return f"the certificate is not for {replica!r}: its common name or a DNS name must be the replica's; it {has}"


def certified_names(authentication: Mapping[str, Iterable[bytes]]) -> frozenset[str]:
    """The names in the peer's certificate; none without TLS or certificate."""
    if b"ssl" not in authentication.get("transport_security_type", ()):
        return frozenset()
    names = [
        *authentication.get("x509_common_name", ()),
        *authentication.get("x509_subject_alternative_name", ()),
    ]
    return frozenset(name.decode(errors="replace") for name in names if name)


class ByUser:
    """For a Unix socket: the user of the peer's process, as the kernel reports it."""

    def __init__(self, users: Callable[[], Users]) -> None:
        """`users` returns the users in force."""
        self._users = users
        self.connected: dict[str, int] = {}
        """User ids by the peer name that gRPC reports; the accepting listener fills it."""

    def refusal(self, replica: str, peer: str, authentication: Mapping[str, Iterable[bytes]]) -> str:
        """Empty if the user may register as that replica."""
        uid = self.connected.get(peer.rpartition("/")[2])
        if uid is None:
            return f"the user of an agent that registers as {replica!r} is unknown"
        names = self.replicas(uid)
        if names is None or replica in names:
            return ""
        if uid == overflow_uid():
            return (
                f"user {_user_name(uid)} may not register as {replica!r}, even if agents_users lists it: this number"
                " stands for all users of other user namespaces. Run the agent as a user of its own, and the controller"
                " without PrivateUsers="
            )
        return (
            f"user {_user_name(uid)} may not register as {replica!r}: set in the controller's file"
            f" `listen: {{agents_users: {{{_user_name(uid)}: [{replica}]}}}}`"
        )

    def replicas(self, uid: int) -> frozenset[str] | None:
        """`replicas_of` with the users in force."""
        return replicas_of(uid, self._users())


def replicas_of(uid: int, users: Users) -> frozenset[str] | None:
    """Replicas as which a user's processes may register; None for any (root and the controller's
    own user).
    """
    if uid == overflow_uid():
        # The kernel shows this id for every user outside of this user namespace.
        return frozenset()
    if uid in (0, os.geteuid()):
        # Both can read the controller's state, with all keys.
        return None
    return frozenset(name for user, names in users.items() if _uid(user) == uid for name in names)


def overflow_uid() -> int:
    """The id that the kernel shows for users without an id in this user namespace."""
    try:
        return int(OVERFLOW_UID.read_text())
    except (OSError, ValueError):
        return 65534


def _uid(user: str) -> int | None:
    """A user's id; None if this machine has no such user now."""
    if user.isdigit():
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
