"""Connections with a chosen congestion control at the server: it sends without end, the client counts.

    python -m rivulet_bench.cm_traffic send ADDRESS PORT
    python -m rivulet_bench.cm_traffic receive ADDRESS PORT WARM_UP_S SECONDS NAME...
    python -m rivulet_bench.cm_traffic connect ADDRESS PORT COUNT NAME...

The client names the congestion control in the first line of each connection. It prints a line of JSON: the bytes of
each connection after the warm-up, in the order of the names; or, for COUNT connections with each control, the seconds
until the first byte.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import sys
import threading
import time

BLOCK = 1 << 18


def _serve(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):
        name = connection.makefile("rb").readline().strip()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)
        block = bytes(BLOCK)
        while True:
            connection.sendall(block)


def send(address: str, port: int) -> None:
    """Accepts connections until it is killed."""
    with socket.create_server((address, port), backlog=64) as listener:
        print("listening", flush=True)
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_serve, args=(connection,), daemon=True).start()


def receive(address: str, port: int, warm_up_s: float, seconds: float, names: list[str]) -> list[int]:
    """Bytes of each connection in `seconds` after the warm-up."""
    selector = selectors.DefaultSelector()
    counts = [0] * len(names)
    for index, name in enumerate(names):
        connection = socket.create_connection((address, port))
        connection.sendall(name.encode() + b"\n")
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ, index)
    start = time.monotonic() + warm_up_s
    end = start + seconds
    buffer = bytearray(BLOCK)
    while (now := time.monotonic()) < end:
        for key, _ in selector.select(end - now):
            assert isinstance(key.fileobj, socket.socket)
            with contextlib.suppress(BlockingIOError):
                count = key.fileobj.recv_into(buffer)
                if not count:
                    raise SystemExit("a connection ended")
                if time.monotonic() >= start:
                    counts[key.data] += count
    return counts


def connect(address: str, port: int, count: int, names: list[str]) -> list[list[float]]:
    """Seconds until the first byte of each connection, by name."""
    took: list[list[float]] = [[] for _ in names]
    for _ in range(count):
        for name, times in zip(names, took, strict=True):
            begin = time.monotonic()
            with socket.create_connection((address, port)) as connection:
                connection.sendall(name.encode() + b"\n")
                if not connection.recv(1):
                    raise SystemExit("a connection ended")
                times.append(time.monotonic() - begin)
    return took


def main() -> int:
    """Runs one of the two ends."""
    match sys.argv[1:]:
        case ["send", address, port]:
            send(address, int(port))
        case ["receive", address, port, warm_up_s, seconds, *names]:
            print(json.dumps(receive(address, int(port), float(warm_up_s), float(seconds), names)))
        case ["connect", address, port, count, *names]:
            print(json.dumps(connect(address, int(port), int(count), names)))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
