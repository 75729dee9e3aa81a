# SPDX-License-Identifier: Apache-2.0
"""Requests through the switch to a replica, and responses back."""

import packets
from rack import CLIENT, TOR_MAC, RackTest, host_mac, variants
from packets import CHECKED, TIME_VALID, Request, ip_packet


@variants
class RequestReachesAReplica(RackTest):
    """A good request with one range goes to one of the pool, stamped and marked, its checksum repaired."""

    def check(self) -> None:
        service = self.add_service()
        with self.counts("service_outcomes", self.outcome(service, "CHECKED"), 5):
            for _ in range(5):
                frame = self.to_service(service, self.good_request(service))
                self.send(CLIENT, frame)
                replica = self.expect_request(service, frame, flags=CHECKED | TIME_VALID)
        self.assertGreaterEqual(self.switch.counter("replica_packets", service.pool.member(replica)), 1)


@variants
class ResponseReachesTheClient(RackTest):
    """A response of a replica is routed to the client, untouched but for MACs, hop limit and VLAN."""

    def check(self) -> None:
        service = self.add_service()
        segment = packets.tcp(
            service.address,
            self.client,
            80,
            40000,
            options=Request(class_=0x80).option(),
            payload=bytes(range(200)),
        )
        payload = ip_packet(service.address, self.client, packets.TCP, segment)
        ether_type = 0x0800 if self.family == 4 else 0x86DD
        sent = packets.ethernet(TOR_MAC, host_mac(1), ether_type, payload, self.rack_vlan())
        self.send(1, sent)
        self.expect(CLIENT, packets.forwarded(sent, dst=host_mac(CLIENT), src=TOR_MAC))
