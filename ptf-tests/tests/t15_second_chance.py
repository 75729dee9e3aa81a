# SPDX-License-Identifier: Apache-2.0
"""Plain TCP of a drained replica: a segment that the new first has no socket for reaches the second, once."""

import time

import packets
from layout import CLIENT, TOR_MAC, Service, host_mac
from packets import ACK, SYN, Request
from rack import RackTest, in_time, variants


class Handing(RackTest):
    """Helpers: a drained pool, and a replica that sends a segment back."""

    def drained(self, ports=(1, 2, 3), **fields) -> Service:
        """Replica 0 drains: replica 1 is first in every slot, replica 0 second."""
        pool = self.add_pool(ports, **fields)
        for replica, port in enumerate(pool.ports):
            self.second_chance(pool, replica, port)
        return self.add_service(pool, slots=[(1, 0)] * 8)

    def second_chance(self, pool, replica: int, port: int) -> None:
        key = {"pool": pool.id, "ingress_port": port, "mac": int.from_bytes(host_mac(port), "big")}
        self.insert("second_chances", key, "handed_on_by", replica=replica)

    def hand_on(self, service: Service, frame: bytes, by: int, to: int) -> bytes:
        """Sends `frame`, as replica `by` got it, back; it must reach replica `to` with the source left as it is."""
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
    """From the client to the new first, from there to the second, with the mark that it was handed on."""

    def check(self) -> None:
        service = self.drained()
        for sport in range(20000, 20008):
            frame = self.plain(service, sport, flags=ACK, payload=b"data of an old connection")
            self.send(CLIENT, frame)
            port, got = self.receive()
            self.assertEqual((port, got[6:12]), (service.pool.ports[1], TOR_MAC))
            self.hand_on(service, got, by=1, to=0)


@variants
class WhatIsNotHandedOn(Handing):
    """A SYN, a request of ours, a segment from elsewhere: as from any client."""

    def check(self) -> None:
        service = self.drained()
        first, second, _ = service.pool.ports
        with self.counts("service_outcomes", self.outcome(service, "HANDED_ON"), 0):
            frame = self.plain(service, flags=SYN)
            self.send(first, TOR_MAC + host_mac(first) + frame[12:])
            self.expect_plain(service, frame, replicas=[1])
            # The right port with another address, another port with the right one, another pool's replica.
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
    """The second is silent: another gets the segment, and refuses it. Nobody else there: the sender itself does."""

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
        # Returned, but not readmitted: no new flows, but what it still has is its own.
        self.keep_beating(service.pool, [0], 0.05)
        self.returned(service.pool, 0)
        self.send(CLIENT, frame)
        self.expect_plain(service, frame, replicas=[1])
        self.hand_on(service, frame, by=1, to=0)
