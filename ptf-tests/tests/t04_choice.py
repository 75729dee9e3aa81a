# SPDX-License-Identifier: Apache-2.0
"""Choice of the replica for a packet: policies, flows, weights."""

import itertools
import time
from collections import Counter

import packets
from layout import BLOCK, CLIENT, CLIENTS, LEAST_LOADED, RANDOM, ROUND_ROBIN
from model import mapped
from packets import SYN, TIME_VALID, Request
from program import block_hash, flow_hash
from rack import RackTest, families, variants
from rivulet_wire import owner


def smooth_order(weights: list[int], count: int) -> list[int]:
    """Smooth weighted round robin over `count` slots."""
    total, credit, order = sum(weights), [0] * len(weights), []
    for _ in range(count):
        credit = [c + w for c, w in zip(credit, weights, strict=True)]
        best = max(range(len(weights)), key=lambda i: credit[i])
        credit[best] -= total
        order.append(best)
    return order


def weighted_slots(weights: list[int], count: int) -> list[tuple[int, int]]:
    """First candidates in smooth order; the second candidates of each are spread over the others by weight."""
    firsts = smooth_order(weights, count)
    seconds = {}
    for replica in range(len(weights)):
        others = [0 if i == replica else w for i, w in enumerate(weights)]
        seconds[replica] = iter(smooth_order(others, firsts.count(replica)))
    return [(first, next(seconds[first])) for first in firsts]


class Spraying(RackTest):
    """Helpers: sends many requests and counts the replicas that they reach."""

    def shower(self, service, requests: list[Request], pace: int = 50) -> Counter:
        """Sends all requests; returns how many reached each replica."""
        seen: Counter = Counter()
        for i, request in enumerate(requests):
            self.send(CLIENT, self.to_service(service, request))
            if i % pace == pace - 1:
                self.gather(service, seen, i + 1)
        self.gather(service, seen, len(requests))
        return seen

    def gather(self, service, seen: Counter, until: int) -> None:
        deadline = time.monotonic() + 30
        while sum(seen.values()) < until and time.monotonic() < deadline:
            result = self.dataplane.poll(0, timeout=1)
            if isinstance(result, self.dataplane.PollSuccess):
                seen[service.pool.ports.index(result.port)] += 1
        self.assertEqual(sum(seen.values()), until, f"{until} requests were sent, {sum(seen.values())} arrived: {seen}")


@families
class RoundRobinByWeight(Spraying):
    """10,000 requests to replicas of weights 1:2:5 are spread within 1 % of the weights."""

    def check(self) -> None:
        pool = self.add_pool()
        service = self.add_service(pool, policy=ROUND_ROBIN, slots=weighted_slots([1, 2, 5], 1024), modes=unchecked())
        requests = [self.good_request(service, [], number=n & 0xFFFFFFFF) for n in range(10_000)]
        seen = self.shower(service, requests)
        for replica, weight in enumerate((1, 2, 5)):
            share = 10_000 * weight / 8
            self.assertLessEqual(
                abs(seen[replica] - share),
                share * 0.01,
                f"replica {replica} got {seen[replica]}, expected {share} within 1 %",
            )


def unchecked() -> dict[str, int]:
    return dict.fromkeys(("key", "time", "range", "sum", "replay", "meter"), 0)


@variants
class RoundRobinIsExact(Spraying):
    """Consecutive packets take consecutive slots."""

    def check(self) -> None:
        service = self.add_service(policy=ROUND_ROBIN, slots=[(0, 1), (1, 2), (2, 0), (0, 2)])
        got = [self.passes(service, self.good_request(service)) for _ in range(12)]
        self.assertEqual(got, [0, 1, 2, 0] * 3)


@variants
class BlocksOfEightNumbers(Spraying):
    """Eight consecutive numbers go to the replica of hash(tag, number / 8, attempt), repeats to another."""

    def check(self) -> None:
        slots = self.even_slots(self.add_pool(), 64)
        service = self.add_service(policy=BLOCK, slots=slots, modes=unchecked())
        tag = 0x12345678
        for block in range(30):
            for number in (block * 8, block * 8 + 3, block * 8 + 7):
                for attempt in (0, 1):
                    request = Request(name="PROBE" if attempt else "NORMAL", tag=tag, number=number, attempt=attempt)
                    wanted = slots[block_hash(service.slot_key, tag, number, attempt) & 63][0]
                    self.assertEqual(self.passes(service, request, flags=TIME_VALID), wanted)
        requests = [Request(tag=self.random.getrandbits(32), number=self.random.getrandbits(32)) for _ in range(3000)]
        seen = self.shower(service, requests)
        for replica in range(3):
            self.assertLess(abs(seen[replica] - 1000), 150, f"blocks are spread unevenly: {seen}")


class ThirdChoice(Spraying):
    """Helpers: a pool of eight replicas at four ports, from which a test removes some."""

    def eight(self, policy: int):
        pool = self.add_pool([1, 2, 3, 4] * 2)
        return self.add_service(pool, policy=policy, slots=self.even_slots(pool), modes=unchecked())

    def shares(self, service, dead: tuple[int, ...], requests: list[Request]) -> list[float]:
        """Packets of each live replica, with the replicas `dead` removed, divided by the packets of its fair share."""
        pool, slots = service.pool, self.even_slots(service.pool)
        alive = [r for r in range(8) if r not in dead]
        members = sum(1 << r for r in alive)
        self.set_pool(pool, members=members)
        wanted = [0.0] * 8
        for first, second in slots:
            taken = [first] if first in alive else [second] if second in alive else alive
            for replica in taken:
                wanted[replica] += len(requests) / len(slots) / len(taken)
        before = self.switch.counters("replica_packets")
        self.shower(service, requests)
        after = self.switch.counters("replica_packets")
        got = [after.get(pool.member(r), 0) - before.get(pool.member(r), 0) for r in range(8)]
        self.assertEqual([got[r] for r in dead], [0] * len(dead))
        self.assertEqual(sum(got), len(requests))
        return [got[r] / wanted[r] for r in alive]


class SurvivorsShareEvenly(ThirdChoice):
    """With any one, two or three of eight replicas removed, each of the others gets its share within 10 %."""

    def runTest(self) -> None:
        service = self.eight(ROUND_ROBIN)
        requests = [Request(number=1)] * 512
        for count in (1, 2, 3):
            for dead in itertools.combinations(range(8), count):
                shares = self.shares(service, dead, requests)
                self.assertTrue(all(0.9 < s < 1.1 for s in shares), f"without {dead} of 8 the others got {shares}")


@families
class HalfOfThePoolIsOut(ThirdChoice):
    """With four of eight replicas removed, all policies spread packets evenly over the others."""

    def check(self) -> None:
        for policy in (ROUND_ROBIN, BLOCK, RANDOM):
            service = self.eight(policy)
            for dead in ((0, 1, 2, 3), (0, 2, 4, 6), (4, 5, 6, 7), (1, 2, 6, 7)):
                requests = [Request(tag=self.random.getrandbits(32), number=1) for _ in range(2048)]
                shares = self.shares(service, dead, requests)
                near = 0.05 if policy == ROUND_ROBIN else 0.25  # five standard deviations of 512 random choices
                self.assertTrue(all(abs(s - 1) < near for s in shares), f"without {dead} of 8 the others got {shares}")


@variants
class RandomPolicy(Spraying):
    """The random policy chooses slots evenly, so replicas by weight."""

    def check(self) -> None:
        pool = self.add_pool()
        service = self.add_service(pool, policy=RANDOM, slots=weighted_slots([1, 2, 5], 64), modes=unchecked())
        seen = self.shower(service, [Request(number=1)] * 4000)
        for replica, weight in enumerate((1, 2, 5)):
            share = 4000 * weight / 8
            self.assertLess(abs(seen[replica] - share), 0.2 * share, f"not by weight 1:2:5: {seen}")


@variants
class LeastLoadedOfTwo(Spraying):
    """Of the slot's two candidates the request goes to the one whose heartbeat reported the smaller load."""

    def check(self) -> None:
        pool = self.add_pool()
        service = self.add_service(pool, policy=LEAST_LOADED, slots=[(0, 1), (1, 0), (0, 1), (1, 0)], modes=unchecked())
        for loads, winner in (((5, 9), 0), ((9, 5), 1), ((65535, 0), 1), ((0, 1), 0)):
            for replica, load in enumerate(loads):
                self.beat(pool, replica, load=load)
            self.wait_for_heartbeats(pool)
            seen = self.shower(service, [Request(number=1)] * 20)
            self.assertEqual(seen, {winner: 20}, f"loads {loads}")


@variants
class PlainTcpByFlow(Spraying):
    """All plain TCP of a flow goes to one replica, as does a SYN with Rivulet's option; flows are spread."""

    def check(self) -> None:
        service = self.add_service(policy=RANDOM)
        seen: Counter = Counter()
        for sport in range(40000, 40060):
            syn = self.plain(service, sport, flags=SYN, payload=b"", options=packets.SYN_BLOCK)
            self.send(CLIENT, syn)
            replica = self.expect_plain(service, syn)
            for flags in (packets.ACK, packets.ACK | packets.FIN, packets.RST, packets.SYN):
                frame = self.plain(service, sport, flags=flags)
                self.send(CLIENT, frame)
                self.expect_plain(service, frame, replicas=[replica])
            opening = self.to_service(service, Request(name="SYN"), sport=sport)
            self.send(CLIENT, opening)
            self.expect_request(service, opening, flags=TIME_VALID, replicas=[replica])
            seen[replica] += 1
        self.assertEqual(len(seen), 3, f"60 flows went to {seen}")


@families
class SlotsUnderAKey(Spraying):
    """Slots of flows and blocks are HalfSipHash under the service's key, so another key gives other slots.

    Key and slots determine the replica of a flow, also after the first candidate is removed.
    """

    def check(self) -> None:
        pool = self.add_pool()
        slots = self.even_slots(pool)
        moved = 0
        for words in ((0, 0), (0x01234567, 0x89ABCDEF)):
            service = self.add_service(pool, slots=slots, slot_key=words, modes=unchecked())
            client, address = (mapped(a.packed) for a in (CLIENTS[self.family], service.address))
            for sport in range(20000, 20064):
                hashed = flow_hash(words, client, address, sport, service.port)
                frame = self.plain(service, sport)
                self.send(CLIENT, frame)
                first = self.expect_plain(service, frame)
                self.assertEqual(first, owner(hashed, slots, 0b111))
                moved += first != owner(flow_hash((7, 7), client, address, sport, service.port), slots, 0b111)
        self.assertGreater(moved, 50, "two keys of three replicas should differ in two of three flows")
        for alive in (0b011, 0b101, 0b110, 0b010):
            self.set_pool(pool, members=alive)
            for sport in range(20000, 20064):
                frame = self.plain(service, sport)
                self.send(CLIENT, frame)
                hashed = flow_hash(service.slot_key, client, address, sport, service.port)
                self.expect_plain(service, frame, replicas=[owner(hashed, slots, alive)])


@variants
class RemovingOneReplicaMovesItsSlotsOnly(Spraying):
    """After one of 16 replicas is removed from the slots, the flows of the others have not moved."""

    def check(self) -> None:
        ports = [1, 2, 3, 4] * 4
        pool = self.add_pool([1, 2, 3, 4])
        # 16 replicas at four ports: the counter of each shows which one got a packet.
        self.set_pool(pool, members=0xFFFF)
        pool.ports = ports
        for replica in range(4, 16):
            key = {"pool": pool.id, "replica": replica}
            self.insert("replicas", key, "rack", next_hop=pool.hop_base + ports[replica])
            self.insert("encapsulations", key, "to_rack", next_hop=pool.hop_base + ports[replica])
            self.admit(pool, replica)
            self.beat(pool, replica)
        slots = [(i % 16, (i * 7 + 3) % 16 if (i * 7 + 3) % 16 != i % 16 else (i + 1) % 16) for i in range(256)]
        service = self.add_service(pool, slots=slots)

        def where(sport: int) -> int:
            before = {r: self.switch.counter("replica_packets", pool.member(r)) for r in range(16)}
            frame = self.plain(service, sport)
            self.send(CLIENT, frame)
            self.receive()
            after = {r: self.switch.counter("replica_packets", pool.member(r)) for r in range(16)}
            (replica,) = [r for r in range(16) if after[r] != before[r]]
            return replica

        sports = range(30000, 30100)
        first = {sport: where(sport) for sport in sports}
        gone = 5
        config = [entry for entry in self.entries if entry.table_id == self.switch.info.tables["slots"].preamble.id]
        self.assertEqual(len(config), 256)
        slot_set = int.from_bytes(config[0].match[0].exact.value, "big")
        for slot, (a, b) in enumerate(slots):
            if a == gone:
                self.modify("slots", {"slot_set": slot_set, "slot": slot}, "set_slot", first=b, second=a)
        for sport in sports:
            now = where(sport)
            if first[sport] == gone:
                self.assertNotEqual(now, gone)
            else:
                self.assertEqual(now, first[sport], f"flow {sport} moved from {first[sport]} to {now}")
        self.assertIn(gone, first.values(), "no flow was at the replica that was removed")
