"""Who may do what through the API: the roles of tokens, and what each kind of listener grants without one.

Rights come from the listener that accepted the connection. The connection's own facts grant nothing: its peer's address
is missing, for example, once the peer has reset it.
"""

from __future__ import annotations

import enum
import hmac
import logging
import re
from dataclasses import dataclass
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from .private_file import require_private

log = logging.getLogger("rivulet.rights")

TOKENS_MAX = 64 << 10
"""Longest token file, bytes."""


class Role(enum.IntEnum):
    """Each may do what those below it may."""

    READ = 1
    """Look: status, metrics, entries, plans."""
    OPERATE = 2
    """Drain, weigh, rotate keys, kill in the lab."""
    APPLY = 3
    """Replace the configuration."""


class Listener(enum.Enum):
    """The kind of listener that accepted a connection."""

    TCP = "tcp"
    UNIX = "unix"
    """A Unix socket that only the controller's own user and root can open."""


LISTENER = "rivulet.listener"
"""The key of an ASGI scope under which its `Listener` stands."""


class AcceptedBy:
    """An ASGI application as one listener serves it: each request carries that listener."""

    def __init__(self, app: ASGIApp, listener: Listener) -> None:
        self._app = app
        self._listener = listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, LISTENER: self._listener}, receive, send)


def listener_of(scope: Scope) -> Listener:
    """The listener that accepted a request; TCP, which grants nothing by itself, where none is noted."""
    found = scope.get(LISTENER)
    return found if isinstance(found, Listener) else Listener.TCP


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, as the audit log names them, and what they may."""

    name: str
    role: Role


class Tokens:
    """The tokens of a file, one `NAME:ROLE:TOKEN` a line; empty lines and those that begin with `#` are none."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._told = ""

    @property
    def wanted(self) -> bool:
        """Whether requests over the network need one."""
        return self._path is not None

    def caller(self, token: str) -> Caller | None:
        """Whose token this is. The file is read each time, so that a token can be withdrawn."""
        try:
            known = self.read()
        except (OSError, ValueError) as error:
            if str(error) != self._told:
                log.error("nobody is let in: %s", error)
            self._told = str(error)
            return None
        self._told = ""
        found = None
        for secret, caller in known:
            # Each is compared, so that the time says nothing about which.
            if hmac.compare_digest(secret.encode(), token.encode()):
                found = caller
        return found

    def read(self) -> list[tuple[str, Caller]]:
        """Tokens and whose they are. Raises OSError, and ValueError with the line of what is not right."""
        if self._path is None:
            return []
        require_private(self._path)
        with self._path.open(encoding="utf-8") as file:
            text = file.read(TOKENS_MAX + 1)
        if len(text) > TOKENS_MAX:
            raise ValueError(f"{self._path}: longer than {TOKENS_MAX} bytes")
        found = []
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            match = re.fullmatch(r"\s*([^\s:#]+):(read|operate|apply):(\S{6,})\s*", line)
            if match is None:
                raise ValueError(
                    f"{self._path}:{number}: not NAME:ROLE:TOKEN with role read, operate or apply and a token of six"
                    " characters or more"
                )
            found.append((match[3], Caller(match[1], Role[match[2].upper()])))
        return found
