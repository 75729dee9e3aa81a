"""Which agent may be which replica: over TCP its certificate says, over a Unix socket its process's user.

A replica's agent is given that replica's keys. Where a fact is missing (no certificate, no user, a user outside of this
user namespace) the agent is refused.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

Users = Mapping[str, tuple[str, ...]]
"""By user (a name or a number), the replicas that processes of that user may be (`listen.agents_users`)."""

OVERFLOW_UID = Path("/proc/sys/kernel/overflowuid")


class Admission(Protocol):
    """Decides about each agent that registers."""

    def refusal(self, replica: str, peer: str, authentication: Mapping[str, Iterable[bytes]]) -> str:
        """Why an agent must not be a replica; empty if it may.

        `peer` and `authentication` are what gRPC reports of the connection.
        """


class Nobody:
    """Refuses every agent: what an `AgentServer` has before it listens."""

    def refusal(self, replica: str, peer: str, authentication: Mapping[str, Iterable[bytes]]) -> str:
        """Always a reason."""
        return f"no listener admits {replica!r}"


class ByCertificate:
    """Over TCP: the certificate, which the TLS handshake has checked, names the replica."""

    def refusal(self, replica: str, peer: str, authentication: Mapping[str, Iterable[bytes]]) -> str:
        """Empty if the common name or a subject alternative name is the replica's."""
        names = certified_names(authentication)
        if replica in names:
            return ""
        has = f"is for {', '.join(sorted(names))}" if names else "names none"
        return (
            f"the certificate is not for {replica!r}: its common name or a DNS name must be the replica's, and it {has}"
        )


def certified_names(authentication: Mapping[str, Iterable[bytes]]) -> frozenset[str]:
    """The names in the other side's certificate; none where there is no TLS, or no certificate."""
    if b"ssl" not in authentication.get("transport_security_type", ()):
        return frozenset()
    names = [
        *authentication.get("x509_common_name", ()),
        *authentication.get("x509_subject_alternative_name", ()),
    ]
    return frozenset(name.decode(errors="replace") for name in names if name)


class ByUser:
    """Over a Unix socket: the user of the process at the other end, as the kernel reports it."""

    def __init__(self, users: Callable[[], Users]) -> None:
        """`users` gives the configuration in force."""
        self._users = users
        self.connected: dict[str, int] = {}
        """User ids by the name under which gRPC knows a connection; written by the listener that accepted it."""

    def refusal(self, replica: str, peer: str, authentication: Mapping[str, Iterable[bytes]]) -> str:
        """Empty if the user may be that replica."""
        uid = self.connected.get(peer.rpartition("/")[2])
        if uid is None:
            return f"the user who calls itself {replica!r} is not known"
        names = self.replicas(uid)
        if names is None or replica in names:
            return ""
        if uid == overflow_uid():
            return (
                f"user {_user_name(uid)} may not be {replica!r}, whatever agents_users says: the kernel shows users of"
                " other user namespaces under this number. Run the agent as a user of its own, and the controller"
                " without PrivateUsers="
            )
        return (
            f"user {_user_name(uid)} may not be {replica!r}: let the controller's file say"
            f" `listen: {{agents_users: {{{_user_name(uid)}: [{replica}]}}}}`"
        )

    def replicas(self, uid: int) -> frozenset[str] | None:
        """`replicas_of` by the configuration in force."""
        return replicas_of(uid, self._users())


def replicas_of(uid: int, users: Users) -> frozenset[str] | None:
    """The replicas that processes of a user may be; None: any, as for root and the controller's own user."""
    if uid == overflow_uid():
        # The kernel's stand-in for every user outside of this user namespace.
        return frozenset()
    if uid in (0, os.geteuid()):
        # Either can read the controller's state, with all keys.
        return None
    return frozenset(name for user, names in users.items() if _uid(user) == uid for name in names)


def overflow_uid() -> int:
    """The number under which the kernel shows users that have none here."""
    try:
        return int(OVERFLOW_UID.read_text())
    except (OSError, ValueError):
        return 65534


def _uid(user: str) -> int | None:
    """A user's number; None if this machine has no such user (now)."""
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
