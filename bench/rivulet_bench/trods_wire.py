"""A plain HTTP client that records the times of received bytes and compares each byte, which curl cannot do.

A `Wire` is a connection over a kernel socket, with one request after the other or several at once (pipelining). A
connection that ends before its answers are complete is broken; bytes that differ from the file are wrong.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

SILENCE_S = 0.1
"""Seconds: shorter gaps in an answer are not recorded."""
HEAD_MOST = 8192

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request and its expected answer."""

    path: str
    content: bytes
    first: int = -1
    last: int = -1
    """A range of the file (None: the whole file)."""

    @property
    def size(self) -> int:
        """Bytes of the answer's body."""
        return len(self.content) if self.first < 0 else self.last - self.first + 1

    @property
    def begin(self) -> int:
        """Offset of the answer in the file."""
        return max(self.first, 0)

    def request(self, host: str) -> bytes:
        """The request as it is sent."""
        lines = [f"GET /{self.path} HTTP/1.1", f"Host: {host}"]
        if self.first >= 0:
            lines.append(f"Range: bytes={self.first}-{self.last}")
        return "\r\n".join((*lines, "", "")).encode()


@dataclass(slots=True, eq=False)
class Wire(asyncio.Protocol):
    """A connection. `problem` is the reason why it broke; `wrong` means that bytes differed."""

    host: str
    port: int = 0
    opened: float = 0.0
    closed: float = 0.0
    asked: int = 0
    answered: int = 0
    received: int = 0
    problem: str = ""
    wrong: bool = False
    silences: list[tuple[float, float]] = field(default_factory=list)
    """Gaps without data of a due answer: begin and end in seconds of the monotonic clock."""
    since: float = 0.0
    """Time of the last received bytes or sent request."""
    on_data: Callable[[float], None] | None = None
    transport: asyncio.Transport | None = None
    _due: deque[Wanted] = field(default_factory=deque)
    _head: bytes = b""
    _at: int = -1
    """Received bytes of the body; -1 within the head."""
    _waiter: asyncio.Future[bool] | None = None
    _done: bool = False

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.port = transport.get_extra_info("sockname")[1]

    def data_received(self, data: bytes) -> None:
        """Bytes arrived."""
        now = time.monotonic()
        if self.problem or self.wrong:
            return
        if not self._due:
            self._fail(f"{len(data)} bytes without a request", wrong=True)
            return
        if now - self.since > SILENCE_S:
            self.silences.append((self.since, now))
        self.since = now
        self.received += len(data)
        at = 0
        while at < len(data) and self._due:
            at = self._body(data, at) if self._at >= 0 else self._heading(data, at)
            if at < 0:
                return
        if at < len(data):
            self._fail(f"{len(data) - at} bytes without a request", wrong=True)
        if self.on_data is not None:
            self.on_data(now)
        if not self._due:
            self._settle(True)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection ended."""
        self.closed = time.monotonic()
        if not self._done and not self.problem and not self.wrong:
            what = "reset" if isinstance(exc, ConnectionResetError) else str(exc) if exc is not None else "closed"
            when = "idle" if not self._due else f"after {max(self._at, 0)} of {self._due[0].size} bytes"
            self.problem = f"{what} {when}, answer {self.answered + 1}"
            if self._due and self.closed - self.since > SILENCE_S:
                self.silences.append((self.since, self.closed))
        self._settle(False)

    # Reading

    def _heading(self, data: bytes, at: int) -> int:
        before = len(self._head)
        self._head += data[at : at + HEAD_MOST]
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            if len(self._head) > HEAD_MOST:
                return self._fail("a head without an end", wrong=True)
            return at + len(self._head) - before
        head, wanted = self._head[: end + 2], self._due[0]
        status, length = _STATUS.match(head), _LENGTH.search(head)
        right = b"206" if wanted.first >= 0 else b"200"
        if status is None or length is None or status[1] != right or int(length[1]) != wanted.size:
            return self._fail(f"another head: {head[:120]!r}", wrong=True)
        used = end + 4 - before
        self._head, self._at = b"", 0
        self._ended()
        return at + used

    def _body(self, data: bytes, at: int) -> int:
        wanted = self._due[0]
        count = min(len(data) - at, wanted.size - self._at)
        place = wanted.begin + self._at
        if data[at : at + count] != wanted.content[place : place + count]:
            return self._fail(f"wrong bytes within {count} from {place} of {wanted.path}", wrong=True)
        self._at += count
        self._ended()
        return at + count

    def _ended(self) -> None:
        if self._at == self._due[0].size:
            self._due.popleft()
            self._at = -1
            self.answered += 1

    def _fail(self, problem: str, wrong: bool = False) -> int:
        self.problem, self.wrong = problem, wrong
        assert self.transport is not None
        self.transport.abort()
        return -1

    def _settle(self, well: bool) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(well)

    # Actions of a client

    def send(self, *wanted: Wanted) -> None:
        """Sends several requests at once."""
        assert self.transport is not None
        if not self._due:
            self.since = time.monotonic()
        self._due.extend(wanted)
        self.asked += len(wanted)
        self.transport.write(b"".join(one.request(self.host) for one in wanted))

    async def fetch(self, *wanted: Wanted, patience_s: float = 120.0) -> bool:
        """Sends several requests at once; returns whether all answers arrived byte for byte."""
        if self.closed:
            return False
        self._waiter = asyncio.get_running_loop().create_future()
        self.send(*wanted)
        while not self._waiter.done():
            await asyncio.wait((self._waiter,), timeout=1.0)
            if not self._waiter.done() and time.monotonic() - self.since > patience_s:
                self.silences.append((self.since, time.monotonic()))
                self._fail(f"nothing for {patience_s:g} s after {max(self._at, 0)} bytes, answer {self.answered + 1}")
        return self._waiter.result() and not self.problem

    def close(self) -> None:
        """Closes the connection."""
        self._done = True
        if self.transport is not None:
            self.transport.close()
        self.closed = self.closed or time.monotonic()


async def connect(
    host: str, port: int, window: int = 0, local: str = "", patience_s: float = 30.0, local_port: int = 0
) -> Wire:
    """Opens a connection; on failure it has a problem. `window`: most bytes in flight to it."""
    wire = Wire(host)
    began = time.monotonic()
    loop = asyncio.get_running_loop()
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        if window:
            # The kernel doubles the value, and announces about half of that.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        if local or local_port:
            sock.bind((local, local_port))
        await asyncio.wait_for(loop.sock_connect(sock, (host, port)), patience_s)
        await loop.create_connection(lambda: wire, sock=sock)
    except (TimeoutError, OSError) as error:
        wire.problem = f"not opened: {error or 'timeout'}"
        wire.closed = time.monotonic()
        sock.close()
    wire.opened = began
    return wire
