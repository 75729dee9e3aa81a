"""A worker process for jobs that hostile input can make long; it is killed when a job takes too
long.

Python cannot end a thread, and a long computation in a thread slows the event loop down. A process
can be killed, has its own limits of time and memory, and runs at lower priority.

>>> worker = Worker("plans")
>>> await worker.run(parse, text)        # raises Overdue, Busy, and what `parse` raises
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import resource
import struct
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, BinaryIO, TypeVar

log = logging.getLogger("rivulet.worker")

Result = TypeVar("Result")

CPU_S = 30.0
"""Processor time of a job."""

WALL_S = 120.0
"""Elapsed time of a job: longer than CPU_S, since a busy machine gives it less than one
processor."""

MEMORY_BYTES = 1 << 30
"""Memory of the process."""

WAITING_MAX = 4
"""Jobs that may wait for the one that runs."""

IDLE_S = 60.0
"""A process without a job for this long ends: it holds about 100 MB."""

ANSWER_MAX_BYTES = 64 << 20
"""Longest result of a job."""

LENGTH = struct.Struct("!Q")


class Overdue(Exception):
    """A job exceeded its time or memory and was ended."""


class Busy(Exception):
    """Too many jobs wait already."""


class Worker:
    """Runs one job at a time in a process that it starts when needed."""

    def __init__(self, name: str, cpu_s: float = CPU_S, wall_s: float = WALL_S) -> None:
        self.name = name
        self.pid: int | None = None
        """The process's id while it runs."""
        self._limits = (cpu_s, wall_s)
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._process: asyncio.subprocess.Process | None = None
        self._idle: asyncio.TimerHandle | None = None

    async def run(self, job: Callable[..., Result], *arguments: Any) -> Result:
        """Calls a module-level function in the process. Arguments and result are pickled outside of
        the event loop's thread.

        Raises Overdue, Busy, and what the function raises.
        """
        async with self.turn():
            return await self.run_in_turn(job, *arguments)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits until the process is free and reserves it, for callers whose arguments are too
        large to be held while waiting.

        Raises Busy.
        """
        self.refuse_if_busy()
        self._waiting += 1
        try:
            async with self._turn:
                yield
        finally:
            self._waiting -= 1

    def refuse_if_busy(self) -> None:
        """Raises Busy if too many jobs wait already."""
        if self._waiting > WAITING_MAX:
            raise Busy(f"{self._waiting} requests of this kind are waiting: try again later")

    async def run_in_turn(self, job: Callable[..., Result], *arguments: Any) -> Result:
        """Like `run`, for a caller that holds the turn. Raises Overdue, and what the function
        raises.
        """
        cpu_s, wall_s = self._limits
        frame = await asyncio.to_thread(_frame, (cpu_s, job, arguments))
        if self._idle is not None:
            self._idle.cancel()
        try:
            async with asyncio.timeout(wall_s):
                failed, result = await self._exchange(frame)
        except (TimeoutError, EOFError, OSError, asyncio.IncompleteReadError) as error:
            log.warning("worker %s: killed, because a job exceeded its limits (%s)", self.name, type(error).__name__)
            await self._kill()
            raise Overdue(f"took more than {cpu_s:g} s of processor time, {wall_s:g} s or 1 GiB of memory") from None
        except BaseException:
            # The next job must not read the rest of this exchange.
            await self._kill()
            raise
        self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._end_idle)
        if failed:
            raise result
        return result  # type: ignore[no-any-return]

    async def stop(self) -> None:
        """Ends the process."""
        if self._idle is not None:
            self._idle.cancel()
        await self._kill()

    async def _exchange(self, frame: bytes) -> tuple[bool, Any]:
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await self._start()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(frame)
        await process.stdin.drain()
        length = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))[0]
        if length > ANSWER_MAX_BYTES:
            raise EOFError
        return await asyncio.to_thread(pickle.loads, await process.stdout.readexactly(length))

    async def _start(self) -> asyncio.subprocess.Process:
        path = os.pathsep.join(filter(None, sys.path))
        # -P: with -m alone, Python searches the current folder first, where another user may have
        # put a `pickle.py`.
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", __name__, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path}, limit=1 << 20,
        )  # fmt: skip
        self.pid = process.pid
        return process

    def _end_idle(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            # The process exits at the end of its input.
            self._process.stdin.close()
            self._process, self.pid = None, None

    async def _kill(self) -> None:
        process, self._process, self.pid = self._process, None, None
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _frame(content: Any) -> bytes:
    """A value as it crosses the pipe: length and pickle."""
    body = pickle.dumps(content)
    return LENGTH.pack(len(body)) + body


def _serve(incoming: BinaryIO, outgoing: BinaryIO) -> None:
    """Runs jobs until the input ends. Sets limits before it unpickles a job."""
    os.nice(2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    while len(head := incoming.read(LENGTH.size)) == LENGTH.size:
        cpu_s, job, arguments = pickle.loads(incoming.read(LENGTH.unpack(head)[0]))
        usage = resource.getrusage(resource.RUSAGE_SELF)
        # The kernel enforces it even if the controller no longer waits.
        most = int(usage.ru_utime + usage.ru_stime + cpu_s) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))
        try:
            answer = _frame((False, job(*arguments)))
        except MemoryError:
            return
        except Exception as error:
            answer = _frame((True, error))
        outgoing.write(answer)
        outgoing.flush()


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
