"""Receives RTP (RFC 3550) and counts packets, gaps and reordering.

    python -m rivulet_demo.player ADDRESS PORT RESULT

On SIGTERM it writes a line of JSON.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

HEADER = 12
"""Bytes of an RTP header without contributing sources."""


@dataclass(slots=True)
class RtpCounts:
    """Counts of received packets."""

    packets: int = 0
    octets: int = 0
    """Payload bytes."""
    other: int = 0
    """Datagrams that are not RTP, or from another source."""
    backwards: int = 0
    """Packets that arrived twice, or after a later one."""
    gaps: int = 0
    """Missing sequence numbers."""

    def take(self, datagram: bytes, state: list[int]) -> None:
        """Counts one datagram; `state` holds source and last sequence number after the first."""
        if len(datagram) < HEADER or datagram[0] >> 6 != 2:
            self.other += 1
            return
        number, source = int.from_bytes(datagram[2:4], "big"), int.from_bytes(datagram[8:12], "big")
        if state and state[0] != source:
            self.other += 1
            return
        # Sequence numbers wrap around.
        step = (number - state[1]) % (1 << 16) if state else 1
        if not 0 < step < 1 << 15:
            self.backwards += 1
            return
        self.gaps += step - 1
        self.packets += 1
        self.octets += len(datagram) - HEADER
        state[:] = [source, number]


def play(address: str, port: int, result: Path) -> None:
    """Receives until SIGTERM."""
    heard, state = RtpCounts(), list[int]()

    def end(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        listener.bind((address, port))
        print("listening", flush=True)
        try:
            while True:
                heard.take(listener.recv(1 << 16), state)
        except KeyboardInterrupt:
            listener.setblocking(False)
            try:
                while True:
                    heard.take(listener.recv(1 << 16), state)
            except BlockingIOError:
                result.write_text(json.dumps(asdict(heard)))


if __name__ == "__main__":
    play(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
