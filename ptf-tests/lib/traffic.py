# SPDX-License-Identifier: Apache-2.0
"""Packets of the tests: what clients send, and which frames must leave which port or be counted as dropped."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

import packets
from layout import CLIENT, CLIENTS, PATIENCE_S, TOR_ID, TOR_MAC, VLAN_RACK, Service, host_mac
from p4rt import Switch
from packets import Address, Request
from program import MARKED
from ptf.base_tests import BaseTest

SEEN_REASONS: set[str] = set()  # drop reasons that the tests of this run have provoked


class Traffic(BaseTest):
    """Sends and receives frames for `RackTest`; failures state the expected and the received frame."""

    vlan: int | None
    switch: Switch
    dataplane: Any
    random: random.Random
    reasons: dict[str, int]
    outcomes: dict[str, int]

    def clock(self) -> int:
        """Estimate of the ToR's clock, microseconds."""
        raise NotImplementedError

    # ---- frames ----

    def rack_vlan(self) -> int | None:
        return VLAN_RACK if self.vlan else None

    def from_client(self, ether_type: int, payload: bytes, src: bytes | None = None) -> bytes:
        return packets.ethernet(TOR_MAC, src or host_mac(CLIENT), ether_type, payload, self.vlan)

    def ip_frame(self, dst: Address, protocol: int, payload: bytes, **fields: Any) -> bytes:
        """An IP packet from the client to `dst`."""
        ether_type = 0x0800 if dst.version == 4 else 0x86DD
        src = fields.pop("src", None) or CLIENTS[dst.version]
        return self.from_client(ether_type, packets.ip_packet(src, dst, protocol, payload, **fields))

    def to_service(self, service: Service, request: Request, sport: int = 40000, **fields: Any) -> bytes:
        """A request of the client, as a frame."""
        sequence = fields.pop("sequence", 0x11112222)
        src = fields.get("src") or CLIENTS[service.address.version]
        segment = request.segment(src, service.address, sport, service.port, sequence)
        return self.ip_frame(service.address, packets.TCP, segment, **fields)

    def plain(self, service: Service, sport: int = 40000, flags: int = packets.ACK, **fields: Any) -> bytes:
        """A segment of plain TCP."""
        extra = {key: fields.pop(key) for key in list(fields) if key in ("src", "ttl")}
        src = extra.get("src") or CLIENTS[service.address.version]
        tcp_fields = {"options": bytes.fromhex("0101080a0000000100000002"), "payload": b"hello"} | fields
        segment = packets.tcp(src, service.address, sport, service.port, flags=flags, **tcp_fields)
        return self.ip_frame(service.address, packets.TCP, segment, **extra)

    def good_request(self, service: Service, ranges: Sequence[tuple[int, int]] = ((0, 3),), **fields: Any) -> Request:
        """A valid request: unused number, fresh, with proofs of these ranges of original packets."""
        tag = fields.pop("tag", self.random.getrandbits(32))
        base = fields.pop("base", next(service.numbers))
        kinds = fields.pop("kinds", ["ORIGINAL"] * len(ranges))
        entries = tuple(
            service.range(first, last, base=base, tag=tag, kind=kind)
            for (first, last), kind in zip(ranges, kinds, strict=True)
        )
        last = ranges[-1][1] if ranges else 0
        values = {"number": base + last, "time": self.clock() - 10_000, "epoch": service.epoch, "entries": entries}
        return Request(tag=tag, base=base, **(values | fields))

    # ---- sending and receiving ----

    def send(self, port: int, frame: bytes) -> None:
        self.dataplane.send(0, port, frame)

    def receive(self, timeout: float = PATIENCE_S) -> tuple[int, bytes]:
        """The next frame from any port as (port, frame); verifies its checksums."""
        result = self.dataplane.poll(0, timeout=timeout)
        if not isinstance(result, self.dataplane.PollSuccess):
            self.fail(f"received no frame within {timeout} s")
        frame = bytes(result.packet)
        problems = packets.parse(frame).problems
        self.assertEqual(problems, [], f"the frame from port {result.port} is broken: {problems}\n{frame.hex()}")
        return result.port, frame

    def expect(self, port: int, frame: bytes) -> bytes:
        """Checks that the next frame leaves this port and equals `frame` byte for byte."""
        at, got = self.receive()
        self.assertEqual(at, port, f"expected the frame at port {port}, received it at port {at}\n{got.hex()}")
        self.same(frame, got)
        return got

    def same(self, wanted: bytes, got: bytes) -> None:
        # Adding or removing a tag may change the Ethernet padding of short frames.
        end = max(packets.parse(wanted).end, 14)
        if end == 14 or len(wanted) >= 64:
            end = len(wanted)
        if wanted[:end] != got[:end]:
            differing = [i for i in range(min(len(wanted), len(got))) if wanted[i] != got[i]]
            self.fail(
                f"the frame differs at bytes {differing[:16]} (lengths {len(wanted)} expected, {len(got)} received)\n"
                f"expected {wanted.hex()}\nreceived {got.hex()}"
            )

    def quiet(self, wait: float = 0.15) -> None:
        """Checks that no port sends a frame for `wait` seconds."""
        result = self.dataplane.poll(0, timeout=wait)
        if isinstance(result, self.dataplane.PollSuccess):
            self.fail(f"expected no frame, port {result.port} sent {bytes(result.packet).hex()}")

    @contextlib.contextmanager
    def drops(self, *reasons: str, count: int = 1, counter: str = "drops") -> Iterator[None]:
        """In this block `count` packets must be dropped, all for the same one of `reasons`, and no frame may leave."""
        before = self.switch.counters(counter)
        yield
        # A counted packet has been handled, so a short wait for stray frames is enough.
        deadline = time.monotonic() + PATIENCE_S
        while True:
            after = self.switch.counters(counter)
            if sum(after.values()) - sum(before.values()) >= count or time.monotonic() > deadline:
                break
        self.quiet(0.02)
        after = self.switch.counters(counter)
        names = {value: name for name, value in self.reasons.items()}
        changed = {names[i]: after[i] - before.get(i, 0) for i in after if after[i] != before.get(i, 0)}
        SEEN_REASONS.update(changed)
        allowed = [{reason: count} for reason in reasons]
        self.assertIn(changed, allowed, f"expected {count} drops for {' or '.join(reasons)}, counted {changed}")

    def metered(self, reason: str, frames: Sequence[bytes], per_packet: int = 1) -> int:
        """Sends frames of which a meter drops some, for this reason; returns how many passed.

        A frame that passes causes `per_packet` frames. Waits until every frame has left or is counted as dropped.
        """
        index, came, sent = self.reasons[reason], 0, len(frames)
        before = self.switch.counters("drops").get(index, 0)
        for frame in frames:
            self.send(CLIENT, frame)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            while isinstance(self.dataplane.poll(0, timeout=0.2), self.dataplane.PollSuccess):
                came += 1
            dropped = self.switch.counters("drops").get(index, 0) - before
            if came + dropped * per_packet >= sent * per_packet or time.monotonic() > deadline:
                break
        SEEN_REASONS.add(reason)
        self.assertEqual(came % per_packet, 0)
        passed = came // per_packet
        self.assertEqual(passed + dropped, sent, f"of {sent} frames {passed} left and {dropped} were dropped")
        return passed

    @contextlib.contextmanager
    def counts(self, counter: str, index: int, count: int = 1) -> Iterator[None]:
        """In this block the cell must grow by `count`."""
        before = self.switch.counter(counter, index)
        yield
        after, deadline = self.switch.counter(counter, index), time.monotonic() + PATIENCE_S
        while after - before < count and time.monotonic() < deadline:
            after = self.switch.counter(counter, index)
        self.assertEqual(after - before, count, f"{counter}[{index}] grew by {after - before}, expected {count}")

    def outcome(self, service: Service, name: str) -> int:
        """Index of the cell of `service_outcomes`."""
        return service.id * 16 + self.outcomes[name]

    def expect_request(
        self,
        service: Service,
        sent: bytes,
        *,
        flags: int = MARKED,
        replicas: Sequence[int] | None = None,
    ) -> int:
        """Checks that the request reaches a replica of the pool with a stamp; returns the replica."""
        port, got = self.receive()
        pool = service.pool
        self.assertIn(port, pool.ports, f"the request went to port {port}, where there is no replica")
        replica = pool.ports.index(port)
        if replicas is not None:
            self.assertIn(replica, replicas, f"the request went to replica {replica}, allowed were {list(replicas)}")
        block = packets.tor_block(got)
        stamped = int.from_bytes(block[:6], "big")
        self.assertLess(abs(stamped - self.clock()), 10_000_000, "the stamp is not the ToR's clock")
        wanted_block = packets.stamp(stamped, TOR_ID, service.seal_epoch, service.epoch, flags)
        wanted = packets.forwarded(sent, dst=host_mac(port), src=TOR_MAC, vlan=self.rack_vlan(), stamp=wanted_block)
        self.same(wanted, got)
        return replica

    def expect_plain(self, service: Service, sent: bytes, replicas: Sequence[int] | None = None) -> int:
        """Checks that a packet reaches a replica without a stamp; returns the replica."""
        port, got = self.receive()
        self.assertIn(port, service.pool.ports, f"the packet went to port {port}, where there is no replica")
        replica = service.pool.ports.index(port)
        if replicas is not None:
            self.assertIn(replica, replicas, f"the packet went to replica {replica}, allowed were {list(replicas)}")
        self.same(packets.forwarded(sent, dst=host_mac(port), src=TOR_MAC, vlan=self.rack_vlan()), got)
        return replica

    def passes(self, service: Service, request: Request, flags: int = MARKED, **fields: Any) -> int:
        """Sends a request that must reach a replica with these flags in its stamp."""
        frame = self.to_service(service, request, **fields)
        self.send(CLIENT, frame)
        return self.expect_request(service, frame, flags=flags)

    def fails(self, service: Service, request: Request, *reasons: str, **fields: Any) -> None:
        """Sends a request that must be dropped for this reason (or one of these)."""
        with self.drops(*reasons):
            self.send(CLIENT, self.to_service(service, request, **fields))
