# SPDX-License-Identifier: Apache-2.0
"""Client affinity: all plain TCP of a client's address to a service goes to one replica, without it by flow."""

from collections import Counter

import packets
from layout import BY_CLIENT, BY_FLOW, CLIENT, KERNEL, STATELESS, TOR_MAC, TRODS, Service, host_mac
from model import mapped
from packets import ACK, SYN, TIME_VALID, Address, Request, ip, number
from program import client_hash
from rack import RackTest, families, in_time, variants
from rivulet_wire import owner
from t09_icmp_errors import ERRORS, IcmpErrors

BOUND = 1_000_000  # microseconds
PORTS = (20000, 20001, 34567, 61000)


class Clients(RackTest):
    """Helpers: many clients, and the replica of each."""

    def clients(self, count: int) -> list[Address]:
        """Addresses that differ in their last bytes, and IPv6 addresses of one prefix."""
        base = ip("203.0.113.0") if self.family == 4 else ip("2001:db8:c:0:5::")
        return [base + n for n in range(1, count + 1)]

    def hashed(self, service: Service, client: Address) -> int:
        return client_hash(service.slot_key, mapped(client.packed))

    def reaches(self, service: Service, client: Address, sport: int, flags: int = ACK) -> int:
        """Sends one segment; returns the replica that received it."""
        frame = self.plain(service, sport, flags=flags, src=client)
        self.send(CLIENT, frame)
        return self.expect_plain(service, frame)


@variants
class OneReplicaPerClient(Clients):
    """Every connection of a client, from SYN to FIN, reaches the replica of its address; clients are spread."""

    def check(self) -> None:
        pool = self.add_pool()
        slots = self.even_slots(pool)
        for plain in (KERNEL, TRODS):
            service = self.add_service(pool, slots=slots, plain=plain, affinity=BY_CLIENT)
            seen: Counter[int] = Counter()
            for client in self.clients(32):
                wanted = owner(self.hashed(service, client), slots, 0b111)
                for sport in PORTS:
                    for flags in (SYN, ACK, packets.FIN | ACK):
                        self.assertEqual(self.reaches(service, client, sport, flags), wanted, f"{client} port {sport}")
                seen[wanted] += 1
            self.assertEqual(len(seen), 3, f"32 clients went to {seen}")


@families
class AllAddressesAndPortsOfAService(Clients):
    """A client has the same replica at every address and port of a service."""

    def check(self) -> None:
        service = self.add_service(affinity=BY_CLIENT)
        address, port = service.address, service.port
        for beside, at in ((address, port + 1), (address + 0x100, port)):
            match = {"address": number(beside), "port": at}
            self.insert("services", match, "set_service", service=service.id)
        self.insert("addresses", {"address": number(address + 0x100)}, "service_address")
        for client in self.clients(12):
            service.address, service.port = address, port
            first = self.reaches(service, client, 40000)
            service.port = port + 1
            self.assertEqual(self.reaches(service, client, 40001), first)
            service.address, service.port = address + 0x100, port
            self.assertEqual(self.reaches(service, client, 40002), first)


@families
class WithoutAffinityByFlow(Clients):
    """With the same clients, slots and key, but without affinity, one client's connections reach all replicas."""

    def check(self) -> None:
        pool = self.add_pool()
        slots = self.even_slots(pool)
        off = self.add_service(pool, slots=slots, affinity=BY_FLOW)
        both = self.add_service(pool, slots=slots, affinity=BY_CLIENT, slot_key=off.slot_key)
        (client,) = self.clients(1)
        spread = Counter(self.reaches(off, client, sport) for sport in range(20000, 20048))
        self.assertEqual(len(spread), 3, f"48 connections of one client went to {spread}")
        self.assertEqual(len({self.reaches(both, client, sport) for sport in range(20000, 20048)}), 1)


@variants
class OpeningsAndErrorsFollowClients(Clients, IcmpErrors):
    """A SYN with Rivulet's option, and an ICMP error about a connection, reach the client's replica."""

    def check(self) -> None:
        service = self.add_service(affinity=BY_CLIENT)
        replica = self.reaches(service, self.client, 50000)
        for sport in range(50000, 50016):
            opening = self.to_service(service, Request(name="SYN"), sport=sport)
            self.send(CLIENT, opening)
            self.expect_request(service, opening, flags=TIME_VALID, replicas=[replica])
            quote = self.response(service, sport, False)[: self.header() + 200]
            error = self.error(service, quote, *ERRORS[self.family][0])
            self.send(CLIENT, error)
            self.expect_plain(service, error, replicas=[replica])


@families
class RequestsIgnoreAffinity(Clients):
    """Rivulet requests go by the service's policy, whatever its affinity."""

    def check(self) -> None:
        service = self.add_service(affinity=BY_CLIENT)
        seen = Counter(self.passes(service, self.good_request(service)) for _ in range(40))
        self.assertEqual(len(seen), 3, f"40 requests of one client went to {seen}")


@families
class OpeningsAreCountedByPort(Clients):
    """Openings are counted by client, port and ISN, four each, although all ports have one hash."""

    def check(self) -> None:
        service = self.add_service(affinity=BY_CLIENT)
        syn = Request(name="SYN")
        for _ in range(4):
            for sport in range(30000, 30008):
                self.passes(service, syn, flags=TIME_VALID, sport=sport, sequence=7)
        for sport in range(30000, 30008):
            self.fails(service, syn, "REPLAY", sport=sport, sequence=7)


@families
class StatelessFlowsFollowClients(Clients):
    """Segments of a stateless service that go by flow go by client: here those of a kernel's socket."""

    def check(self) -> None:
        pool = self.add_pool()
        slots = self.even_slots(pool)
        service = self.add_service(pool, slots=slots, plain=STATELESS, affinity=BY_CLIENT, cookies=[(1, 2)])
        for client in self.clients(8):
            wanted = owner(self.hashed(service, client), slots, 0b111)
            for sport in PORTS:
                self.assertEqual(self.reaches(service, client, sport, packets.RST), wanted)


@variants
class ClientsOfDeadAndReturnedReplica(Clients):
    """A dead replica's clients are spread over the others, and no other client moves.

    After its readmission it gets them back, and connections begun meanwhile continue by the second chance.
    """

    @in_time
    def check(self) -> None:
        pool = self.add_pool(bound=BOUND)
        for replica, port in enumerate(pool.ports):
            key = {"pool": pool.id, "ingress_port": port, "mac": int.from_bytes(host_mac(port), "big")}
            self.insert("second_chances", key, "handed_on_by", replica=replica)
        slots = self.even_slots(pool)
        service = self.add_service(pool, slots=slots, affinity=BY_CLIENT)
        clients = self.clients(16)

        def replicas_of(alive: int) -> dict[Address, int | None]:
            return {client: owner(self.hashed(service, client), slots, alive) for client in clients}

        def all_at(wanted: dict[Address, int | None]) -> None:
            for client, replica in wanted.items():
                for sport in PORTS[:2]:
                    self.assertEqual(self.reaches(service, client, sport), replica, f"{client} port {sport}")

        before, after = replicas_of(0b111), replicas_of(0b110)
        self.assertEqual(len({after[c] for c in clients if before[c] == 0}), 2, "its clients are not spread")
        self.assertTrue(all(after[c] == before[c] for c in clients if before[c] != 0))
        all_at(before)
        exclusions = self.switch.counter("replica_exclusions", pool.member(0))
        self.keep_beating(pool, [1, 2], 0.05)
        self.until(
            lambda: self.switch.counter("replica_exclusions", pool.member(0)) != exclusions,
            "replica 0 is not excluded",
        )
        all_at(after)
        self.keep_beating(pool, [0], 0.05)
        self.wait_for_return(pool, 0)
        all_at(after)
        self.admit(pool, 0, readmitted=1, modify=True)
        self.wait_for_return(pool, 0)
        all_at(before)
        for client in (c for c in clients if before[c] == 0):
            back = TOR_MAC + host_mac(pool.ports[0]) + self.plain(service, src=client)[12:]
            with self.counts("service_outcomes", self.outcome(service, "HANDED_ON")):
                self.send(pool.ports[0], back)
                port, got = self.receive()
            self.assertEqual(pool.ports.index(port), after[client], "a connection begun meanwhile did not continue")
            mark = host_mac(pool.ports[0])
            self.same(packets.forwarded(back, dst=host_mac(port), src=mark, vlan=self.rack_vlan()), got)


@families
class BothCandidatesDead(Clients):
    """With both candidates dead, a client's connections all go to one other replica, and clients to every one."""

    def check(self) -> None:
        pool = self.add_pool([1, 2, 3, 4, 7])
        service = self.add_service(pool, slots=[(0, 1)] * 8, affinity=BY_CLIENT)
        self.set_pool(pool, members=0b11100)
        seen: Counter[int] = Counter()
        for client in self.clients(24):
            wanted = owner(self.hashed(service, client), [(0, 1)] * 8, 0b11100)
            assert wanted is not None
            for sport in PORTS:
                self.assertEqual(self.reaches(service, client, sport), wanted, f"{client} port {sport}")
            seen[wanted] += 1
        self.assertEqual(set(seen), {2, 3, 4}, f"24 clients went to {seen}")
