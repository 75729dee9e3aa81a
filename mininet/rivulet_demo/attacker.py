"""An attacker in a rack: forged proofs, replays, floods. Run on a client's host by the scenario `attack`.

    python -m rivulet_demo.attacker KIND --device c4-eth0 --rate 5000 --bait "rivulet get ..." --out attacker.json

KIND is `forged`, `replay`, `syn` or `ack`. `forged` and `replay` record the requests of their own small downloads (the
bait). `replay` sends them again unchanged; `forged` sends them with random sums, as a client does that hides a loss.
`syn`, and `ack` (acknowledgements of plain TCP with random numbers), send from addresses that do not exist.
"""

from __future__ import annotations

import argparse
import json
import random
import select
import shlex
import socket
import struct
import subprocess
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from .spec import SERVICE_PORT, SERVICE_V4, STATELESS_PORT, TOR_MAC

BAIT_PAUSE_S = 0.2
BURST = 64
"""Most packets that are sent at once. Packets that are late are not sent: the link would drop the burst."""
MEMORY_S = 2.0
"""Age above which recorded requests are not sent: the switch would soon refuse them as stale."""

_ETH_P_ALL = 3
_IP, _TCP = 14, 34
_PAYLOAD = _TCP + 28
_OPTION = b"\xfd\x08\x52\x56"
_NORMAL = 1
_SUM = _PAYLOAD + 44 + 4
"""Offset of the first proof entry's sum (docs/wire-format.md)."""


def checksum(data: bytes) -> int:
    """RFC 1071."""
    if len(data) % 2:
        data += b"\0"
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def tcp_checksum(packet: bytearray) -> None:
    """Fills in the TCP checksum of an IPv4 frame."""
    length = int.from_bytes(packet[_IP + 2 : _IP + 4], "big") - 20
    packet[_TCP + 16 : _TCP + 18] = b"\0\0"
    pseudo = bytes(packet[_IP + 12 : _IP + 20]) + struct.pack(">HH", 6, length)
    packet[_TCP + 16 : _TCP + 18] = checksum(pseudo + bytes(packet[_TCP : _TCP + length])).to_bytes(2, "big")


def is_request_with_proof(frame: bytes) -> bool:
    """Whether a frame is a NORMAL request that contains its first proof entry."""
    return (
        len(frame) >= _SUM + 4
        and frame[12:14] == b"\x08\x00"
        and frame[_IP] == 0x45
        and frame[_IP + 9] == 6
        and frame[_TCP + 20 : _TCP + 24] == _OPTION
        and frame[_TCP + 24] == _NORMAL
        and frame[_PAYLOAD + 18] > 0
    )


def forged(frame: bytes, rng: random.Random) -> bytes:
    """The request with another sum in its proof, and with right checksums."""
    packet = bytearray(frame)
    wrong = int.from_bytes(packet[_SUM : _SUM + 4], "big") ^ rng.randint(1, 0xFFFFFFFF)
    packet[_SUM : _SUM + 4] = wrong.to_bytes(4, "big")
    # The CRC at the end is now wrong, but only hosts check it, and the switch drops the request before.
    tcp_checksum(packet)
    return bytes(packet)


def syn(mac: bytes, rng: random.Random) -> bytes:
    """A Rivulet SYN from an address that does not exist."""
    options = _OPTION + bytes((0, 0x20, 0, 0))
    options += bytes.fromhex("020405a00402080a") + rng.randbytes(4) + bytes(4) + bytes.fromhex("03030e00")
    # ToR block and counts are 0; then hold 0, covers 1, no wanted range.
    payload = bytes(24) + bytes((0, 0, 1, 0, 0, 0))
    tcp = struct.pack(">HH", rng.randint(1024, 65535), SERVICE_PORT) + rng.randbytes(4) + bytes(4)
    tcp += bytes((12 << 4, 0x02)) + b"\xff\xff" + bytes(4) + options + payload
    return _spoofed(tcp, mac, rng)


def ack(mac: bytes, rng: random.Random) -> bytes:
    """An acknowledgement to stateless TCP from an address that does not exist; numbers and timestamps are random."""
    tcp = struct.pack(">HH", rng.randint(1024, 65535), STATELESS_PORT) + rng.randbytes(8)
    tcp += bytes((8 << 4, 0x10)) + b"\xff\xff" + bytes(4) + bytes.fromhex("0101080a") + rng.randbytes(8)
    return _spoofed(tcp, mac, rng)


def _spoofed(tcp: bytes, mac: bytes, rng: random.Random) -> bytes:
    source = bytes((10, 0, 1, rng.randint(100, 250)))
    target = bytes(int(part) for part in SERVICE_V4.split("."))
    ip = bytearray(struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0) + source + target)
    ip[10:12] = checksum(bytes(ip)).to_bytes(2, "big")
    packet = bytearray(bytes(int(part, 16) for part in TOR_MAC.split(":")) + mac + b"\x08\x00" + ip + tcp)
    tcp_checksum(packet)
    return bytes(packet)


MADE_UP = {"syn": syn, "ack": ack}
"""Attacks that need no recorded request."""


@dataclass(slots=True)
class Attacker:
    """Sends the attack `kind` at a rate in packets a second."""

    kind: str
    device: str
    rate: float
    bait: list[str]
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    owed: float = 0.0
    sent: int = 0
    recorded: int = 0

    def run(self, seconds: float) -> None:
        """Attacks for some seconds."""
        memory: deque[tuple[float, bytes]] = deque(maxlen=4096)
        # One raw socket for both directions, which does not receive its own frames.
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL)) as raw:
            raw.bind((self.device, 0))
            raw.setblocking(False)
            mac = raw.getsockname()[4]
            bait: subprocess.Popen[bytes] | None = None
            next_bait = began = before = time.monotonic()
            try:
                while (now := time.monotonic()) - began < seconds:
                    if self.bait and now >= next_bait and (bait is None or bait.poll() is not None):
                        bait = subprocess.Popen(self.bait, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                        next_bait = now + BAIT_PAUSE_S
                    self._record(raw, memory, now)
                    self.owed = min(BURST, self.owed + (now - before) * self.rate)
                    before = now
                    self._send(raw, memory, mac)
            finally:
                if bait is not None and bait.poll() is None:
                    bait.terminate()
                    bait.wait(5.0)

    def _record(self, raw: socket.socket, memory: deque[tuple[float, bytes]], now: float) -> None:
        while memory and memory[0][0] < now - MEMORY_S:
            memory.popleft()
        select.select([raw], [], [], 0.001)
        for _ in range(256):
            try:
                frame, (_, _, direction, *_) = raw.recvfrom(2048)
            except BlockingIOError:
                return
            if direction == socket.PACKET_OUTGOING and is_request_with_proof(frame):
                memory.append((now, frame))
                self.recorded += 1

    def _send(self, raw: socket.socket, memory: deque[tuple[float, bytes]], mac: bytes) -> None:
        while self.owed >= 1:
            if self.kind in MADE_UP:
                frame = MADE_UP[self.kind](mac, self.rng)
            elif not memory:
                return
            else:
                frame = memory[self.rng.randrange(len(memory))][1]
                if self.kind == "forged":
                    frame = forged(frame, self.rng)
            try:
                raw.send(frame)
            except BlockingIOError:
                return
            self.owed -= 1
            self.sent += 1


def main() -> int:
    """Runs the attack and writes the number of packets sent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["forged", "replay", *MADE_UP])
    parser.add_argument("--device", required=True, help="interface to the switch")
    parser.add_argument("--rate", type=float, required=True, help="packets a second")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--bait", default="", help="command of a small download to record, for forged and replay")
    parser.add_argument("--out", type=Path, required=True, help="file for the result, JSON")
    options = parser.parse_args()
    bait = [] if options.kind in MADE_UP else shlex.split(options.bait)
    attacker = Attacker(options.kind, options.device, options.rate, bait)
    attacker.run(options.seconds)
    result = {"kind": options.kind, "sent": attacker.sent, "recorded": attacker.recorded}
    options.out.write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
