# SPDX-License-Identifier: Apache-2.0
"""Plain TCP of a draining replica: a segment without a socket at the new first candidate goes to the second, once."""

import time

import packets
from layout import CLIENT, TOR_MAC, Service, host_mac
from packets import ACK, SYN, Request
from rack import RackTest, in_time, variants


class Handing(RackTest):
    """Helpers: a draining replica, and a replica that sends a segment back."""

    def drained(self, ports=(1, 2, 3), **fields) -> Service:
        """Installs a service where replica 0 drains: replica 1 is first in every slot, replica 0 second."""
        pool = self.add_pool(ports, **fields)
        for replica, port in enumerate(pool.ports):
            self.second_chance(pool, replica, port)
        return self.add_service(pool, slots=[(1, 0)] * 8)

    def second_chance(self, pool, replica: int, port: int) -> None:
        key = {"pool": pool.id, "ingress_port": port, "mac": int.from_bytes(host_mac(port), "big")}
        self.insert("second_chances", key, "handed_on_by", replica=replica)

    def hand_on(self, service: Service, frame: bytes, by: int, to: int) -> bytes:
        """Replica `by` sends `frame` back; it must reach replica `to` with its source unchanged."""
        ports = service.pool.ports
        back = TOR_MAC + host_mac(ports[by]) + frame[12:]
        with self.counts("service_outcomes", self.outcome(service, "HANDED_ON")):
            self.send(ports[by], back)
            port, got = self.receive()
        self.assertEqual(port, ports[to], f"handed on to port {port}")
        wanted = packets.forwarded(back, dst=host_mac(port), src=host_mac(ports[by]), vlan=self.rack_vlan())
        self.same(wanted, got)
        return got


@variants
class SegmentWithoutASocket(Handing):
    """A client's segment goes to the first candidate, from there to the second, marked as handed on."""

    def check(self) -> None:
        service = self.drained()
        for sport in range(20000, 20008):
            frame = self.plain(service, sport, flags=ACK, payload=b"data of an old connection")
            self.send(CLIENT, frame)
            port, got = self.receive()
            self.assertEqual((port, got[6:12]), (service.pool.ports[1], TOR_MAC))
            self.hand_on(service, got, by=1, to=0)


@variants
class SegmentsWithoutSecondChance(Handing):
    """SYNs, Rivulet requests and segments from other sources are handled like a client's."""

    def check(self) -> None:
        service = self.drained()
        first, second, _ = service.pool.ports
        with self.counts("service_outcomes", self.outcome(service, "HANDED_ON"), 0):
            frame = self.plain(service, flags=SYN)
            self.send(first, TOR_MAC + host_mac(first) + frame[12:])
            self.expect_plain(service, frame, replicas=[1])
            # The right port with another address, another port with the right address, a replica of another pool.
            other = self.add_pool([4])
            self.second_chance(other, 0, 4)
            frame = self.plain(service, flags=ACK)
            for port, source in ((first, second), (CLIENT, second), (4, 4)):
                self.send(port, TOR_MAC + host_mac(source) + frame[12:])
                self.expect_plain(service, frame, replicas=[1])
            request = self.to_service(service, self.good_request(service))
            self.send(second, TOR_MAC + host_mac(second) + request[12:])
            self.expect_request(service, request, replicas=[1])
            syn = self.to_service(service, Request(name="SYN"))
            self.send(second, TOR_MAC + host_mac(second) + syn[12:])
            self.expect_request(service, syn, flags=packets.TIME_VALID, replicas=[1])


@variants
class SecondIsDead(Handing):
    """If the second candidate is dead, another replica gets the segment; if none is left, the sender does."""

    @in_time
    def check(self) -> None:
        bound = 1_000_000
        service = self.drained(bound=bound)
        stops = {r: self.keep_beating(service.pool, [r], 0.05) for r in (1, 2)}
        time.sleep(bound / 1e6 + 0.3)
        frame = self.plain(service, flags=ACK)
        self.hand_on(service, frame, by=1, to=2)
        stops[2].set()
        time.sleep(bound / 1e6 + 0.3)
        self.hand_on(service, frame, by=1, to=1)
        # Returned but not readmitted: it gets no new flows, but segments of its old connections.
        self.keep_beating(service.pool, [0], 0.05)
        self.wait_for_return(service.pool, 0)
        self.send(CLIENT, frame)
        self.expect_plain(service, frame, replicas=[1])
        self.hand_on(service, frame, by=1, to=0)
