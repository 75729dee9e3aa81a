"""The clients of trods_moves.py: downloads, and connections that ask for something small again and again.

    python -m rivulet_bench.trods_moves_clients PLACE --www DIR --small NAME --large NAME --downloads N --asking M

Says in JSON that all are open. Each line that it reads begins a new phase; it answers with the longest silence of each
connection in the one before, by its port, and with what broke.
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
"""Between an answer and the next question, at least and at most."""
CHUNK = 1 << 18
WINDOW = 8192
"""Of a download: it waits for round trips, not in the queue of a link that all of them fill."""


class Connection:
    """One, with the longest silence while something was awaited."""

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
        """When it was asked, or answered in part; none while nothing is awaited."""
        self.due = 0.0
        self.longest = 0.0
        self.answers = 0
        self.problem = ""

    def turn(self, now: float) -> None:
        """Asks, if it is time to."""
        if self.since is None and now >= self.due and not self.problem:
            self.head, self.at, self.since = b"", -1, now
            self.socket.sendall(self.ask)

    def read(self, now: float) -> None:
        """Takes what is there."""
        try:
            octets = self.socket.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            self.problem = str(error)
            return
        if not octets:
            self.problem = "the other end closed"
            return
        if self.since is not None:
            self.longest = max(self.longest, now - self.since)
            self.since = now
        if self.at < 0:
            self.head += octets
            head, found, octets = self.head.partition(b"\r\n\r\n")
            if not found:
                return
            if not head.startswith(b"HTTP/1.1 200 "):
                self.problem = head[:40].decode(errors="replace")
                return
            self.at = 0
        if octets != self.content[self.at : self.at + len(octets)]:
            self.problem = "wrong octets"
        self.at += len(octets)
        if self.at >= len(self.content):
            self.answers += 1
            self.since = None
            self.due = now + (random.uniform(*PAUSE_S) if self.asks_again else 0.0)


def main() -> int:
    """The command."""
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
        _say({"open": len(all_)})
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
    """One ends; false at the end of all."""
    if not os.read(sys.stdin.fileno(), 4096):
        return False
    now = time.monotonic()
    gaps = {}
    for connection in all_:
        # What is still awaited has been for as long.
        awaited = now - connection.since if connection.since is not None else 0.0
        gaps[str(connection.port)] = round(1e3 * max(connection.longest, awaited), 2)
        connection.longest = 0.0
    problems = {str(c.port): c.problem for c in all_ if c.problem}
    _say({"gaps": gaps, "problems": problems, "answers": sum(c.answers for c in all_)})
    return True


def _say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    sys.exit(main())
