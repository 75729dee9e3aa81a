# SPDX-License-Identifier: Apache-2.0
"""The rack under test: a ToR, replicas on ports 1 to 4, clients on port 5, an uplink on port 6, others on 7 and 8.

`RackTest` is the base of every packet test. A test takes services, pools, slot sets, epochs and groups of its own, so
none depends on what a register held before it, and gives its entries back at the end.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import packets
import ptf
from p4rt import Switch
from packets import CHECKED, TIME_VALID, Address, Entry, Request, good_range, ip, mac, number
from ptf import testutils
from ptf.base_tests import BaseTest

ROOT = Path(__file__).resolve().parents[2]
PORTS = range(1, 9)
CLIENT, UPLINK = 5, 6
TOR_ID = 0x0A01
CLOCK_OFFSET = 0x0123_4567_89AB
TOR_MAC = mac("02:00:00:00:00:fe")
TOR = {4: ip("192.0.2.254"), 6: ip("2001:db8::fe")}
CLIENTS = {4: ip("198.51.100.10"), 6: ip("2001:db8:c::10")}
TAGGED_HOPS = 100  # next hop 100 + port sends tagged with VLAN_RACK
VLAN_RACK, VLAN_CLIENT = 100, 200
FOREVER = 3_600_000_000  # microseconds of silence allowed where liveness is not what a test is about
# What the controller sets; no test but those about the limits meets them.
REPLAY_LIMIT, OPENINGS_LIMIT = 262_144, 32_768
SKETCH_MASK = 262_143  # all words of a row
SLOT = 1 << 22  # microseconds of a slot of the sketch
SKETCH_KEY = (0x5EED0001, 0x5EED0002)
OFF, COUNT, ENFORCE = 0, 1, 2
BLOCK, ROUND_ROBIN, RANDOM, LEAST_LOADED = 0, 1, 2, 3
ALL_CHECKS = ("key", "time", "range", "sum", "replay", "meter")

_ids = itertools.count(1)
_pools = itertools.count(1)  # at most 1,023 in a run
# Defences to take away, to see which tests notice: RIVULET_WITHOUT=sum,replay.
WITHOUT = [check for check in os.environ.get("RIVULET_WITHOUT", "").split(",") if check]
SEEN_REASONS: set[str] = set()  # drop reasons that some test of this run has provoked
_switch: Switch | None = None
_clock_delta = 0


def host_mac(port: int) -> bytes:
    return bytes([2, 0, 0, 0, port, port])


def the_switch() -> Switch:
    """The one switch of this run, with the program pushed and the rack's fixed entries installed."""
    global _switch
    if _switch is None:
        # Another program than the committed one: ptf-tests/removal.py.
        build = Path(os.environ.get("RIVULET_P4_BUILD", ROOT / "p4src" / "build"))
        params = testutils.test_params_get()
        switch = Switch(params["grpcaddr"], build / "rivulet.p4info.txtpb", build / "rivulet.json")
        install_rack(switch)
        _switch = switch
    return _switch


def install_rack(switch: Switch) -> None:
    switch.push()
    set_tor(switch)
    for port in PORTS:
        for hop, vlan in ((port, 0), (TAGGED_HOPS + port, VLAN_RACK)):
            switch.insert("next_hops", {"next_hop": hop}, "set_next_hop", port=port, mtu=1500)
            macs = {"src_mac": int.from_bytes(TOR_MAC, "big"), "dst_mac": int.from_bytes(host_mac(port), "big")}
            switch.insert("neighbours", {"next_hop": hop}, "set_neighbour", vlan=vlan, **macs)
    for address in TOR.values():
        switch.insert("addresses", {"address": number(address)}, "own_address")
    switch.insert("routes", {"destination": (number(ip("198.51.100.0")), 96 + 24)}, "route_to", next_hop=CLIENT)
    switch.insert("routes", {"destination": (number(ip("2001:db8:c::")), 48)}, "route_to", next_hop=CLIENT)
    switch.enable_digest("event_t")


def set_tor(switch: Switch, **changes: int) -> None:
    values = {
        "clock_offset": CLOCK_OFFSET,
        "time_valid": 1,
        "tor_id": TOR_ID,
        "mac": int.from_bytes(TOR_MAC, "big"),
        "ipv4": int(TOR[4]),
        "ipv6": int(TOR[6]),
        "sketch_key0": SKETCH_KEY[0],
        "sketch_key1": SKETCH_KEY[1],
        "sketch_mask": SKETCH_MASK,
        "replay_limit": REPLAY_LIMIT,
        "openings_limit": OPENINGS_LIMIT,
    }
    switch.set_default("tor", "set_tor", **(values | changes))


@dataclass
class Pool:
    """Replicas of one pool: `ports[r]` is where replica r is."""

    id: int
    ports: list[int]
    bound: int
    hop_base: int = 0
    heard: int = 0
    sent: Counter[int] = field(default_factory=Counter)
    """Heartbeats sent for each replica, and what the switch had counted of each before."""
    before: dict[int, int] = field(default_factory=dict)

    def member(self, replica: int) -> int:
        return self.id * 64 + replica


@dataclass
class Service:
    """A service of one address and port, its keys, and how its requests look when nothing is wrong."""

    id: int
    address: Address
    port: int
    pool: Pool
    epoch: int
    key: tuple[int, int]
    key_prime: tuple[int, int]
    checks: dict[str, int] = field(default_factory=dict)
    seal_epoch: int = 0
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1000, 8))

    def range(self, first: int, last: int, *, base: int, tag: int, kind: str = "ORIGINAL") -> Entry:
        key = self.key if kind == "ORIGINAL" else self.key_prime
        return good_range(kind, key, tag, base, first, last)


def variants(cls: type) -> type:
    """Runs a test with IPv4 and IPv6, untagged and tagged: four classes of its name with a suffix."""
    import sys

    module = sys.modules[cls.__module__]
    for family in (4, 6):
        for vlan in (None, VLAN_CLIENT):
            name = f"{cls.__name__}V{family}{'Vlan' if vlan else ''}"
            sub = type(
                name, (cls,), {"family": family, "vlan": vlan, "__module__": cls.__module__, "runTest": cls.check}
            )
            sub.__doc__ = cls.__doc__
            setattr(module, name, sub)
    return cls


def families(cls: type) -> type:
    """Runs a test with IPv4 and IPv6."""
    import sys

    module = sys.modules[cls.__module__]
    for family in (4, 6):
        name = f"{cls.__name__}V{family}"
        sub = type(name, (cls,), {"family": family, "__module__": cls.__module__, "runTest": cls.check})
        sub.__doc__ = cls.__doc__
        setattr(module, name, sub)
    return cls


class RackTest(BaseTest):
    """A switch with the rack's entries, and helpers that say in words what was expected and what came."""

    family = 4
    vlan: int | None = None
    check: Callable[[Any], None]

    def setUp(self) -> None:
        super().setUp()
        self.dataplane = ptf.dataplane_instance
        self.dataplane.flush()
        self.switch = the_switch()
        self.switch.drop_events()
        self.entries: list[Any] = []
        self.groups: list[int] = []
        self.client = CLIENTS[self.family]
        self.seed = int(os.environ.get("RIVULET_SEED", "1"))
        self.random = random.Random(f"{self.seed} {type(self).__name__}")
        self.reasons = self.switch.info.enum("drop_reason_t")
        self.outcomes = self.switch.info.enum("outcome_t")
        self.event_kinds = self.switch.info.enum("event_kind_t")
        self.beating: list[threading.Event] = []

    def tearDown(self) -> None:
        for stop in self.beating:
            stop.set()
        self.switch.delete(reversed(self.entries))
        for group in self.groups:
            self.switch.delete_group(group)
        super().tearDown()

    # ---- what a test installs ----

    def insert(self, table: str, match: dict[str, Any], action: str, **params: int) -> None:
        self.entries.append(self.switch.insert(table, match, action, **params))

    def modify(self, table: str, match: dict[str, Any], action: str, **params: int) -> None:
        self.switch.modify(table, match, action, **params)

    def new_id(self) -> int:
        return next(_ids)

    def add_pool(
        self,
        ports: Sequence[int] = (1, 2, 3),
        bound: int = FOREVER,
        alive: bool = True,
        pool_id: int | None = None,
        members: int | None = None,
    ) -> Pool:
        """A pool with one replica on each of `ports`, all heard of unless `alive` is False."""
        pool = Pool(next(_pools) if pool_id is None else pool_id, list(ports), bound)
        pool.hop_base = TAGGED_HOPS if self.vlan else 0
        group = pool.id
        self.switch.insert_group(group, [(port, replica) for replica, port in enumerate(pool.ports)])
        self.groups.append(group)
        full = (1 << len(pool.ports)) - 1
        self.insert(
            "pools",
            {"pool": pool.id},
            "set_pool",
            members=full if members is None else members,
            bound=bound,
            copies_group=group,
        )
        for replica, port in enumerate(pool.ports):
            key = {"pool": pool.id, "replica": replica}
            self.insert("replicas", key, "rack", next_hop=pool.hop_base + port)
            self.insert("encapsulations", key, "to_rack", next_hop=pool.hop_base + port)
            self.admit(pool, replica)
            if alive:
                self.beat(pool, replica)
        return pool

    def admit(self, pool: Pool, replica: int, readmitted: int = 0, modify: bool = False) -> None:
        port = pool.ports[replica]
        key = {
            "pool": pool.id,
            "replica": replica,
            "ingress_port": port,
            "remote": 0,
            "source": int.from_bytes(host_mac(port), "big"),
        }
        (self.modify if modify else self.insert)("heartbeat_sources", key, "admit_heartbeat", readmitted=readmitted)

    def beat(self, pool: Pool, replica: int, flags: int = 1, load: int = 0) -> None:
        """One heartbeat, as the replica sends it."""
        port = pool.ports[replica]
        if replica not in pool.before:
            pool.before[replica] = self.taken(pool, replica)
        pool.heard += 1
        pool.sent[replica] += 1
        body = packets.heartbeat(pool.id, replica, flags=flags, load=load, sequence=pool.heard)
        self.send(port, packets.ethernet(TOR_MAC, host_mac(port), 0x88B5, body, self.rack_vlan()))

    def taken(self, pool: Pool, replica: int) -> int:
        """Heartbeats of a replica that the switch has counted."""
        member = pool.member(replica)
        return self.switch.counter("heartbeats", member) + self.switch.counter("heartbeats_unready", member)

    def heard(self, pool: Pool, more: int = 0) -> None:
        """Waits until the switch has taken the heartbeats sent so far, and `more` of each replica that still beats.

        They come by other ports than what a client sends next, and a busy switch looks at the ports as it likes.
        """
        wanted = {replica: pool.before[replica] + count + more for replica, count in pool.sent.copy().items()}
        deadline = time.monotonic() + 10
        for replica, count in wanted.items():
            while self.taken(pool, replica) < count and time.monotonic() < deadline:
                time.sleep(0.002)

    def returned(self, pool: Pool, replica: int) -> None:
        """Waits until the switch has taken more heartbeats of a replica than its return needs."""
        wanted, deadline = self.taken(pool, replica) + 4, time.monotonic() + 10
        while self.taken(pool, replica) < wanted and time.monotonic() < deadline:
            time.sleep(0.01)

    def keep_beating(self, pool: Pool, replicas: Sequence[int], interval: float) -> threading.Event:
        """Heartbeats of these replicas from a thread, until the event it gives is set."""
        stop = threading.Event()

        def run() -> None:
            while not stop.is_set():
                for replica in replicas:
                    self.beat(pool, replica)
                stop.wait(interval)

        self.beating.append(stop)
        threading.Thread(target=run, daemon=True).start()
        return stop

    def add_slots(self, pairs: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """A slot set with these candidates, a power of two of them; its id and mask."""
        assert len(pairs) & (len(pairs) - 1) == 0, "a power of two"
        slot_set = self.new_id()
        rows = (({"slot_set": slot_set, "slot": i}, {"first": a, "second": b}) for i, (a, b) in enumerate(pairs))
        self.entries += self.switch.insert_all("slots", "set_slot", rows)
        return slot_set, len(pairs) - 1

    def even_slots(self, pool: Pool, count: int = 64) -> list[tuple[int, int]]:
        n = len(pool.ports)
        return [(i % n, (i + 1 + (i // n) % max(n - 1, 1)) % n) for i in range(count)]

    def add_service(
        self,
        pool: Pool | None = None,
        *,
        policy: int = BLOCK,
        slots: Sequence[tuple[int, int]] | None = None,
        plain_tcp: int = 1,
        drop_unjudged: int = 0,
        horizon: int = 4_000_000,
        family: int | None = None,
        modes: dict[str, int] | None = None,
        usable: int = 1,
    ) -> Service:
        """A service with keys, all checks enforced unless `modes` says otherwise."""
        pool = pool or self.add_pool()
        service_id = self.new_id()
        family = family or self.family
        address = (
            ip(f"10.77.{service_id >> 8}.{service_id & 0xFF}") if family == 4 else ip(f"2001:db8:77::{service_id:x}")
        )
        rng = self.random
        words = [rng.getrandbits(32) for _ in range(4)]
        service = Service(
            service_id, address, 80, pool, 100 + service_id, (words[0], words[1]), (words[2], words[3]), seal_epoch=7
        )
        service.checks = {f"{check}_mode": ENFORCE for check in ALL_CHECKS}
        service.checks |= {f"{check}_mode": mode for check, mode in (modes or {}).items()}
        service.checks |= {f"{check}_mode": OFF for check in WITHOUT}
        service.checks |= {
            "drop_unjudged": drop_unjudged,
            "horizon": horizon,
            "seal_epoch": service.seal_epoch,
            "nonce_epoch": service.epoch,
        }
        slot_set, mask = self.add_slots(slots or self.even_slots(pool))
        self.insert(
            "nonce_keys",
            {"service": service.id, "nonce_epoch": service.epoch},
            "set_nonce_keys",
            k0=words[0],
            k1=words[1],
            k0_prime=words[2],
            k1_prime=words[3],
            usable=usable,
        )
        self.insert("service_checks", {"service": service.id}, "set_checks", **service.checks)
        self.insert(
            "service_config",
            {"service": service.id},
            "configure",
            pool=pool.id,
            policy=policy,
            spray_set=slot_set,
            spray_mask=mask,
            flow_set=slot_set,
            flow_mask=mask,
            plain_tcp=plain_tcp,
        )
        self.insert("services", {"address": number(address), "port": service.port}, "set_service", service=service.id)
        self.insert("addresses", {"address": number(address)}, "service_address")
        self.heard(pool)
        return service

    def set_checks(self, service: Service, **changes: int) -> None:
        service.checks |= changes
        self.modify("service_checks", {"service": service.id}, "set_checks", **service.checks)

    # ---- time ----

    def clock(self) -> int:
        """About what the ToR's clock says now, microseconds."""
        global _clock_delta
        if _clock_delta == 0:
            self.calibrate()
        return time.monotonic_ns() // 1000 + _clock_delta

    def calibrate(self) -> None:
        global _clock_delta
        known = len(self.entries)
        service = self.add_service()
        frame = self.to_service(service, Request(name="SYN"))
        before = time.monotonic_ns() // 1000
        self.send(CLIENT, frame)
        _, got = self.receive()
        _clock_delta = int.from_bytes(packets.tor_block(got)[:6], "big") - before
        # Gone at once: a test that knows all services would not know this one.
        self.switch.delete(reversed(self.entries[known:]))
        del self.entries[known:]

    # ---- frames ----

    def rack_vlan(self) -> int | None:
        return VLAN_RACK if self.vlan else None

    def from_client(self, ether_type: int, payload: bytes, src: bytes | None = None) -> bytes:
        return packets.ethernet(TOR_MAC, src or host_mac(CLIENT), ether_type, payload, self.vlan)

    def ip_frame(self, dst: Address, protocol: int, payload: bytes, **fields: Any) -> bytes:
        """An IP packet of the client to `dst`."""
        ether_type = 0x0800 if dst.version == 4 else 0x86DD
        src = fields.pop("src", None) or CLIENTS[dst.version]
        return self.from_client(ether_type, packets.ip_packet(src, dst, protocol, payload, **fields))

    def to_service(self, service: Service, request: Request, sport: int = 40000, **fields: Any) -> bytes:
        """A request of the client as a frame."""
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
        """A request with nothing wrong: a number of its own, fresh, with proofs of these ranges of originals."""
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

    def receive(self, timeout: float = 20.0) -> tuple[int, bytes]:
        """The next frame from any port: (port, frame), its checksums verified."""
        result = self.dataplane.poll(0, timeout=timeout)
        if not isinstance(result, self.dataplane.PollSuccess):
            self.fail(f"expected a frame within {timeout} s, none came")
        frame = bytes(result.packet)
        problems = packets.parse(frame).problems
        self.assertEqual(problems, [], f"the frame from port {result.port} is broken: {problems}\n{frame.hex()}")
        return result.port, frame

    def expect(self, port: int, frame: bytes) -> bytes:
        """The next frame must come from this port and be this one, byte for byte."""
        at, got = self.receive()
        self.assertEqual(at, port, f"expected the frame from port {port}, it came from port {at}\n{got.hex()}")
        self.same(frame, got)
        return got

    def same(self, wanted: bytes, got: bytes) -> None:
        # Ethernet padding of short frames may go when a tag is added or taken.
        end = max(packets.parse(wanted).end, 14)
        if end == 14 or len(wanted) >= 64:
            end = len(wanted)
        if wanted[:end] != got[:end]:
            differing = [i for i in range(min(len(wanted), len(got))) if wanted[i] != got[i]]
            self.fail(
                f"the frame differs at bytes {differing[:16]} (lengths {len(wanted)} expected, {len(got)} came)\n"
                f"expected {wanted.hex()}\ncame     {got.hex()}"
            )

    def quiet(self, wait: float = 0.15) -> None:
        """Nothing comes from any port."""
        result = self.dataplane.poll(0, timeout=wait)
        if isinstance(result, self.dataplane.PollSuccess):
            self.fail(f"expected silence, port {result.port} sent {bytes(result.packet).hex()}")

    @contextlib.contextmanager
    def drops(self, *reasons: str, count: int = 1, counter: str = "drops") -> Iterator[None]:
        """Within: `count` packets are dropped for this reason (one of these), none for another; nothing comes out."""
        before = self.switch.counters(counter)
        yield
        # What the switch has counted it has decided, so the silence need not be long.
        deadline = time.monotonic() + 10
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
        """Sends the frames; how many came out, each as `per_packet`. The others were dropped for this reason, by a
        meter. Waits until all are accounted for."""
        index, came, sent = self.reasons[reason], 0, len(frames)
        before = self.switch.counters("drops").get(index, 0)
        for frame in frames:
            self.send(CLIENT, frame)
        deadline = time.monotonic() + 20
        while True:
            while isinstance(self.dataplane.poll(0, timeout=0.2), self.dataplane.PollSuccess):
                came += 1
            dropped = self.switch.counters("drops").get(index, 0) - before
            if came + dropped * per_packet >= sent * per_packet or time.monotonic() > deadline:
                break
        SEEN_REASONS.add(reason)
        self.assertEqual(came % per_packet, 0)
        passed = came // per_packet
        self.assertEqual(passed + dropped, sent, f"{passed} came out and {dropped} were dropped of {sent}")
        return passed

    @contextlib.contextmanager
    def counts(self, counter: str, index: int, count: int = 1) -> Iterator[None]:
        """Within: this cell grows by `count`."""
        before = self.switch.counter(counter, index)
        yield
        after, deadline = self.switch.counter(counter, index), time.monotonic() + 10
        while after - before < count and time.monotonic() < deadline:
            after = self.switch.counter(counter, index)
        self.assertEqual(after - before, count, f"{counter}[{index}] grew by {after - before}, expected {count}")

    def outcome(self, service: Service, name: str) -> int:
        """Cell of `service_outcomes`."""
        return service.id * 16 + self.outcomes[name]

    def expect_request(
        self,
        service: Service,
        sent: bytes,
        *,
        flags: int = CHECKED | TIME_VALID,
        replicas: Sequence[int] | None = None,
        exclusions: int = 0,
    ) -> int:
        """The request must reach a replica of the pool, stamped; says which."""
        port, got = self.receive()
        pool = service.pool
        self.assertIn(port, pool.ports, f"the request went to port {port}, where no replica is")
        replica = pool.ports.index(port)
        if replicas is not None:
            self.assertIn(replica, replicas, f"the request went to replica {replica}, allowed were {list(replicas)}")
        block = packets.tor_block(got)
        stamped = int.from_bytes(block[:6], "big")
        self.assertLess(abs(stamped - self.clock()), 10_000_000, "the stamp is not the ToR's clock")
        wanted_block = packets.stamp(stamped, TOR_ID, exclusions, service.seal_epoch, service.epoch, flags)
        wanted = packets.forwarded(sent, dst=host_mac(port), src=TOR_MAC, vlan=self.rack_vlan(), stamp=wanted_block)
        self.same(wanted, got)
        return replica

    def expect_plain(self, service: Service, sent: bytes, replicas: Sequence[int] | None = None) -> int:
        """A packet that is passed on without a stamp; says to which replica."""
        port, got = self.receive()
        self.assertIn(port, service.pool.ports, f"the packet went to port {port}, where no replica is")
        replica = service.pool.ports.index(port)
        if replicas is not None:
            self.assertIn(replica, replicas, f"the packet went to replica {replica}, allowed were {list(replicas)}")
        self.same(packets.forwarded(sent, dst=host_mac(port), src=TOR_MAC, vlan=self.rack_vlan()), got)
        return replica

    def passes(self, service: Service, request: Request, flags: int = CHECKED | TIME_VALID, **fields: Any) -> int:
        """Sends a request that must reach a replica with these flags."""
        frame = self.to_service(service, request, **fields)
        self.send(CLIENT, frame)
        return self.expect_request(service, frame, flags=flags)

    def fails(self, service: Service, request: Request, *reasons: str, **fields: Any) -> None:
        """Sends a request that must be dropped for this reason (one of these)."""
        with self.drops(*reasons):
            self.send(CLIENT, self.to_service(service, request, **fields))
