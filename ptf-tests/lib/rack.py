# SPDX-License-Identifier: Apache-2.0
"""The rack under test: a ToR, replicas at ports 1 to 4, clients at port 5, an uplink at port 6, other hosts at 7 and 8.

`RackTest` is the base of every packet test. Each test takes service, pool, slot set, epoch and group numbers that no
test before it has used, so that old register values cannot affect it, and deletes its table entries at the end.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import packets
import ptf
from answers import WithoutAnswers
from layout import (
    ALL_CHECKS,
    BLOCK,
    BY_FLOW,
    CLIENT,
    CLIENTS,
    CLOCK_OFFSET,
    ENFORCE,
    FOREVER,
    KERNEL,
    OFF,
    OPENINGS_LIMIT,
    PATIENCE_S,
    PORTS,
    REPLAY_LIMIT,
    SKETCH_KEY,
    SKETCH_MASK,
    TAGGED_HOPS,
    TOR,
    TOR_ID,
    TOR_MAC,
    VLAN_CLIENT,
    VLAN_RACK,
    Pool,
    Service,
    host_mac,
)
from p4rt import Switch
from packets import Request, ip, number
from program import BUILD, CHECKS_AT_TOR
from ptf import testutils
from traffic import Traffic

_ids = itertools.count(1)
_pools = itertools.count(1)  # the program has 1,023 pools, which is enough for a run
LATE = 0.25  # seconds: a sender and the switch may stall one after the other, and replicas are excluded after 1 s
# Checks to switch off, to see which tests then fail: RIVULET_WITHOUT=sum,replay.
WITHOUT = [check for check in os.environ.get("RIVULET_WITHOUT", "").split(",") if check]
_switch: Switch | None = None
_clock_delta = 0


def the_switch() -> Switch:
    """The switch of this run, with the program and the rack's fixed entries installed."""
    global _switch
    if _switch is None:
        params = testutils.test_params_get()
        switch = Switch(params["grpcaddr"], BUILD / "rivulet.p4info.txtpb", BUILD / "rivulet.json")
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


def cookie_keys(keys: Sequence[tuple[int, int]], mtu: int) -> dict[str, int]:
    """Parameters of `set_cookie_keys`: one key, or the usable key and another."""
    (current0, current1), (other0, other1) = keys[0], keys[-1]
    return {"current0": current0, "current1": current1, "other0": other0, "other1": other1, "mtu": mtu}


def variants(cls: type) -> type:
    """Makes four tests of a class, with IPv4 and IPv6, untagged and tagged; their names have a suffix."""
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
    """Makes two tests of a class, with IPv4 and IPv6."""
    import sys

    module = sys.modules[cls.__module__]
    for family in (4, 6):
        name = f"{cls.__name__}V{family}"
        sub = type(name, (cls,), {"family": family, "__module__": cls.__module__, "runTest": cls.check})
        sub.__doc__ = cls.__doc__
        setattr(module, name, sub)
    return cls


def in_time(check: Callable[[Any], None]) -> Callable[[Any], None]:
    """Repeats a failed check, at most four times, if heartbeats were late.

    On a loaded machine heartbeats may be sent or handled so late that the switch excludes live replicas.
    """

    @functools.wraps(check)
    def run(test: RackTest) -> None:
        before = len(test.entries), len(test.groups)
        for left in (4, 3, 2, 1, 0):
            test.longest_gap = 0.0
            try:
                return check(test)
            except AssertionError:
                # The threads update `longest_gap` when they run again.
                test.stop_beating()
                if left == 0 or test.longest_gap < LATE:
                    raise
                print(f"  heartbeats came {test.longest_gap:.2f} s late; again")
                test.take_out(*before)
                test.dataplane.flush()

    return run


class RackTest(Traffic):
    """A switch with the rack's entries, and methods that install a test's own."""

    family = 4
    vlan: int | None = None
    check: Callable[[Any], None]

    def setUp(self) -> None:
        super().setUp()
        self.dataplane = WithoutAnswers(ptf.dataplane_instance)
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
        self.beating: list[tuple[threading.Event, threading.Thread]] = []
        self.longest_gap = 0.0  # seconds by which `keep_beating` sent, or the switch handled, a heartbeat too late

    def tearDown(self) -> None:
        self.stop_beating()
        self.take_out()
        super().tearDown()

    def take_out(self, entries: int = 0, groups: int = 0) -> None:
        """Deletes the table entries and groups installed after the first `entries` and `groups`."""
        self.switch.delete(reversed(self.entries[entries:]))
        for group in self.groups[groups:]:
            self.switch.delete_group(group)
        del self.entries[entries:], self.groups[groups:]

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
        settle: int | None = None,
    ) -> Pool:
        """Installs a pool with one replica at each of `ports`.

        Each sends a heartbeat, so that none is excluded within the bound. With `alive` False none does, and the switch
        excludes replicas without a heartbeat from the first packet on.
        """
        pool = Pool(next(_pools) if pool_id is None else pool_id, list(ports), bound)
        pool.settle = settle if settle is not None else bound if alive else 0
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
            settle=pool.settle,
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

    def set_pool(self, pool: Pool, **changes: int) -> None:
        """Changes members, bound or settle time of a pool in the switch."""
        full = (1 << len(pool.ports)) - 1
        values = {"members": full, "bound": pool.bound, "settle": pool.settle, "copies_group": pool.id} | changes
        self.modify("pools", {"pool": pool.id}, "set_pool", **values)

    def share_key(
        self,
        pool: Pool,
        replica: int,
        key: tuple[int, int] = packets.BEAT_KEY,
        epoch: int = packets.KEY_EPOCH,
        newest: int = 1,
    ) -> None:
        """Installs the key under which the ToR accepts heartbeats of this replica."""
        match = {"pool": pool.id, "replica": replica, "key_epoch": epoch}
        self.insert("heartbeat_keys", match, "set_heartbeat_key", k0=key[0], k1=key[1], newest=newest)

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
        if not modify:
            self.share_key(pool, replica)

    def beat(self, pool: Pool, replica: int, flags: int = 1, load: int = 0) -> None:
        """Sends one heartbeat of a replica."""
        port = pool.ports[replica]
        if replica not in pool.counted_before:
            pool.counted_before[replica] = self.counted_heartbeats(pool, replica)
        with pool.lock:
            pool.last_sequence += 1
            pool.sent[replica] += 1
            body = packets.heartbeat(pool.id, replica, flags=flags, load=load, sequence=pool.last_sequence)
            self.send(port, packets.ethernet(TOR_MAC, host_mac(port), 0x88B5, body, self.rack_vlan()))

    def counted_heartbeats(self, pool: Pool, replica: int) -> int:
        """Heartbeats of a replica that the switch has accepted, by its counters."""
        member = pool.member(replica)
        return self.switch.counter("heartbeats", member) + self.switch.counter("heartbeats_unready", member)

    def uncounted_heartbeats(self, pool: Pool, replica: int) -> int:
        """Heartbeats sent for a replica that the switch has not counted yet."""
        return pool.counted_before[replica] + pool.sent[replica] - self.counted_heartbeats(pool, replica)

    def wait_for_heartbeats(self, pool: Pool) -> None:
        """Waits until the switch has counted all heartbeats sent so far.

        Heartbeats arrive at other ports than the client's next frame; a loaded switch serves ports in any order.
        """
        wanted = {replica: pool.counted_before[replica] + count for replica, count in pool.sent.copy().items()}
        for replica, count in wanted.items():
            self.until(
                lambda replica=replica, count=count: self.counted_heartbeats(pool, replica) >= count,
                f"the switch has not counted {count} heartbeats of replica {replica}",
            )

    def wait_for_return(self, pool: Pool, replica: int) -> None:
        """Waits for more heartbeats of a replica to be counted than its return needs."""
        wanted = self.counted_heartbeats(pool, replica) + 4
        self.until(
            lambda: self.counted_heartbeats(pool, replica) >= wanted,
            f"the switch counts no heartbeats of replica {replica}",
        )

    def until(self, done: Callable[[], bool], problem: str) -> None:
        """Waits for a condition that must become true; fails with `problem` after PATIENCE_S."""
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            if time.monotonic() > deadline:
                self.fail(f"after {PATIENCE_S:g} s: {problem}")
            time.sleep(0.002)

    def answer(self, port: int, beat: bytes) -> bytes:
        """Returns the answer to this heartbeat, which must arrive at this port.

        Answers to other heartbeats may arrive before it, also answers to those of the test before.
        """
        deadline = time.monotonic() + PATIENCE_S
        while (found := self.dataplane.take_answer(beat)) is None:
            self.assertLess(time.monotonic(), deadline, f"no answer to the heartbeat {beat.hex()}")
            self.dataplane.poll(0, timeout=0.05)
        at, got = found
        self.assertEqual(at, port, f"expected the answer at port {port}, it arrived at port {at}\n{got.hex()}")
        return got

    def keep_beating(self, pool: Pool, replicas: Sequence[int], interval: float) -> threading.Event:
        """Sends heartbeats of these replicas from a thread until the returned event is set."""
        stop = threading.Event()

        def run() -> None:
            before, beats = time.monotonic(), 0
            while not stop.is_set():
                for replica in replicas:
                    self.beat(pool, replica)
                beats += 1
                now = time.monotonic()
                before, gap = now, now - before
                # A stalled switch leaves heartbeats uncounted, one per interval. Read on every fourth heartbeat only:
                # more reads would load a small machine.
                if beats % 4 == 0:
                    gap += interval * max(self.uncounted_heartbeats(pool, replica) for replica in replicas)
                self.longest_gap = max(self.longest_gap, gap)
                stop.wait(interval)
            # Counted late, the last heartbeats would keep a replica alive that the test assumes dead.
            try:
                self.wait_for_heartbeats(pool)
            finally:
                self.longest_gap = max(self.longest_gap, time.monotonic() - before - interval)

        thread = threading.Thread(target=run, daemon=True)
        self.beating.append((stop, thread))
        thread.start()
        return stop

    def stop_beating(self) -> None:
        """Ends the threads of `keep_beating`, so that none of their heartbeats reaches the switch in a later test."""
        for stop, _ in self.beating:
            stop.set()
        for _, thread in self.beating:
            thread.join()
        self.beating.clear()

    def add_slots(self, pairs: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Installs a slot set with these candidates (a power of two of them); returns its id and mask."""
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
        plain: int = KERNEL,
        affinity: int = BY_FLOW,
        cookies: Sequence[tuple[int, int]] = (),
        mtu: int = 1500,
        drop_unjudged: int = 0,
        horizon: int = 4_000_000,
        family: int | None = None,
        modes: dict[str, int] | None = None,
        usable: int = 1,
        slot_key: tuple[int, int] | None = None,
    ) -> Service:
        """Installs a service with keys; all checks are enforced unless `modes` changes them.

        `cookies`: the SYN cookie keys of a stateless service, the usable one first.
        """
        pool = pool or self.add_pool()
        service_id = self.new_id()
        family = family or self.family
        address = (
            ip(f"10.77.{service_id >> 8}.{service_id & 0xFF}") if family == 4 else ip(f"2001:db8:77::{service_id:x}")
        )
        rng = self.random
        words = [rng.getrandbits(32) for _ in range(6)]
        words[4:] = slot_key or words[4:]
        keys = [(words[at], words[at + 1]) for at in (0, 2, 4)]
        service = Service(service_id, address, 80, pool, 100 + service_id, *keys, seal_epoch=7)
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
        if CHECKS_AT_TOR:
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
            plain=plain,
            slot_key0=words[4],
            slot_key1=words[5],
            affinity=affinity,
        )
        if cookies and CHECKS_AT_TOR:
            self.insert("cookie_keys", {"service": service.id}, "set_cookie_keys", **cookie_keys(cookies, mtu))
        self.insert("services", {"address": number(address), "port": service.port}, "set_service", service=service.id)
        self.insert("addresses", {"address": number(address)}, "service_address")
        self.wait_for_heartbeats(pool)
        return service

    def set_checks(self, service: Service, **changes: int) -> None:
        service.checks |= changes
        self.modify("service_checks", {"service": service.id}, "set_checks", **service.checks)

    # ---- time ----

    def clock(self) -> int:
        """Estimate of the ToR's clock, microseconds."""
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
        # Deleted at once: tests that list all services must not find this one.
        self.switch.delete(reversed(self.entries[known:]))
        del self.entries[known:]
