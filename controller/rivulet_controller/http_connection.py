"""Connections of the API's listeners: idle connections are closed to make room for new ones.

Uvicorn answers 503 once a listener has `CONNECTIONS_MAX` connections, idle ones included, and gives
the first request of a connection unlimited time. So when many are open, a new connection closes the
one that has been idle longest.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MAX = 200
"""Connections of a listener; with more, requests are answered with 503."""

IDLE_FROM = 100
"""Number of open connections from which on idle ones are closed. The places above it are for
requests that are being answered.
"""


class HttpConnection(H11Protocol):
    """An HTTP/1.1 connection."""

    since = 0.0
    """When it was accepted, or when its last response ended."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Closes the connection that has been idle longest if there are many."""
        self.since = self.loop.time()
        if len(self.connections) >= IDLE_FROM:
            others = (other for other in self.connections if isinstance(other, HttpConnection) and other.gives_way())
            first = min(others, key=lambda other: (not other.is_idle(), other.since), default=None)
            if first is not None:
                self.connections.discard(first)
                first.transport.abort()
        super().connection_made(transport)

    def on_response_complete(self) -> None:
        """The connection is idle from now on."""
        self.since = self.loop.time()
        super().on_response_complete()

    def is_idle(self) -> bool:
        """Whether it waits for the head of a request."""
        return self.cycle is None or self.cycle.response_complete

    def gives_way(self) -> bool:
        """Whether it waits for its client: to send a request or its body, or to read a response."""
        return self.is_idle() or self.cycle.more_body or self.flow.write_paused
