# SPDX-License-Identifier: Apache-2.0
"""Liveness in the data plane, without a controller."""

import time
from collections import Counter

import packets
from layout import BLOCK, CLIENT, ROUND_ROBIN, TOR_MAC, host_mac
from packets import SYN, TIME_VALID, Request
from rack import families, in_time, variants
from t04_choice import Spraying, unchecked, weighted_slots

BOUND = 1_000_000  # microseconds; Python cannot send a heartbeat every 2 ms
BEAT = 0.05


class Dying(Spraying):
    """Helpers: replicas that send heartbeats until they are stopped."""

    def start(self, policy: int = ROUND_ROBIN, weights=(1, 2, 5), slots: int = 1024, **fields):
        pool = self.add_pool([1, 2, 3], bound=BOUND)
        service = self.add_service(
            pool, policy=policy, slots=weighted_slots(list(weights), slots), modes=unchecked(), **fields
        )
        stops = [self.keep_beating(pool, [r], BEAT) for r in range(3)]
        time.sleep(0.2)
        return service, stops

    def one(self, service) -> int:
        frame = self.to_service(service, Request(number=self.random.getrandbits(32), tag=self.random.getrandbits(32)))
        self.send(CLIENT, frame)
        port, _ = self.receive()
        return service.pool.ports.index(port)


@variants
class DeathAndReturn(Dying):
    """A replica dies: no packet reaches it and none is lost; its share goes to the others by weight.

    After its return it gets packets again. When all are dead, packets are dropped and counted.
    """

    @in_time
    def check(self) -> None:
        service, stops = self.start()
        pool = service.pool
        self.assertEqual(set(self.shower(service, [Request(number=n) for n in range(100)])), {0, 1, 2})

        # Another replica's heartbeat or a client's packet finds the death, once.
        with self.counts("replica_exclusions", pool.member(2)):
            stops[2].set()
            time.sleep(BOUND / 1e6 + 0.3)
            seen = self.shower(service, [Request(number=n) for n in range(6000)])
        self.assertEqual(seen[2], 0, f"a dead replica received {seen[2]} packets")
        self.assertEqual(sum(seen.values()), 6000, "packets were lost in finding the death")
        for replica, weight in ((0, 1), (1, 2)):
            share = 6000 * weight / 3
            self.assertLess(abs(seen[replica] - share), 0.05 * share, f"not by weight 1:2 of the rest: {seen}")

        # It returns after three heartbeats within the bound, without the controller.
        with self.counts("replica_returns", pool.member(2)):
            stops[2] = self.keep_beating(pool, [2], BEAT)
            self.wait_for_return(pool, 2)
            seen = self.shower(service, [Request(number=n) for n in range(800)])
        self.assertGreater(seen[2], 400, f"the returned replica got {seen[2]} of 800")

        for stop in stops:
            stop.set()
        time.sleep(BOUND / 1e6 + 0.3)
        with self.drops("NO_REPLICA", count=20):
            for n in range(20):
                self.send(CLIENT, self.to_service(service, Request(number=n)))
        # Each death was counted once, however many packets arrived.
        self.assertEqual(self.switch.counter("replica_exclusions", pool.member(0)), 1)
        self.assertEqual(self.switch.counter("replica_exclusions", pool.member(2)), 2)


@families
class DeathUnderTraffic(Dying):
    """Replicas die one after the other under traffic: every packet arrives, none at a dead replica."""

    @in_time
    def check(self) -> None:
        service, stops = self.start(policy=BLOCK)
        for victim in (0, 1):
            stops[victim].set()
            end = time.monotonic() + BOUND / 1e6 + 0.1
            while time.monotonic() < end:
                self.one(service)
            for _ in range(100):
                self.assertGreater(self.one(service), victim, "a packet reached a dead replica")


@variants
class TwoHeartbeatsAreNotEnough(Dying):
    """A replica returns after three ready heartbeats within the bound; two, or three over more time, are too few."""

    @in_time
    def check(self) -> None:
        service, stops = self.start(slots=8)
        pool = service.pool
        stops[2].set()
        time.sleep(BOUND / 1e6 + 0.3)
        for _ in range(16):
            self.assertNotEqual(self.one(service), 2)
        self.beat(pool, 2)
        self.beat(pool, 2)
        self.wait_for_heartbeats(pool)
        for _ in range(16):
            self.assertNotEqual(self.one(service), 2, "two heartbeats brought it back")
        time.sleep(BOUND / 1e6)
        self.beat(pool, 2)
        self.wait_for_heartbeats(pool)
        for _ in range(16):
            self.assertNotEqual(self.one(service), 2, "three heartbeats in more than the bound brought it back")
        # Three at once: by now the bound may have passed since the one before.
        for _ in range(3):
            self.beat(pool, 2)
        self.wait_for_heartbeats(pool)
        self.assertIn(2, {self.one(service) for _ in range(16)}, "three heartbeats did not bring it back")


@variants
class UnreadyReplicaIsExcluded(Dying):
    """A replica that sends heartbeats without `ready` is excluded, and such heartbeats do not let it return."""

    @in_time
    def check(self) -> None:
        service, stops = self.start(slots=8)
        pool = service.pool
        stops[1].set()
        end = time.monotonic() + BOUND / 1e6 + 0.1
        with self.counts("heartbeats_unready", pool.member(1), 20):
            for _ in range(20):
                self.beat(pool, 1, flags=0)
                time.sleep(BOUND / 1e6 / 15)
        self.assertGreater(time.monotonic(), end)
        for _ in range(24):
            self.assertNotEqual(self.one(service), 1, "a replica that is not ready got a packet")
        # Three ready heartbeats let it return.
        for _ in range(3):
            self.beat(pool, 1)
        self.wait_for_heartbeats(pool)
        self.assertIn(1, {self.one(service) for _ in range(24)})


@families
class HeartbeatsFromWrongSources(Dying):
    """Heartbeats at another port, from another MAC, or for another pool or replica keep no replica alive."""

    @in_time
    def check(self) -> None:
        service, stops = self.start(slots=8)
        pool = service.pool
        other = self.add_pool([4])
        cases = [
            (2, host_mac(1), pool.id, 0),  # right source, wrong port
            (1, host_mac(2), pool.id, 0),  # right port, wrong source
            (1, host_mac(1), pool.id, 1),  # another replica's index
            (1, host_mac(1), pool.id, 63),
            (1, host_mac(1), other.id, 0),  # another pool
            (1, host_mac(1), 1023, 0),
            (1, host_mac(1), pool.id + 1024, 0),  # the same pool modulo the array's size
            (CLIENT, host_mac(CLIENT), pool.id, 0),
        ]
        for port, source, pool_id, replica in cases:
            with self.drops("HEARTBEAT_REFUSED"):
                self.send(port, packets.ethernet(TOR_MAC, source, 0x88B5, packets.heartbeat(pool_id, replica)))
        stops[0].set()
        end = time.monotonic() + BOUND / 1e6 + 0.1
        while time.monotonic() < end:
            for port, source, pool_id, replica in cases:
                self.send(port, packets.ethernet(TOR_MAC, source, 0x88B5, packets.heartbeat(pool_id, replica)))
            time.sleep(BEAT)
        for _ in range(24):
            self.assertNotEqual(self.one(service), 0, "a heartbeat from elsewhere kept a silent replica alive")


@variants
class PlainTcpWaitsForReadmission(Dying):
    """Flows of a dead replica go to the second candidate, and stay there until the controller readmits the first.

    Rivulet requests go to the returned replica at once.
    """

    @in_time
    def check(self) -> None:
        service, stops = self.start(slots=8, weights=(1, 1, 1))
        pool = service.pool

        def flow(sport: int) -> int:
            frame = self.plain(service, sport)
            self.send(CLIENT, frame)
            return self.expect_plain(service, frame)

        sports = range(20000, 20040)
        home = {sport: flow(sport) for sport in sports}
        stops[0].set()
        time.sleep(BOUND / 1e6 + 0.3)
        away = {sport: flow(sport) for sport in sports}
        for sport in sports:
            if home[sport] == 0:
                self.assertNotEqual(away[sport], 0)
            else:
                self.assertEqual(away[sport], home[sport], "the flow of a live replica moved")
        stops[0] = self.keep_beating(pool, [0], BEAT)
        self.wait_for_return(pool, 0)
        self.assertIn(0, {self.one(service) for _ in range(24)}, "Rivulet does not use the returned replica")
        self.assertEqual({sport: flow(sport) for sport in sports}, away, "plain TCP moved back by itself")
        # A SYN with Rivulet's option goes where the flow goes.
        for sport in sports[:8]:
            frame = self.to_service(service, Request(name="SYN"), sport=sport)
            self.send(CLIENT, frame)
            self.expect_request(service, frame, flags=TIME_VALID, replicas=[away[sport]])
        self.admit(pool, 0, readmitted=1, modify=True)
        self.wait_for_return(pool, 0)
        self.assertEqual({sport: flow(sport) for sport in sports}, home, "after the readmission the flows are not back")


@families
class ReturnedReplicaIsBetterThanNone(Dying):
    """If all live replicas have returned without readmission, plain TCP still goes to one of them."""

    @in_time
    def check(self) -> None:
        service, stops = self.start(slots=8, weights=(1, 1, 1))
        stops[0].set()
        time.sleep(BOUND / 1e6 + 0.3)
        for sport in range(20000, 20030):
            self.send(CLIENT, self.plain(service, sport))
            self.receive()
        self.keep_beating(service.pool, [0], BEAT)
        self.wait_for_return(service.pool, 0)
        stops[1].set()
        stops[2].set()
        time.sleep(BOUND / 1e6 + 0.3)
        for sport in range(20000, 20030):
            frame = self.plain(service, sport)
            self.send(CLIENT, frame)
            self.expect_plain(service, frame, replicas=[0])


@variants
class Draining(Dying):
    """Draining swaps the candidates of a slot: requests and SYNs go to the new first candidate."""

    @in_time
    def check(self) -> None:
        service = self.add_service(policy=ROUND_ROBIN, slots=[(0, 1), (1, 0)], modes=unchecked())
        self.assertEqual({self.one(service) for _ in range(4)}, {0, 1})
        slot_set = max(
            int.from_bytes(entry.match[0].exact.value, "big")
            for entry in self.entries
            if entry.table_id == self.switch.info.tables["slots"].preamble.id
        )
        self.modify("slots", {"slot_set": slot_set, "slot": 0}, "set_slot", first=1, second=0)
        self.assertEqual({self.one(service) for _ in range(6)}, {1})
        for sport in range(20000, 20010):
            frame = self.plain(service, sport, flags=SYN)
            self.send(CLIENT, frame)
            self.expect_plain(service, frame, replicas=[1])


@variants
class ReplicasWithoutHeartbeats(Dying):
    """A replica that has sent no heartbeat is dead, whatever a register held: all packets go to the other."""

    @in_time
    def check(self) -> None:
        pool = self.add_pool([1, 2, 3, 4], alive=False)
        service = self.add_service(pool, policy=ROUND_ROBIN, modes=unchecked())
        with self.drops("NO_REPLICA"):
            self.send(CLIENT, self.to_service(service, Request(number=1)))
        for _ in range(3):
            self.beat(pool, 3)
        self.wait_for_heartbeats(pool)
        self.assertEqual(Counter(self.one(service) for _ in range(30)), {3: 30})


@families
class SixtyFourReplicas(Dying):
    """The first packet for a pool of 64 with 63 dead replicas finds all 63 deaths and still arrives."""

    @in_time
    def check(self) -> None:
        pool = self.add_pool([1], alive=False)
        # The heartbeat must not find the deaths.
        self.set_pool(pool, members=(1 << 64) - 1, settle=pool.bound)
        alive = 63  # tried last, after first, second and the others in order
        pool.ports = [1] * 64
        for replica in range(1, 64):
            key = {"pool": pool.id, "replica": replica}
            self.insert("replicas", key, "rack", next_hop=pool.hop_base + 1)
            self.insert("encapsulations", key, "to_rack", next_hop=pool.hop_base + 1)
        self.admit(pool, alive)
        slots = [(i, (i + 1) % 64) for i in range(64)]
        service = self.add_service(pool, policy=ROUND_ROBIN, slots=slots, modes=unchecked())
        self.beat(pool, alive)
        self.wait_for_heartbeats(pool)
        self.set_pool(pool, members=(1 << 64) - 1)
        with self.counts("replica_packets", pool.member(alive), 1):
            self.assertEqual(self.one(service), 0)
        found = self.switch.counters("replica_exclusions")
        self.assertEqual(sum(found.get(pool.member(r), 0) for r in range(64)), 63)
        self.assertNotIn(pool.member(alive), found)


class AllSixtyFourReplicasDead(Dying):
    """A packet that finds 64 deaths is dropped as NO_REPLICA, which shows that the resubmissions end."""

    def runTest(self) -> None:
        pool = self.add_pool([1], alive=False)
        self.set_pool(pool, members=(1 << 64) - 1)
        service = self.add_service(
            pool, policy=ROUND_ROBIN, slots=[(i, (i + 1) % 64) for i in range(64)], modes=unchecked()
        )
        with self.drops("NO_REPLICA"):
            self.send(CLIENT, self.to_service(service, Request(number=1)))
        found = self.switch.counters("replica_exclusions")
        self.assertEqual([found.get(pool.member(r), 0) for r in range(64)], [1] * 64)
