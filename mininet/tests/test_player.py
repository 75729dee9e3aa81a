"""Tests of the demo's RTP player."""

from __future__ import annotations

import struct

from rivulet_demo.player import HEADER, RtpCounts


def packet(number: int, source: int = 7, sound: int = 100, version: int = 2) -> bytes:
    """An RTP packet."""
    return struct.pack(">BBHII", version << 6, 11, number % (1 << 16), 0, source) + bytes(sound)


def play(*datagrams: bytes) -> RtpCounts:
    """Counts of these datagrams."""
    found, state = RtpCounts(), list[int]()
    for datagram in datagrams:
        found.take(datagram, state)
    return found


def test_wrapped_sequence_numbers_are_in_order() -> None:
    found = play(*(packet(number) for number in range(65_530, 65_545)))
    assert found == RtpCounts(packets=15, octets=1500)


def test_gaps_late_and_repeated_packets_are_counted() -> None:
    found = play(packet(10), packet(13), packet(12), packet(13), packet(14))
    assert found == RtpCounts(packets=3, octets=300, backwards=2, gaps=2)


def test_foreign_datagrams_are_not_played() -> None:
    found = play(packet(1), b"", packet(2)[: HEADER - 1], packet(2, version=1), packet(2, source=8), packet(2))
    assert found == RtpCounts(packets=2, octets=200, other=4)
