"""Rights of the API's callers: the roles of tokens, and what each kind of listener grants without a
token.

Rights come from the listener that accepted the connection, never from the connection itself: the
peer's address, for example, is missing once the peer has reset the connection.
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
"""Longest token file in bytes."""


class Role(enum.IntEnum):
    """Each role includes those below it."""

    READ = 1
    """Status, metrics, entries, plans."""
    OPERATE = 2
    """Drain, change weights, rotate keys, kill in a lab."""
    APPLY = 3
    """Replace the configuration."""


class Listener(enum.Enum):
    """Kind of listener that accepted a connection."""

    TCP = "tcp"
    UNIX = "unix"
    """A Unix socket that only the controller's own user and root can open."""


LISTENER = "rivulet.listener"
"""Key of the `Listener` in an ASGI scope."""


class AcceptedBy:
    """An ASGI application behind one listener, which it notes in each request's scope."""

    def __init__(self, app: ASGIApp, listener: Listener) -> None:
        self._app = app
        self._listener = listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, LISTENER: self._listener}, receive, send)


def listener_of(scope: Scope) -> Listener:
    """The listener that accepted a request. TCP, which grants nothing, if none is noted."""
    found = scope.get(LISTENER)
    return found if isinstance(found, Listener) else Listener.TCP


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller's name for the audit log, and its role."""

    name: str
    role: Role


class Tokens:
    """Tokens from a file, one `NAME:ROLE:TOKEN` a line; ignores empty lines and comments (`#`)."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._reported_error = ""

    @property
    def wanted(self) -> bool:
        """Whether requests over TCP need a token."""
        return self._path is not None

    def caller(self, token: str) -> Caller | None:
        """The token's caller, or None. Reads the file each time, so that removing a token takes
        effect at once.
        """
        try:
            known = self.read()
        except (OSError, ValueError) as error:
            if str(error) != self._reported_error:
                log.error("all tokens are refused: %s", error)
            self._reported_error = str(error)
            return None
        self._reported_error = ""
        found = None
        for secret, caller in known:
            # Compares all tokens, so that the time does not depend on which one matches.
            if hmac.compare_digest(secret.encode(), token.encode()):
                found = caller
        return found

    def read(self) -> list[tuple[str, Caller]]:
        """All tokens with their callers. Raises OSError, and ValueError with the line of a mistake."""
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
