"""The connections of the API's listeners: one that asks for nothing keeps no other out.

Uvicorn answers 503 once a listener has `CONNECTIONS_MAX` connections, whether they ask for anything or not, and gives
the first request of a connection any time. So where many are open, the one that has been idle for longest gives way.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MAX = 200
"""Connections of a listener. Beyond it requests are answered with 503."""

IDLE_FROM = 100
"""Connections from which on idle ones give way. Requests that are being answered have the other places."""


class Door(H11Protocol):
    """One connection of HTTP/1.1."""

    since = 0.0
    """When it was accepted, or its last response ended."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Has another connection give way where there are many."""
        self.since = self.loop.time()
        if len(self.connections) >= IDLE_FROM:
            others = (other for other in self.connections if isinstance(other, Door) and other.gives_way())
            first = min(others, key=lambda other: (not other.is_idle(), other.since), default=None)
            if first is not None:
                self.connections.discard(first)
                first.transport.abort()
        super().connection_made(transport)

    def on_response_complete(self) -> None:
        """Is idle from now on."""
        self.since = self.loop.time()
        super().on_response_complete()

    def is_idle(self) -> bool:
        """Whether it waits for a request's head."""
        return self.cycle is None or self.cycle.response_complete

    def gives_way(self) -> bool:
        """Whether it waits for its client: for a request, or for a response to be read."""
        return self.is_idle() or self.cycle.more_body or self.flow.write_paused
