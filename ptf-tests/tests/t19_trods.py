# SPDX-License-Identifier: Apache-2.0
"""Plain TCP of a service with TRODS: by flow, sent by live members only, passed on to the named holder."""

import packets
from layout import CLIENT, CLIENTS, KERNEL, TOR_MAC, TRODS, Pool, Service, host_mac
from model import mapped
from packets import ACK, SYN, Request, number
from program import flow_hash
from rack import RackTest, in_time, variants

BOUND = 1_000_000  # microseconds
HOLDER_MAC = packets.mac("02:52:56:00:00:00")


class Trods(RackTest):
    """Helpers: a pool with TRODS, segments that its members send as the service, and segments passed on."""

    def trods(self, ports=(1, 2, 3), *, first: int = 0, second: int = 1, plain: int = TRODS, **fields) -> Service:
        pool = self.add_pool(ports, **fields)
        for replica, port in enumerate(pool.ports):
            key = {"pool": pool.id, "ingress_port": port, "mac": int.from_bytes(host_mac(port), "big")}
            self.insert("second_chances", key, "handed_on_by", replica=replica)
        return self.add_service(pool, slots=[(first, second)] * 8, plain=plain)

    def guard(self, service: Service, ports=(1, 2, 3)) -> None:
        """Installs the members' guarded ports and the addresses from which each sends."""
        for port in ports:
            self.insert("ports", {"ingress_port": port}, "set_port", pvid=0, guarded=1)
        for replica, port in enumerate(service.pool.ports):
            key = {
                "ingress_port": port,
                "mac": int.from_bytes(host_mac(port), "big"),
                "address": number(service.address),
                "port": service.port,
            }
            self.insert("plain_sources", key, "speaks_for", pool=service.pool.id, replica=replica)

    def answer(self, service: Service, port: int, *, flags: int = ACK, sport: int | None = None, **fields) -> bytes:
        """A segment from the service to the client, as the replica at `port` sends it."""
        client = CLIENTS[service.address.version]
        fields = {"payload": b"a piece of the file"} | fields
        segment = packets.tcp(service.address, client, sport or service.port, 40000, flags=flags, **fields)
        ether_type = 0x0800 if service.address.version == 4 else 0x86DD
        packet = packets.ip_packet(service.address, client, packets.TCP, segment)
        return packets.ethernet(TOR_MAC, host_mac(port), ether_type, packet, self.rack_vlan())

    def reaches_the_client(self, port: int, frame: bytes) -> None:
        self.send(port, frame)
        self.expect(CLIENT, packets.forwarded(frame, dst=host_mac(CLIENT), src=TOR_MAC, vlan=None))

    def excluded(self, pool: Pool, replica: int) -> None:
        """Waits until heartbeats of the other replicas, which continue afterwards, have excluded this one."""
        others = [r for r in range(len(pool.ports)) if r != replica]
        before = self.switch.counter("replica_exclusions", pool.member(replica))
        self.keep_beating(pool, others, 0.05)
        self.until(
            lambda: self.switch.counter("replica_exclusions", pool.member(replica)) != before,
            f"replica {replica} is not excluded",
        )

    def hand_on(self, service: Service, by: int, holder: int | None, to: int, counted: str = "HANDED_ON") -> None:
        """Replica `by` sends a client's segment back to `holder`; replica `to` must receive it."""
        ports = service.pool.ports
        destination = TOR_MAC if holder is None else HOLDER_MAC[:5] + bytes([holder])
        frame = destination + host_mac(ports[by]) + self.plain(service)[12:]
        with self.counts("service_outcomes", self.outcome(service, counted)):
            self.send(ports[by], frame)
            port, got = self.receive()
        self.assertEqual(port, ports[to], f"handed on to port {port}")
        mark = host_mac(ports[by]) if counted == "HANDED_ON" else TOR_MAC
        self.same(packets.forwarded(frame, dst=host_mac(port), src=mark, vlan=self.rack_vlan()), got)


@variants
class TrodsFlowsMatchKernelFlows(Trods):
    """All segments of a connection go to its slot's replica, as for a service of the kernel's TCP."""

    def check(self) -> None:
        pool = self.add_pool()
        slots, slot_key = self.even_slots(pool, 8), (self.random.getrandbits(32), self.random.getrandbits(32))
        seen = set()
        for plain in (TRODS, KERNEL):
            service = self.add_service(pool, plain=plain, slots=slots, slot_key=slot_key)
            addresses = mapped(self.client.packed), mapped(service.address.packed)
            for sport in range(20000, 20016):
                first, _ = slots[flow_hash(slot_key, *addresses, sport, service.port) & 7]
                for flags in (SYN, ACK, packets.FIN | ACK):
                    frame = self.plain(service, sport, flags=flags)
                    self.send(CLIENT, frame)
                    seen.add(self.expect_plain(service, frame, replicas=[first]))
        self.assertEqual(seen, {0, 1, 2})


@variants
class ReturnedReplicaWaitsForReadmission(Trods):
    """After death and return new flows go elsewhere until the readmission; second chances reach it before that."""

    @in_time
    def check(self) -> None:
        service = self.trods(bound=BOUND)
        pool = service.pool
        self.excluded(pool, 0)
        frame = self.plain(service)
        self.send(CLIENT, frame)
        self.expect_plain(service, frame, replicas=[1])
        self.keep_beating(pool, [0], 0.05)
        self.wait_for_return(pool, 0)
        self.send(CLIENT, frame)
        self.expect_plain(service, frame, replicas=[1])
        self.hand_on(service, by=1, holder=None, to=0)
        self.admit(pool, 0, readmitted=1, modify=True)
        self.wait_for_return(pool, 0)
        self.send(CLIENT, frame)
        self.expect_plain(service, frame, replicas=[0])


@variants
class ExcludedMembersCannotSend(Trods):
    """Segments that an excluded replica sends as the service are dropped; its other frames pass."""

    @in_time
    def check(self) -> None:
        service = self.trods(bound=BOUND)
        pool = service.pool
        self.guard(service)
        for replica, port in enumerate(pool.ports):
            self.beat(pool, replica)
            for flags in (ACK, SYN | ACK, packets.FIN | ACK, packets.RST):
                self.reaches_the_client(port, self.answer(service, port, flags=flags))
        dead, live = pool.ports[0], pool.ports[1]
        self.excluded(pool, 0)
        for flags in (ACK, SYN | ACK, packets.FIN | ACK, packets.RST):
            with self.drops("SOURCE_EXCLUDED"):
                self.send(dead, self.answer(service, dead, flags=flags))
        with self.drops("SOURCE_EXCLUDED"):
            self.send(dead, self.answer(service, dead, options=bytes.fromhex("0101080a0000000100000002")))
        # Bridged frames too.
        self.insert(
            "bridges",
            {"vlan": self.rack_vlan() or 0, "mac": int.from_bytes(host_mac(live), "big")},
            "bridge_to",
            port=live,
        )
        with self.drops("SOURCE_EXCLUDED"):
            self.send(dead, host_mac(live) + self.answer(service, dead)[6:])
        other = pool.ports[2]
        self.send(other, host_mac(live) + self.answer(service, other)[6:])
        port, _ = self.receive()
        self.assertEqual(port, live)
        self.reaches_the_client(live, self.answer(service, live))
        # Another port of the address, another Ethernet source, a Rivulet response.
        self.reaches_the_client(dead, self.answer(service, dead, sport=8080))
        frame = self.answer(service, dead)
        self.reaches_the_client(dead, frame[:6] + host_mac(4) + frame[12:])
        self.reaches_the_client(dead, self.answer(service, dead, options=Request(class_=0x80).option()))
        # After the return they pass again.
        self.keep_beating(pool, [0], 0.05)
        self.wait_for_return(pool, 0)
        self.reaches_the_client(dead, self.answer(service, dead))


@variants
class UnguardedSegmentsPass(Trods):
    """At an unguarded port, or for a service of the kernel's TCP, an excluded replica's segments pass."""

    @in_time
    def check(self) -> None:
        service = self.trods(bound=BOUND)
        kernel = self.add_service(service.pool, plain=KERNEL)
        self.guard(service, ports=(2, 3))
        self.insert("ports", {"ingress_port": 1}, "set_port", pvid=0, guarded=0)
        self.excluded(service.pool, 0)
        self.reaches_the_client(1, self.answer(service, 1))
        self.modify("ports", {"ingress_port": 1}, "set_port", pvid=0, guarded=1)
        with self.drops("SOURCE_EXCLUDED"):
            self.send(1, self.answer(service, 1))
        self.reaches_the_client(1, self.answer(kernel, 1))


@variants
class SegmentsGoToNamedHolder(Trods):
    """A member names the holder of a connection, and the holder gets the segment, whatever the slot's candidates."""

    @in_time
    def check(self) -> None:
        service = self.trods(ports=(1, 2, 3, 4), bound=BOUND)
        pool = service.pool
        stop = self.keep_beating(pool, [0, 1, 2, 3], 0.05)
        for by, holder in ((0, 3), (0, 2), (1, 3), (3, 0)):
            self.hand_on(service, by, holder, to=holder)
        # The sender itself or no member: as without a name, the first candidate that is not the sender.
        for holder in (0, 4, 63):
            self.hand_on(service, 0, holder, to=1)
        self.hand_on(service, 1, 1, to=0)
        self.hand_on(service, 0, None, to=1)
        # An index above 63 is not a holder's name.
        self.hand_on(service, 0, 64 + 3, to=1)
        # Not from clients, not for SYNs, not for Rivulet requests.
        named = HOLDER_MAC[:5] + bytes([3])
        frame = named + host_mac(CLIENT) + self.plain(service)[12:]
        with self.counts("service_outcomes", self.outcome(service, "HANDED_ON"), 0):
            self.send(CLIENT, frame)
            self.expect_plain(service, frame, replicas=[0])
            frame = named + host_mac(2) + self.plain(service, flags=SYN)[12:]
            self.send(2, frame)
            self.expect_plain(service, frame, replicas=[0])
            frame = named + host_mac(2) + self.to_service(service, Request(name="SYN"))[12:]
            self.send(2, frame)
            self.expect_request(service, frame, flags=packets.TIME_VALID, replicas=[0])
        # After the holder's death: as without a name.
        stop.set()
        self.excluded(pool, 3)
        self.hand_on(service, 0, 3, to=1)
        self.hand_on(service, 1, 3, to=0)


@variants
class HolderNamesNeedTrods(Trods):
    """A service of the kernel's TCP has second chances, but no named holders."""

    def check(self) -> None:
        service = self.trods(plain=KERNEL)
        self.hand_on(service, 0, 2, to=1)


@variants
class ReturnedHolderGetsItsSegments(Trods):
    """A holder that has returned and is not readmitted gets the segments that name it."""

    @in_time
    def check(self) -> None:
        service = self.trods(bound=BOUND)
        self.excluded(service.pool, 2)
        self.hand_on(service, 0, 2, to=1)
        self.keep_beating(service.pool, [2], 0.05)
        self.wait_for_return(service.pool, 2)
        self.hand_on(service, 0, 2, to=2)
