"""Programs of users for the benches of the Congestion Manager's calls, over libcm.so.

    python -m rivulet_bench.cm_client LIBCM hold ADDRESS PORT
    python -m rivulet_bench.cm_client LIBCM wait ADDRESS PORT
    python -m rivulet_bench.cm_client LIBCM send ADDRESS PORT SECONDS honest|liar

`hold` has the whole window outstanding, and more requests than it has room for, says so, and keeps it until it is
killed. `wait` asks for a packet when it is told so (a line), and says when it was granted, ns of the monotonic clock.
`send` sends as it is granted and acknowledged, and says last how many bytes arrived; a liar says that he sent an octet
instead of each datagram, and with each acknowledgement that a hundred datagrams arrived of a flow that sends none.
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
        """A socket and its flow."""
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.connect(self.address)
        udp.setblocking(False)
        flow = ctypes.c_uint64(self.cm.cm_open_socket(udp.fileno(), None))
        if not flow.value:
            raise SystemExit(self.said())
        return udp, flow

    def _may_send(self, _flow: int, _context: object) -> None:
        self.granted += 1

    def said(self) -> str:
        """What went wrong."""
        return (self.cm.cm_error() or b"").decode()

    def check(self, result: int) -> int:
        """SystemExit if it failed."""
        if result < 0:
            raise SystemExit(self.said())
        return result

    def request(self) -> None:
        """Asks for a packet."""
        self.check(self.cm.cm_request(self.flow))

    def notify(self, octets: int) -> None:
        """Octets were sent; 0: a grant is left to others."""
        self.check(self.cm.cm_notify(self.flow, octets))

    def update(self, sent: int, arrived: int, mode: int, rtt_ns: int, flow: ctypes.c_uint64 | None = None) -> None:
        """Feedback, of the flow unless another one is named."""
        counts = (ctypes.c_uint64(sent), ctypes.c_uint64(arrived))
        self.check(self.cm.cm_update(flow or self.flow, *counts, mode, ctypes.c_uint64(rtt_ns)))

    def wait(self, seconds: float) -> list[int]:
        """Descriptors that can be read from; grants are taken."""
        ready, _, _ = select.select([self.udp.fileno(), self.cm.cm_fd()], [], [], seconds)
        self.check(self.cm.cm_dispatch())
        return ready


def hold(cm: Cm) -> None:
    """Has the window outstanding."""
    # A round trip time, so that the timeout is the least one.
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
    """Waits for grants, one a line."""
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
    """Sends for some time."""
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
    """One of these."""
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
