#!/usr/bin/env python3
"""Checks of the exercise "range": see README.md."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

from rivulet_lab.checker import Rig, ethernet, main

PORTS = 2
CLIENT, SERVER = 1, 2
DATA, REQUEST = 1, 2
COMMANDS = f"""
table_set_default keys set_keys 0x01234567 0x89abcdef
table_add routes forward {DATA} => {CLIENT}
table_add routes forward {REQUEST} => {SERVER}
"""
TAG = 77


def _frame(kind: int, first: int, last: int, nonce: int, tag: int = TAG) -> bytes:
    return ethernet(0x88B6, struct.pack("!BIIII", kind, tag, first, last, nonce))


def _nonces(rig: Rig, count: int, tag: int = TAG) -> list[int]:
    """Sends data packets from the server; returns the nonces that the switch writes into them."""
    rig.send(SERVER, *(_frame(DATA, number, 0, 0, tag) for number in range(count)))
    frames = [frame for port, frame in rig.receive(count) if port == CLIENT]
    assert len(frames) == count, f"{len(frames)} of {count} data packets reached the client"
    return [int.from_bytes(frame[27:31], "big") for frame in frames]


def _xor(nonces: list[int]) -> int:
    total = 0
    for nonce in nonces:
        total ^= nonce
    return total


def _arrives(rig: Rig, first: int, last: int, nonce: int, tag: int = TAG) -> bool:
    """Whether a request reaches the server. A request that the switch must accept follows it."""
    (sure,) = _nonces(rig, 1, tag=1)
    rig.send(CLIENT, _frame(REQUEST, first, last, nonce, tag), _frame(REQUEST, 0, 1, sure, tag=1))
    frames = [frame for port, frame in rig.receive(1) if port == SERVER]
    tags = [int.from_bytes(frame[15:19], "big") for frame in frames]
    assert 1 in tags, "the switch dropped a request with the right nonce"
    return tag in tags


def received_ranges_are_accepted(rig: Rig) -> None:
    nonces = _nonces(rig, 8)
    for first, last in ((0, 1), (0, 8), (3, 5), (7, 8)):
        assert _arrives(rig, first, last, _xor(nonces[first:last])), f"the range {first}..{last} was dropped"


def a_wrong_nonce_is_refused(rig: Rig) -> None:
    nonces = _nonces(rig, 8)
    for bit in range(0, 32, 5):
        assert not _arrives(rig, 0, 8, _xor(nonces) ^ 1 << bit), "a request with a wrong nonce reached the server"


def a_lost_packet_cannot_be_hidden(rig: Rig) -> None:
    nonces = _nonces(rig, 8)
    without = _xor([*nonces[:4], *nonces[5:]])
    assert not _arrives(rig, 0, 8, without), "a range was accepted without the nonce of packet 4"
    assert not _arrives(rig, 0, 9, _xor(nonces)), "a range was accepted with a packet that was never sent"


def an_empty_range_is_no_proof(rig: Rig) -> None:
    assert not _arrives(rig, 5, 5, 0), "the nonce of an empty range is 0, which everyone knows: refuse first == last"


def a_reversed_range_is_refused(rig: Rig) -> None:
    nonces = _nonces(rig, 8)
    assert not _arrives(rig, 8, 0, _xor(nonces)), "first must be less than last"


def nonces_belong_to_a_connection_and_a_key(rig: Rig) -> None:
    nonces = _nonces(rig, 4)
    assert not _arrives(rig, 0, 4, _xor(nonces), tag=78), "another connection's nonces were accepted"
    rig.run("table_set_default keys set_keys 0x11111111 0x22222222")
    assert not _arrives(rig, 0, 4, _xor(nonces)), "nonces of the old key were accepted"


CHECKS = (
    received_ranges_are_accepted,
    a_wrong_nonce_is_refused,
    a_lost_packet_cannot_be_hidden,
    an_empty_range_is_no_proof,
    a_reversed_range_is_refused,
    nonces_belong_to_a_connection_and_a_key,
)

if __name__ == "__main__":
    sys.exit(main(Path(__file__).parent, PORTS, COMMANDS, CHECKS))
