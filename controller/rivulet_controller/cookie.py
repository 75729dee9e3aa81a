"""What a plain segment to a stateless service shows of itself, as the ToR reads it (docs/plain.md).

For people who ask where one went: the same arithmetic as in `p4src/include/control/cookies.p4` and `host/plain`, from
the keys that a switch has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .l2 import address_int
from .limits import IPAddress

Words = tuple[int, int]
"""The words of a HalfSipHash key."""

STAMPED_LOW = 7
BARE_LOW = 0x3FF
BARE_SEQUENCE = 0x1FE
"""Bits of an ISN that are no hash, with timestamps and without; and those that are the client's."""

FIRST_START = 32
"""Numbers below are no answer's beginning, in units of 64 bytes."""

MAX_ANSWER = 15 << 10
STAMPED_REACH = (0x1FFF - FIRST_START) * 64 + MAX_ANSWER
BARE_REACH = MAX_ANSWER + 2048
"""Bytes behind the ISN that can be acknowledged."""

KERNEL = 3
"""Kind of the timestamps of a socket that a replica's kernel has."""

_MASK = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class Segment:
    """What of a client's segment counts."""

    client: IPAddress
    port: int
    acknowledgement: int
    echo: int | None = None
    """Its timestamp's echo (TSecr); None without timestamps."""
    data: bool = False
    """It carries data or FIN."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of it."""

    meaning: str
    reason: str = ""
    """Why it is dropped, of `drop_reason_t`; empty if it is not."""
    by_flow: bool = True
    """Its replica is that of its flow; otherwise any that is alive, as the service's policy says."""


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
    """How far behind an ISN of ours a segment acknowledges, under the first of the keys that reaches it."""
    value = address_int(segment.client)
    words = [value >> at & _MASK for at in (96, 64, 32, 0)] + [segment.port << 16 | service_port]
    low, reach = (STAMPED_LOW, STAMPED_REACH) if segment.echo is not None else (BARE_LOW, BARE_REACH)
    for key in keys:
        found = (segment.acknowledgement - 1 - (half_sip_hash(key, words) & ~low)) & _MASK
        if found < reach:
            return found
    return None


def judge(keys: Iterable[Words], segment: Segment, service_port: int) -> Verdict:
    """What the ToR makes of a segment that is no SYN and no reset."""
    echo = segment.echo
    kind = None if echo is None else echo >> 22 & 3
    if kind == KERNEL:
        return Verdict("its timestamp is of a socket that a replica's kernel has: to its flow's replica")
    found = distance(keys, segment, service_port)
    if found is None and echo is not None:
        return Verdict("acknowledges nothing that a cookie of these keys reaches: dropped as COOKIE", "COOKIE")
    if found is None:
        return Verdict(
            "acknowledges nothing that a cookie of these keys reaches; without timestamps it may be of a socket that"
            " a replica's kernel has: metered, to its flow's replica"
        )
    received = found & ~(STAMPED_LOW if echo is not None else BARE_SEQUENCE)
    if received == 0 and not segment.data:
        return Verdict("acknowledges the SYN-ACK and brings nothing: dropped as HANDSHAKE", "HANDSHAKE")
    under_way = echo is not None and (kind != 0 or echo >> 24 != 0)
    if under_way:
        return Verdict(f"has {received} bytes of answers, and another is under way: to any live replica", by_flow=False)
    return Verdict("begins an answer: to its flow's replica" if echo is not None else "to its flow's replica")
