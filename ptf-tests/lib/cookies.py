# SPDX-License-Identifier: Apache-2.0
"""Second implementation of stateless TCP's cookies and timestamps, from docs/plain.md alone."""

from __future__ import annotations

import struct

from packets import ACK, SYN, Address, tcp
from rivulet_wire import half_sip_hash, sip_state

Key = tuple[int, int]
MINUTE = 1 << 26  # time unit of a SYN-ACK's timestamp, in microseconds of the common clock
CLASSES = (536, 1220, 1440, 1460)
SHIFTS = (0, 2, 4, 6, 7, 8, 9, 11)
MAX_ANSWER = 15 << 10
STAMPED_REACH, BARE_REACH = (8191 - 32) * 64 + MAX_ANSWER, MAX_ANSWER + 2048
LARGE_REACH = (1 << 30) + 16
LARGE_BLOCK = 1 << 20
CELL, LARGE_CELLS = 1 << 16, 120
STEADY, REPAIR = 1, 2
BARE_SEGMENT = 1024


def words(client: Address, port: int, service_port: int) -> list[int]:
    """The words that a cookie is the hash of."""
    mapped = int(client) | (0xFFFF << 32 if client.version == 4 else 0)
    return [mapped >> at & 0xFFFFFFFF for at in (96, 64, 32, 0)] + [port << 16 | service_port]


def stamped_isn(key: Key, flow: list[int], mss: int) -> int:
    number = max(n for n, size in enumerate(CLASSES) if size <= mss)
    return half_sip_hash(key, *flow) & ~7 & 0xFFFFFFFF | number << 1


def bare_isn(key: Key, flow: list[int], first: int) -> int:
    return half_sip_hash(key, *flow) & ~0x3FF & 0xFFFFFFFF | first & 0x1FE


def opening(key: Key, flow: list[int], minute: int, first: int, shift: int) -> int:
    """TSval of a SYN-ACK."""
    scale = max(n for n, known in enumerate(SHIFTS) if known <= shift)
    pad = half_sip_hash(key, *flow, (minute << 3 | scale) & 0xFFFFFFFF) >> 17
    return (minute & 15) << 18 | (first ^ pad) % (1 << 15) << 3 | scale


def answer_value(start: int, scale: int = 4, next_: int = 0x123, version: int = 1) -> int:
    """TSval of an answer that begins at this sequence number."""
    n = start // 64 + 32
    return n >> 5 << 24 | (n & 31) << 17 | next_ << 5 | version << 3 | scale


def large_value(position: int, kind: int, window: int = 20, number: int = 3, check: int = 1, scale: int = 4) -> int:
    """TSval of a large answer's segment that begins at this position."""
    return (position >> 16) % 256 << 24 | kind << 22 | window << 16 | number << 6 | check << 3 | scale


def kernel_value(slot: int, clock: int = 77) -> int:
    return slot << 24 | 3 << 22 | clock


def stamps(value: int, echo: int) -> bytes:
    """The timestamps option, aligned by two NOPs."""
    return bytes.fromhex("0101080a") + struct.pack("!II", value, echo)


LAYOUTS = {
    "LINUX": "mss sack ts nop ws",
    "FREEBSD": "mss nop ws sack ts",
    "MACOS": "mss nop ws nop nop ts sack eol eol",
    "WINDOWS": "mss nop ws nop nop sack",
    "LINUX_BARE": "mss nop nop sack nop ws",
}
"""Order of the options in a SYN of common TCP stacks."""


def options(layout: str, mss: int, shift: int, value: int, echo: int = 0) -> bytes:
    """Options in the order of `layout`; shift None puts NOPs in place of the window scale."""
    pieces = {
        "mss": struct.pack("!BBH", 2, 4, mss),
        "sack": b"\x04\x02",
        "ts": struct.pack("!BBII", 8, 10, value, echo),
        "ws": struct.pack("!BBB", 3, 3, shift),
        "nop": b"\x01",
        "eol": b"\0",
    }
    return b"".join(pieces[piece] for piece in layout.split())


def bare(layout: str) -> bool:
    return "ts" not in layout.split()


def welcome(
    client: Address,
    service: Address,
    ports: tuple[int, int],
    sequence: int,
    answer_options: bytes,
    isn: int,
) -> bytes:
    """The expected SYN-ACK segment."""
    sport, dport = ports
    return tcp(
        service,
        client,
        dport,
        sport,
        flags=SYN | ACK,
        sequence=isn,
        acknowledgement=(sequence + 1) & 0xFFFFFFFF,
        options=answer_options,
    )


def client_cell(slot_key: Key, client: Address) -> int:
    """Cell of `plain_meter` that counts this client."""
    _, v1, _, v3 = sip_state(slot_key, *words(client, 0, 0)[:4])
    return (v1 ^ v3) & 0xFFF
