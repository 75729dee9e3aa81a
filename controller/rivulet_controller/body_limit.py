"""Limits of the bodies of requests to the API."""

from __future__ import annotations

import asyncio

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_MAX = 64 << 10
"""Longest body of other requests in bytes: it is read before the caller is authenticated."""

BODY_S = 30.0
"""Time for a body to arrive."""


class BodyLimit:
    """Middleware that limits the size and time of request bodies."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in ("/api/plan", "/api/apply"):
            # These handlers read the body themselves, after they have authenticated the caller.
            await self._app(scope, receive, send)
            return
        left, end, whole = BODY_MAX, asyncio.get_running_loop().time() + BODY_S, False

        async def bounded() -> Message:
            nonlocal left, whole
            if whole:
                # After the body, `receive` waits for the end of the connection, which has no time
                # limit.
                return await receive()
            try:
                async with asyncio.timeout_at(end):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"the body took longer than {BODY_S:g} s to arrive") from None
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, f"a body has at most {BODY_MAX} bytes")
            whole = not message.get("more_body", False)
            return message

        await self._app(scope, bounded, send)
