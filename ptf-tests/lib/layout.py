# SPDX-License-Identifier: Apache-2.0
"""Addresses and ports of the rack under test, and the state that a test keeps for a pool and a service."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from packets import Address, Entry, good_range, ip, mac

PORTS = range(1, 9)
CLIENT, UPLINK = 5, 6
TOR_ID = 0x0A01
CLOCK_OFFSET = 0x0123_4567_89AB
TOR_MAC = mac("02:00:00:00:00:fe")
TOR = {4: ip("192.0.2.254"), 6: ip("2001:db8::fe")}
CLIENTS = {4: ip("198.51.100.10"), 6: ip("2001:db8:c::10")}
TAGGED_HOPS = 100  # next hop 100 + port sends tagged with VLAN_RACK
VLAN_RACK, VLAN_CLIENT = 100, 200
PATIENCE_S = 20.0  # seconds after which a wait for something that must happen fails
FOREVER = 3_600_000_000  # microseconds: bound of pools in tests that are not about liveness
# Values that the controller sets; only the tests of the limits reach them.
REPLAY_LIMIT, OPENINGS_LIMIT = 262_144, 32_768
SKETCH_MASK = 262_143  # all words of a row
SLOT = 1 << 22  # microseconds: time slot of the sketch
SKETCH_KEY = (0x5EED0001, 0x5EED0002)
OFF, COUNT, ENFORCE = 0, 1, 2
NO_PLAIN, KERNEL, STATELESS, TRODS = 0, 1, 2, 3  # plain_t
BY_FLOW, BY_CLIENT = 0, 1  # affinity_t
BLOCK, ROUND_ROBIN, RANDOM, LEAST_LOADED = 0, 1, 2, 3
ALL_CHECKS = ("key", "time", "range", "sum", "replay", "meter")


def host_mac(port: int) -> bytes:
    return bytes([2, 0, 0, 0, port, port])


@dataclass
class Pool:
    """Replicas of one pool: replica r is at port `ports[r]`."""

    id: int
    ports: list[int]
    bound: int
    settle: int = 0
    hop_base: int = 0
    last_sequence: int = 0
    """Sequence number of the last heartbeat sent for any replica."""
    sent: Counter[int] = field(default_factory=Counter)
    """Heartbeats sent for each replica."""
    counted_before: dict[int, int] = field(default_factory=dict)
    """Heartbeats of each replica that the switch had counted before the first of `sent`."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while a heartbeat gets its sequence number and is sent: out of order, it would be refused as a replay."""

    def member(self, replica: int) -> int:
        return self.id * 64 + replica


@dataclass
class Service:
    """A service with one address and port, its keys, and the fields of a valid request."""

    id: int
    address: Address
    port: int
    pool: Pool
    epoch: int
    key: tuple[int, int]
    key_prime: tuple[int, int]
    slot_key: tuple[int, int]
    checks: dict[str, int] = field(default_factory=dict)
    seal_epoch: int = 0
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1000, 8))

    def range(self, first: int, last: int, *, base: int, tag: int, kind: str = "ORIGINAL") -> Entry:
        key = self.key if kind == "ORIGINAL" else self.key_prime
        return good_range(kind, key, tag, base, first, last)
