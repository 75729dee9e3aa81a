"""Captures a client's packets while a scenario runs, and computes the cost of headers and retransmissions.

The same code counts both transports, from captures at the client's interface. Packets that the links lost on the way
to the client are not in the capture, so lost retransmissions are not counted.
"""

from __future__ import annotations

import mmap
import re
import signal
import struct
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rivulet_lab import Process, RackError

from .rack import Rack

SNAP_BYTES = 256
"""Captured bytes of a packet: enough for every header with its proof (the switch reads 162 bytes)."""

FLUSH_S = 10.0
"""Limit on the wait for captured packets that the kernel still has."""
_COUNTS = re.compile(r"(\d+) packets? captured, (\d+) packets? received by filter, (\d+) packets? dropped")

_OPTION = b"\xfd\x08\x52\x56"
"""Kind, length and ExID of Rivulet's TCP option, which is always the first (docs/wire-format.md)."""

_RETRANSMISSION, _GROUP, _SKIP, _WAIT, _NOT_MINE, _CHALLENGE, _ERROR = 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x88
_FULL, _DELTA, _UCONT, _OFFSET, _PRIME, _END, _CONSUMED, _TOKEN = (1 << bit for bit in range(8))
_NO_DATA = (_GROUP, _WAIT, _NOT_MINE, _CHALLENGE, _ERROR)
_DELTA_BYTES = (4, 6, 2, 2, 2, 4, 1)
"""Bytes of each field in a delta's bitmap, from the lowest bit."""


def start(rack: Rack, host: str, path: Path, snap_bytes: int = SNAP_BYTES) -> Process:
    """Starts a pcap of a host's TCP packets, `snap_bytes` of each (0: all), and waits until tcpdump captures."""
    path.unlink(missing_ok=True)
    device = f"{host}-eth0"
    # -Z: otherwise tcpdump drops root and cannot write here. -B: KiB of buffer, for when it is not scheduled.
    command = ["tcpdump", "-i", device, "-s", str(snap_bytes), "-B", "8192", "-Z", "root", "-w", str(path), "tcp"]
    process = rack.start(f"capture-{host}", command, rack.spaces[host])
    rack.until(lambda: "listening on" in process.last_lines(), "tcpdump listens", 20.0, process)
    return process


def finish(process: Process) -> None:
    """Ends a capture, which completes its file."""
    # The kernel hands packets over in blocks, up to a second later.
    end = time.monotonic() + FLUSH_S
    while process.running() and not _has_all(process) and time.monotonic() < end:
        process.popen.send_signal(signal.SIGUSR1)
        time.sleep(0.1)
    process.end(signal.SIGINT)


def _has_all(process: Process) -> bool:
    """Whether tcpdump has every packet that the kernel has for it, by the counts that it prints on SIGUSR1."""
    counts = _COUNTS.findall(process.last_lines(1))
    if not counts:
        return False
    captured, received, dropped = (int(count) for count in counts[-1])
    return captured + dropped >= received


@dataclass(slots=True)
class Traffic:
    """Packets at a client; bytes are those of IP packets, headers included."""

    packets_received: int = 0
    bytes_received: int = 0
    packets_sent: int = 0
    bytes_sent: int = 0
    data_packets: int = 0
    """Received packets with bytes of the application."""
    data_bytes: int = 0
    """Bytes of the application in them, including repeated ones."""
    retransmissions: int = 0
    """Data packets that repeat bytes: class RETRANSMISSION, or, in plain TCP, below the highest byte so far."""

    def report(self, wanted: int) -> dict[str, object]:
        """As JSON, with the overhead of headers for `wanted` bytes of the application."""
        headers = self.bytes_received - self.data_bytes
        return {
            **asdict(self),
            "header_bytes_per_data_packet": round(headers / self.data_packets, 2) if self.data_packets else None,
            "header_overhead_percent": round(100 * headers / wanted, 3) if wanted else None,
            "request_overhead_percent": round(100 * self.bytes_sent / wanted, 3) if wanted else None,
        }


def count(pcap: Path, address: str) -> Traffic:
    """Counts the IPv4 packets to and from a client's address. RackError if it is not a pcap of Ethernet frames."""
    traffic = Traffic()
    client = bytes(int(part) for part in address.split("."))
    # By connection: the highest byte received, relative to the first sequence number.
    ends: dict[bytes, tuple[int, int]] = {}
    for frame in _frames(pcap):
        if frame[12:14] != b"\x08\x00" or len(frame) < 54 or frame[23] != 6:
            continue
        length = int.from_bytes(frame[16:18], "big")
        if frame[26:30] == client:
            traffic.packets_sent += 1
            traffic.bytes_sent += length
        if frame[30:34] != client:
            continue
        traffic.packets_received += 1
        traffic.bytes_received += length
        tcp = 14 + (frame[14] & 0xF) * 4
        header = (frame[tcp + 12] >> 4) * 4
        carried = 14 + length - tcp - header
        if frame[tcp + 20 : tcp + 24] == _OPTION:
            kind = frame[tcp + 24]
            data = _data_bytes(kind, frame[tcp + header :], carried)
            repeated = kind == _RETRANSMISSION
        else:
            data = carried
            repeated = carried > 0 and _repeats(ends, frame[26:30] + frame[tcp : tcp + 4], frame, tcp, carried)
        if data > 0:
            traffic.data_packets += 1
            traffic.data_bytes += data
            traffic.retransmissions += repeated
    return traffic


def plain_connections(pcap: Path, address: str) -> set[tuple[bytes, int]]:
    """The connections that a client's kernel opened, as remote address and port, and local port.

    A repeated SYN counts once. RackError if the file is not a pcap of Ethernet frames.
    """
    client = bytes(int(part) for part in address.split("."))
    found = set()
    for frame in _frames(pcap):
        if frame[12:14] != b"\x08\x00" or len(frame) < 54 or frame[23] != 6 or frame[26:30] != client:
            continue
        tcp = 14 + (frame[14] & 0xF) * 4
        if frame[tcp + 13] & 0x12 == 0x02:
            found.add((frame[30:34] + frame[tcp + 2 : tcp + 4], int.from_bytes(frame[tcp : tcp + 2], "big")))
    return found


def _repeats(ends: dict[bytes, tuple[int, int]], flow: bytes, frame: bytes, tcp: int, carried: int) -> bool:
    """Whether a plain segment begins below the highest byte received; records its end."""
    sequence = int.from_bytes(frame[tcp + 4 : tcp + 8], "big")
    base, end = ends.get(flow, (sequence, 0))
    start = (sequence - base + (1 << 31)) % (1 << 32) - (1 << 31)
    ends[flow] = (base, max(end, start + carried))
    # The base moves along: a download of 4 GB wraps.
    if ends[flow][1] > 1 << 30:
        ends[flow] = ((base + ends[flow][1]) % (1 << 32), 0)
    return start < end


def _data_bytes(kind: int, payload: bytes, length: int) -> int:
    """Application bytes of a Rivulet response of `length` bytes that begins with `payload`."""
    if not kind & 0x80 or kind in _NO_DATA or len(payload) < 10:
        return 0
    content = payload[8]
    at = 10
    if content & _FULL:
        at += 66
    elif content & _DELTA:
        if at >= len(payload):
            return 0
        at += 1 + sum(size for bit, size in enumerate(_DELTA_BYTES) if payload[at] >> bit & 1) + 2 + 12
    if content & _OFFSET:
        at += 8
    if content & _UCONT:
        if at >= len(payload):
            return 0
        units = payload[at]
        at += 1
        for _ in range(units):
            # Bytes beyond the snapshot are unknown: they count as headers, so the result is never too good.
            if at + 2 > len(payload):
                return 0
            at += 2 + int.from_bytes(payload[at : at + 2], "big")
    if content & _CONSUMED:
        at += 10
    if content & _TOKEN:
        if at >= len(payload):
            return 0
        at += 1 + payload[at]
    if kind == _SKIP:
        at += 16
    return max(0, length - at)


def _frames(pcap: Path) -> Iterator[bytes]:
    """The frames of a pcap file, each up to the captured length."""
    with pcap.open("rb") as file:
        if not pcap.stat().st_size:
            raise RackError(f"{pcap} is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if len(data) < 24 or data[:4] not in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") or data[20] != 1:
                raise RackError(f"{pcap} is not a little-endian pcap of Ethernet frames")
            at, end = 24, len(data)
            record = struct.Struct("<4I")
            while at + 16 <= end:
                kept = record.unpack_from(data, at)[2]
                at += 16
                if at + kept > end:
                    return
                yield data[at : at + kept]
                at += kept
