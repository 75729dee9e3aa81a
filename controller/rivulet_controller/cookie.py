"""Explains how the ToR classifies a client's segment to a stateless service (docs/plain.md), for
`rivuletctl trace`.

The arithmetic is that of `p4src/core/checks_at_tor/cookies.p4` and `host/plain`, with the keys that a
switch has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .l2 import address_int
from .limits import IPAddress

Words = tuple[int, int]
"""Two 32-bit words: a HalfSipHash key."""

STAMPED_LOW = 7
BARE_LOW = 0x3FF
BARE_SEQUENCE = 0x1FE
"""Bits of an ISN that are not hash, with timestamps and without; and, among the latter, those that
come from the client's sequence number."""

FIRST_START = 32
"""Least offset of an answer's start, in units of 64 bytes; smaller values have other meanings."""

MAX_ANSWER = 15 << 10
STAMPED_REACH = (0x1FFF - FIRST_START) * 64 + MAX_ANSWER
BARE_REACH = MAX_ANSWER + 2048
"""Bytes beyond the ISN that a client can acknowledge, with timestamps and without."""

KERNEL = 3
"""Kind (two bits of a timestamp) of a socket in a replica's kernel."""

_MASK = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class Segment:
    """The fields of a client's segment that the ToR looks at."""

    client: IPAddress
    port: int
    acknowledgement: int
    echo: int | None = None
    """Echoed timestamp (TSecr); None without timestamps."""
    data: bool = False
    """Whether it carries data or FIN."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The ToR's decision on a segment."""

    meaning: str
    reason: str = ""
    """Member of `drop_reason_t` if it is dropped, else empty."""
    by_flow: bool = True
    """Whether it goes to the replica of its flow; otherwise any live replica gets it, by the
    service's policy."""


def half_sip_hash(key: Words, words: Iterable[int]) -> int:
    """HalfSipHash-2-4 of 32-bit words, least significant byte first."""
    k0, k1 = key
    v = [k0, k1, 0x6C796765 ^ k0, 0x74656462 ^ k1]
    message = list(words)
    for word in [*message, (4 * len(message) & 0xFF) << 24]:
        v[3] ^= word
        _rounds(v, 2)
        v[0] ^= word
    v[2] ^= 0xFF
    _rounds(v, 4)
    return v[1] ^ v[3]


def _rounds(v: list[int], count: int) -> None:
    for _ in range(count):
        v[0] = (v[0] + v[1]) & _MASK
        v[1] = _left(v[1], 5) ^ v[0]
        v[0] = _left(v[0], 16)
        v[2] = (v[2] + v[3]) & _MASK
        v[3] = _left(v[3], 8) ^ v[2]
        v[0] = (v[0] + v[3]) & _MASK
        v[3] = _left(v[3], 7) ^ v[0]
        v[2] = (v[2] + v[1]) & _MASK
        v[1] = _left(v[1], 13) ^ v[2]
        v[2] = _left(v[2], 16)


def _left(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _MASK


def distance(keys: Iterable[Words], segment: Segment, service_port: int) -> int | None:
    """Bytes from our ISN to the segment's acknowledgement, under the first key for which they are
    within reach.
    """
    value = address_int(segment.client)
    words = [value >> at & _MASK for at in (96, 64, 32, 0)] + [segment.port << 16 | service_port]
    low, reach = (STAMPED_LOW, STAMPED_REACH) if segment.echo is not None else (BARE_LOW, BARE_REACH)
    for key in keys:
        found = (segment.acknowledgement - 1 - (half_sip_hash(key, words) & ~low)) & _MASK
        if found < reach:
            return found
    return None


def classify(keys: Iterable[Words], segment: Segment, service_port: int) -> Verdict:
    """Classifies a segment that is neither SYN nor RST, as the ToR does."""
    echo = segment.echo
    kind = None if echo is None else echo >> 22 & 3
    if kind == KERNEL:
        return Verdict("its timestamp belongs to a socket of a replica's kernel: to its flow's replica")
    found = distance(keys, segment, service_port)
    if found is None and echo is not None:
        return Verdict("acknowledges nothing that a cookie of these keys reaches: dropped as COOKIE", "COOKIE")
    if found is None:
        return Verdict(
            "acknowledges nothing that a cookie of these keys reaches; without timestamps it may belong to a socket of"
            " a replica's kernel: metered, to its flow's replica"
        )
    received = found & ~(STAMPED_LOW if echo is not None else BARE_SEQUENCE)
    if received == 0 and not segment.data:
        return Verdict("acknowledges the SYN-ACK and brings nothing: dropped as HANDSHAKE", "HANDSHAKE")
    under_way = echo is not None and (kind != 0 or echo >> 24 != 0)
    if under_way:
        return Verdict(f"has {received} bytes of answers, and another is under way: to any live replica", by_flow=False)
    return Verdict("begins an answer: to its flow's replica" if echo is not None else "to its flow's replica")
