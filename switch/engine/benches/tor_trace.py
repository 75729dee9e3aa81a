#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the ToR's entries and packets as text for the engine's benchmark: `tor_trace.py > tor.trace`.

The entries are those of the packet tests' rack (`ptf-tests/lib/rack.py`), recorded instead of sent to a switch.
Lines: `default TABLE ACTION p=hex …`, `insert TABLE k=hex[/len] … -> ACTION p=hex …`, `group ID port:instance …`,
`packet KIND PORT TIME_OFFSET HEX`, where TIME_OFFSET is the offset of the time in a request (0: the packet has none).

`tor_trace.py COUNT whole` is for a switch on interfaces (bench-switch) and writes packets of two sizes. Each request's
proof covers 65,536 numbers and the low 16 bits of its number are 0, so that the sender can count in these bits without
a new proof. The horizon is an hour, because a request that was built in advance ages while it waits.
"""

from __future__ import annotations

import random
import sys
import types
from pathlib import Path
from typing import Any

LIB = Path(__file__).resolve().parents[3] / "ptf-tests" / "lib"
sys.path[:0] = [str(LIB), str(LIB.parent)]
COUNT = int(sys.argv[1]) if len(sys.argv) > 1 else 512
WHOLE = sys.argv[2:] == ["whole"]
LARGE = 1400  # bytes of a large frame
EPOCHS = (5, 6)
NOW = 20_000 if WHOLE else 1_000_000  # microseconds on the switch's clock


class Recorder:
    """Replaces the P4Runtime client: prints the entries instead of writing them."""

    class info:
        @staticmethod
        def enum(name: str) -> dict[str, int]:
            return {}

    @staticmethod
    def _match(match: dict[str, Any]) -> str:
        def one(value: Any) -> str:
            return f"{value[0]:x}/{value[1]}" if isinstance(value, tuple) else f"{value:x}"

        return " ".join(f"{k}={one(v)}" for k, v in match.items())

    @staticmethod
    def _params(params: dict[str, int]) -> str:
        return " ".join(f"{k}={v:x}" for k, v in params.items())

    def insert(self, table: str, match: dict[str, Any], action: str, **params: int) -> None:
        print(f"insert {table} {self._match(match)} -> {action} {self._params(params)}")

    def insert_all(self, table: str, action: str, rows: Any) -> list[None]:
        return [self.insert(table, match, action, **params) for match, params in rows]

    def set_default(self, table: str, action: str, **params: int) -> None:
        print(f"default {table} {action} {self._params(params)}")

    def insert_group(self, group: int, copies: Any) -> None:
        print(f"group {group} " + " ".join(f"{port}:{instance}" for port, instance in copies))

    def push(self) -> None:
        pass

    def enable_digest(self, digest: str) -> None:
        pass


# Recording needs neither PTF nor gRPC.
for name in ("ptf", "ptf.testutils", "ptf.base_tests"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["ptf"].testutils = sys.modules["ptf.testutils"]  # type: ignore[attr-defined]
sys.modules["ptf.base_tests"].BaseTest = object  # type: ignore[attr-defined]
sys.modules["p4rt"] = types.ModuleType("p4rt")
sys.modules["p4rt"].Switch = Recorder  # type: ignore[attr-defined]

import cookies  # noqa: E402
import layout  # noqa: E402
import packets  # noqa: E402
import rack  # noqa: E402
from packets import Request  # noqa: E402


class Bench(rack.RackTest):
    """A packet test that only installs entries and builds packets."""

    def __init__(self) -> None:
        self.switch = Recorder()
        self.entries = []
        self.groups = []
        self.client = layout.CLIENTS[4]
        self.random = random.Random(7)

    def clock(self) -> int:
        return layout.CLOCK_OFFSET + NOW

    def taken(self, pool: layout.Pool, replica: int) -> int:
        return pool.sent[replica]  # the recorder has no replies to wait for

    def share_key(self, pool: layout.Pool, replica: int, **fields: int) -> None:
        """Installs two keys, both as the newest, so that the ToR accepts heartbeats that alternate between them."""
        for epoch in EPOCHS:
            super().share_key(pool, replica, epoch=epoch)

    def beat(self, pool: layout.Pool, replica: int, flags: int = 1, load: int = 0) -> None:
        port = pool.ports[replica]
        for epoch in EPOCHS:
            body = packets.heartbeat(pool.id, replica, flags=flags, load=load, key_epoch=epoch)
            self.send(port, packets.ethernet(layout.TOR_MAC, layout.host_mac(port), 0x88B5, body))

    def send(self, port: int, frame: bytes) -> None:
        print(f"packet beat {port} 0 {frame.hex()}")


def whole(bench: Bench) -> None:
    """Frames for a switch on interfaces: of the smallest size and of 1400 bytes."""
    service = bench.add_service(horizon=layout.FOREVER)
    four = [(0, 2), (4, 4), (7, 9), (12, 0xFFFF)]
    for kind, ranges in (("range1", [(0, 0xFFFF)]), ("range4", four)):
        for size in (0, LARGE):
            for i in range(COUNT):
                base = (i + 1) << 16
                request = bench.good_request(service, ranges, base=base, number=base, tail=b"")
                room = max(0, size - len(bench.to_service(service, request)))
                frame = bench.to_service(service, request.with_(tail=bytes(room)))
                print(f"packet {kind}-{size} {layout.CLIENT} 0 {frame.hex()}")
    plain(bench, service)
    for size in (64, LARGE):
        print(f"packet response-{size if size == LARGE else 0} 1 0 {response(bench, service, bytes(size - 62)).hex()}")


def plain(bench: Bench, kernel: layout.Service) -> None:
    """Plain TCP: a segment for a replica's kernel, a SYN that the ToR answers, a request with a cookie."""
    key = (bench.random.getrandbits(32), bench.random.getrandbits(32))
    stateless = bench.add_service(pool=kernel.pool, plain=layout.STATELESS, cookies=[key])
    syn = cookies.options(cookies.LAYOUTS["LINUX"], 1460, 7, NOW)
    stamps = cookies.stamps(NOW, cookies.answer_value(0))
    for i in range(COUNT):
        port = 40000 + i
        isn = cookies.stamped_isn(key, cookies.words(bench.client, port, stateless.port), 1460)
        cookie = {"acknowledgement": isn + 1 & 0xFFFFFFFF, "options": stamps}
        frame = bench.plain(stateless, port, packets.SYN, options=syn, acknowledgement=0, payload=b"")
        print(f"packet plain_syn-0 {layout.CLIENT} 0 {frame.hex()}")
        for size in (0, LARGE):
            payload = bytes(max(1, size - 14 - 20 - 32))
            for kind, service, fields in (("kernel", kernel, {}), ("data", stateless, cookie)):
                frame = bench.plain(service, port, payload=payload, **fields)
                print(f"packet plain_{kind}-{size} {layout.CLIENT} 0 {frame.hex()}")


def response(bench: Bench, service: layout.Service, payload: bytes) -> bytes:
    options = Request(class_=0x80).option()
    segment = packets.tcp(service.address, bench.client, 80, 40000, options=options, payload=payload)
    packet = packets.ip_packet(service.address, bench.client, packets.TCP, segment)
    return packets.ethernet(layout.TOR_MAC, layout.host_mac(1), 0x0800, packet)


def main() -> None:
    bench = Bench()
    rack.install_rack(bench.switch)
    if WHOLE:
        whole(bench)
        return
    service = bench.add_service()
    four = [(0, 2), (4, 4), (7, 9), (12, 200)]
    for kind, ranges in (("range1", [(0, 3)]), ("range4", four)):
        for _ in range(COUNT):
            frame = bench.to_service(service, bench.good_request(service, ranges))
            # The time follows Ethernet, IPv4, TCP with our option, and the ToR block, counts, kinds, tag, number, base.
            print(f"packet {kind} {layout.CLIENT} {14 + 20 + 28 + 36} {frame.hex()}")
    print(f"packet response 1 0 {response(bench, service, bytes(range(200))).hex()}")


main()
