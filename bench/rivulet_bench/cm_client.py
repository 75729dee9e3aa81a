"""Programs of users for the benches of the Congestion Manager's calls, through libcm.so.

    python -m rivulet_bench.cm_client LIBCM hold ADDRESS PORT
    python -m rivulet_bench.cm_client LIBCM wait ADDRESS PORT
    python -m rivulet_bench.cm_client LIBCM send ADDRESS PORT SECONDS honest|liar

`hold` has the whole window outstanding, requests more, reports that on a line, and stays until it is killed. `wait`
requests a packet for each input line, and prints the time of the grant in ns of the monotonic clock. `send` sends as
granted and acknowledged, and prints the arrived bytes at the end; a liar reports one byte sent in place of each
datagram, and, with each acknowledgement, a hundred arrived datagrams of a flow that sends none.
"""

from __future__ import annotations

import ctypes
import select
import socket
import struct
import sys
import time
from collections import deque

SIZE = 1000
HEAD = struct.Struct("!4sB3xQ")
PERSISTENT, TRANSIENT, NONE = 2, 1, 0
SILENCE_S = 1.0
LATER = 3
NEVER_SENT = 100
WAITING = 64


class Cm:
    """A flow of `cm.h`."""

    def __init__(self, library: str, address: str, port: int) -> None:
        self.cm = ctypes.CDLL(library, use_errno=True)
        self.cm.cm_open_socket.restype = ctypes.c_uint64
        self.cm.cm_error.restype = ctypes.c_char_p
        self.granted = 0
        kind = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_void_p)
        self._callback = kind(self._may_send)
        self.address = (address, port)
        self.udp, self.flow = self.open()
        self.check(self.cm.cm_register_send(self.flow, self._callback, None))

    def open(self) -> tuple[socket.socket, ctypes.c_uint64]:
        """Opens a socket and its flow."""
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.connect(self.address)
        udp.setblocking(False)
        flow = ctypes.c_uint64(self.cm.cm_open_socket(udp.fileno(), None))
        if not flow.value:
            raise SystemExit(self.error_message())
        return udp, flow

    def _may_send(self, _flow: int, _context: object) -> None:
        self.granted += 1

    def error_message(self) -> str:
        """The library's error message."""
        return (self.cm.cm_error() or b"").decode()

    def check(self, result: int) -> int:
        """Raises SystemExit if a call failed."""
        if result < 0:
            raise SystemExit(self.error_message())
        return result

    def request(self) -> None:
        """Requests a grant for a packet."""
        self.check(self.cm.cm_request(self.flow))

    def notify(self, sent: int) -> None:
        """Reports sent bytes; 0 leaves a grant to other flows."""
        self.check(self.cm.cm_notify(self.flow, sent))

    def update(self, sent: int, arrived: int, mode: int, rtt_ns: int, flow: ctypes.c_uint64 | None = None) -> None:
        """Reports feedback for the flow, or for another one."""
        counts = (ctypes.c_uint64(sent), ctypes.c_uint64(arrived))
        self.check(self.cm.cm_update(flow or self.flow, *counts, mode, ctypes.c_uint64(rtt_ns)))

    def wait(self, seconds: float) -> list[int]:
        """Waits; returns the readable descriptors, and takes grants."""
        ready, _, _ = select.select([self.udp.fileno(), self.cm.cm_fd()], [], [], seconds)
        self.check(self.cm.cm_dispatch())
        return ready


def hold(cm: Cm) -> None:
    """Keeps the window outstanding."""
    # A short round-trip time, so that the retransmission timeout is the minimum.
    cm.request()
    while not cm.granted:
        cm.wait(SILENCE_S)
    cm.udp.send(bytes(SIZE))
    cm.update(SIZE, SIZE, NONE, 1_000_000)
    cm.granted = 0
    count = 0
    for _ in range(WAITING):
        cm.request()
    while cm.check(cm.cm.cm_dispatch()):
        while cm.granted:
            cm.granted -= 1
            count += 1
            cm.udp.send(bytes(SIZE))
    print("holds", count, flush=True)
    time.sleep(3600)


def wait(cm: Cm) -> None:
    """Waits for grants, one per input line."""
    print("open", flush=True)
    for _ in sys.stdin:
        cm.granted = 0
        cm.request()
        print("asked", flush=True)
        while not cm.granted:
            cm.wait(SILENCE_S)
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        cm.notify(0)
        print(now, flush=True)


def send(cm: Cm, seconds: float, liar: bool) -> None:
    """Sends for a number of seconds."""
    end = time.monotonic() + seconds
    sent: deque[tuple[int, float]] = deque()
    number = arrived = 0
    heard = time.monotonic()
    _unused, silent = cm.open() if liar else (None, None)
    cm.request()
    while (now := time.monotonic()) < end:
        ready = cm.wait(0.1)
        while cm.granted:
            cm.granted -= 1
            sent.append((number, time.monotonic()))
            cm.udp.send(HEAD.pack(b"cmud", 0, number).ljust(SIZE, b"\0"))
            number += 1
            if liar:
                cm.notify(1)
            cm.request()
        while cm.udp.fileno() in ready:
            try:
                _, _, got = HEAD.unpack(cm.udp.recv(64))
            except BlockingIOError:
                break
            heard = now = time.monotonic()
            lost, rtt = 0, 0.0
            while sent and sent[0][0] + LATER <= got:
                sent.popleft()
                lost += 1
            for entry in [entry for entry in sent if entry[0] == got]:
                rtt = now - entry[1]
                sent.remove(entry)
                arrived += SIZE
            told = (lost + (rtt > 0)) * SIZE
            if told:
                mode = TRANSIENT if lost else NONE
                cm.update(told, SIZE if rtt else 0, mode, int(rtt * 1e9))
            if silent is not None:
                cm.update(NEVER_SENT * SIZE, NEVER_SENT * SIZE, NONE, 0, silent)
        if now - heard > SILENCE_S and sent:
            cm.update(len(sent) * SIZE, 0, PERSISTENT, 0)
            sent.clear()
            heard = now
    print(arrived, flush=True)


def main() -> int:
    """Runs one of the programs."""
    match sys.argv[1:]:
        case [library, "hold", address, port]:
            hold(Cm(library, address, int(port)))
        case [library, "wait", address, port]:
            wait(Cm(library, address, int(port)))
        case [library, "send", address, port, seconds, ("honest" | "liar") as how]:
            send(Cm(library, address, int(port)), float(seconds), how == "liar")
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
