"""What the demo's player counts of RTP."""

from __future__ import annotations

import struct

from rivulet_demo.player import HEADER, Heard


def packet(number: int, source: int = 7, sound: int = 100, version: int = 2) -> bytes:
    """One of RTP."""
    return struct.pack(">BBHII", version << 6, 11, number % (1 << 16), 0, source) + bytes(sound)


def heard(*datagrams: bytes) -> Heard:
    """What comes of these."""
    found, state = Heard(), list[int]()
    for datagram in datagrams:
        found.take(datagram, state)
    return found


def test_numbers_that_wrap_around_are_in_order() -> None:
    found = heard(*(packet(number) for number in range(65_530, 65_545)))
    assert found == Heard(packets=15, octets=1500)


def test_gaps_and_what_comes_late_or_again_are_counted() -> None:
    found = heard(packet(10), packet(13), packet(12), packet(13), packet(14))
    assert found == Heard(packets=3, octets=300, backwards=2, gaps=2)


def test_what_is_no_rtp_or_of_another_source_is_not_played() -> None:
    found = heard(packet(1), b"", packet(2)[: HEADER - 1], packet(2, version=1), packet(2, source=8), packet(2))
    assert found == Heard(packets=2, octets=200, other=4)
