"""Clients of trods_moves.py: downloads, and connections that request small objects repeatedly.

    python -m rivulet_bench.trods_moves_clients PLACE --www DIR --small NAME --large NAME --downloads N --asking M

It prints a line of JSON when all connections are open. Each input line ends a phase; the answer has each connection's
longest gap in that phase, by port, and the broken connections.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import selectors
import socket
import sys
import time
from pathlib import Path
from typing import Any

PAUSE_S = (0.05, 0.3)
"""Least and most seconds between an answer and the next request."""
CHUNK = 1 << 18
WINDOW = 8192
"""Receive window of a download, which keeps it from filling the link's queue."""


class Connection:
    """A connection, with its longest wait for data."""

    def __init__(self, to: tuple[str, int], name: str, content: bytes, asks_again: bool) -> None:
        self.socket = socket.socket()
        if not asks_again:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW)
        self.socket.connect(to)
        self.socket.setblocking(False)
        self.port = self.socket.getsockname()[1]
        self.ask = f"GET /{name} HTTP/1.1\r\nHost: bench\r\n\r\n".encode()
        self.content, self.asks_again = content, asks_again
        self.head, self.at = b"", -1
        self.since: float | None = None
        """Time of the request or of the last data; None while no data is due."""
        self.due = 0.0
        self.longest = 0.0
        self.answers = 0
        self.problem = ""

    def turn(self, now: float) -> None:
        """Sends a request if it is time to."""
        if self.since is None and now >= self.due and not self.problem:
            self.head, self.at, self.since = b"", -1, now
            self.socket.sendall(self.ask)

    def read(self, now: float) -> None:
        """Reads the available data."""
        try:
            data = self.socket.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            self.problem = str(error)
            return
        if not data:
            self.problem = "the other end closed"
            return
        if self.since is not None:
            self.longest = max(self.longest, now - self.since)
            self.since = now
        if self.at < 0:
            self.head += data
            head, found, data = self.head.partition(b"\r\n\r\n")
            if not found:
                return
            if not head.startswith(b"HTTP/1.1 200 "):
                self.problem = head[:40].decode(errors="replace")
                return
            self.at = 0
        if data != self.content[self.at : self.at + len(data)]:
            self.problem = "wrong bytes"
        self.at += len(data)
        if self.at >= len(self.content):
            self.answers += 1
            self.since = None
            self.due = now + (random.uniform(*PAUSE_S) if self.asks_again else 0.0)


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("to")
    parser.add_argument("--www", type=Path, required=True)
    parser.add_argument("--small", required=True)
    parser.add_argument("--large", required=True)
    parser.add_argument("--downloads", type=int, required=True)
    parser.add_argument("--asking", type=int, required=True)
    options = parser.parse_args()
    address, _, port = options.to.rpartition(":")
    contents = {name: (options.www / name).read_bytes() for name in (options.small, options.large)}
    wanted = [(options.large, False)] * options.downloads + [(options.small, True)] * options.asking
    all_ = [Connection((address, int(port)), name, contents[name], asks) for name, asks in wanted]
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        for connection in all_:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        _emit({"open": len(all_)})
        while True:
            _turn(all_)
            for key, _ in selector.select(0.005):
                if key.data is not None:
                    key.data.read(time.monotonic())
                    if key.data.problem:
                        selector.unregister(key.fileobj)
                elif not _phase(all_):
                    return 0


def _turn(all_: list[Connection]) -> None:
    now = time.monotonic()
    for connection in all_:
        connection.turn(now)


def _phase(all_: list[Connection]) -> bool:
    """Ends a phase; returns False at the end of all."""
    if not os.read(sys.stdin.fileno(), 4096):
        return False
    now = time.monotonic()
    gaps = {}
    for connection in all_:
        # An open wait counts up to now.
        awaited = now - connection.since if connection.since is not None else 0.0
        gaps[str(connection.port)] = round(1e3 * max(connection.longest, awaited), 2)
        connection.longest = 0.0
    problems = {str(c.port): c.problem for c in all_ if c.problem}
    _emit({"gaps": gaps, "problems": problems, "answers": sum(c.answers for c in all_)})
    return True


def _emit(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    sys.exit(main())
