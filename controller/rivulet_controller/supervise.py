"""Loops that must not end: errors of a round are logged and the round is repeated, and a round that
hangs is reported.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

log = logging.getLogger("rivulet.supervise")

HANG_S = 15.0
"""A round that takes longer counts as hung: longer than any call to a switch may take."""


class SessionBroken(Exception):
    """A call was cancelled although this task was not: gRPC does so when a session breaks."""


@contextmanager
def unbroken() -> Iterator[None]:
    """Turns a CancelledError that does not cancel this task into SessionBroken."""
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise SessionBroken("the session broke") from None


class Loop:
    """Runs `work` after each `wake`, and every `every_s` seconds if given; ends only when
    cancelled.

    >>> loop = Loop("writes to tor1", write, every_s=1.0)
    >>> loop.start(); loop.wake(); ...; await loop.stop()
    """

    def __init__(self, name: str, work: Callable[[], Awaitable[object]], every_s: float | None = None) -> None:
        self.name = name
        self.rounds = 0
        """Rounds that ended, with or without error."""
        self.error = ""
        """Error of the last round; empty if it succeeded."""
        self._work = work
        self._every_s = every_s
        self._wanted = asyncio.Event()
        self._began: float | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts the loop with an immediate round."""
        self._wanted.set()
        self._task = asyncio.create_task(self._run(), name=self.name)

    def wake(self) -> None:
        """Requests a round, after the one under way."""
        self._wanted.set()

    async def stop(self) -> None:
        """Cancels the loop and waits for its end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def problem(self) -> str:
        """Why the loop does not work; empty if it does."""
        if self._task is not None and self._task.done():
            return f"{self.name}: ended"
        if self._began is not None and (took := time.monotonic() - self._began) > HANG_S:
            return f"{self.name}: hangs for {took:.0f} s"
        return f"{self.name}: {self.error}" if self.error else ""

    async def _run(self) -> None:
        while True:
            # Not wait_for: in Python 3.11 it can swallow a cancellation that coincides with the
            # event.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every_s):
                    await self._wanted.wait()
            self._wanted.clear()
            self._began = time.monotonic()
            try:
                with unbroken():
                    await self._work()
                self.error = ""
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
                if problem != self.error:
                    log.warning("%s: %s; retrying", self.name, problem, exc_info=not isinstance(error, SessionBroken))
                self.error = problem
            finally:
                self._began = None
                self.rounds += 1
