# SPDX-License-Identifier: Apache-2.0
"""Packets for the ToR or the controller are metered by port and class, so that no class starves another."""

import struct

import packets
import traffic
from layout import CLIENT, CLIENTS, PATIENCE_S, TOR, TOR_MAC, host_mac
from rack import RackTest

CLASSES = ("PUNT", "NEIGHBOUR", "ARP", "SOLICITATION", "ECHO", "OWN_ICMP", "OWN_UDP", "OWN_OTHER")


class OwnMeters(RackTest):
    """A flood of one class is limited by its meter and counted under its reason; other classes pass."""

    def frames(self, port: int) -> dict[str, bytes]:
        """One frame of each class, as it would arrive at a port."""
        mac = host_mac(port)
        v4, v6, tor4, tor6 = CLIENTS[4], CLIENTS[6], TOR[4], TOR[6]

        def arp(operation: int, dst: bytes) -> bytes:
            body = struct.pack("!HHBBH", 1, 0x0800, 6, 4, operation) + mac + v4.packed + TOR_MAC + tor4.packed
            return packets.ethernet(dst, mac, 0x0806, body)

        def to_tor4(protocol: int, payload: bytes) -> bytes:
            return packets.ethernet(TOR_MAC, mac, 0x0800, packets.ip_packet(v4, tor4, protocol, payload))

        def to_tor6(message: bytes) -> bytes:
            packet = packets.ip_packet(v6, tor6, packets.ICMPV6, message, ttl=255)
            return packets.ethernet(TOR_MAC, mac, 0x86DD, packet)

        quote = packets.ipv4(tor4, v4, packets.UDP, packets.udp(tor4, v4, 1, 6080, b"x" * 8))
        return {
            "PUNT": packets.ethernet(TOR_MAC, mac, 0x88CC, b"x" * 46),
            "NEIGHBOUR": arp(2, TOR_MAC),
            "ARP": arp(1, b"\xff" * 6),
            "SOLICITATION": to_tor6(packets.icmp(v6, tor6, 135, 0, bytes(4), tor6.packed)),
            "ECHO": to_tor4(packets.ICMP, packets.icmp(v4, tor4, 8, 0, bytes(4), b"ping")),
            "OWN_ICMP": to_tor4(packets.ICMP, packets.icmp(v4, tor4, 3, 4, struct.pack("!HH", 0, 1400), quote)),
            "OWN_UDP": to_tor4(packets.UDP, packets.udp(v4, tor4, 1000, 1001, b"flood")),
            "OWN_OTHER": to_tor4(packets.TCP, packets.tcp(v4, tor4, 1000, 179)),
        }

    def runTest(self) -> None:
        kinds = self.switch.info.enum("own_class_t")
        self.assertEqual(set(kinds), set(CLASSES))
        reasons = self.switch.info.enum("punt_reason_t")
        self.insert("punts", {"ether_type": 0x88CC}, "punt", reason=reasons["ETHER_TYPE"])
        frames = self.frames(CLIENT)
        for flooded in CLASSES:
            cell = CLIENT * 8 + kinds[flooded]
            self.switch.set_meter("own_meter", cell, 1, burst=2)
            try:
                with self.subTest(flooded):
                    self.flood(flooded, frames[flooded])
                    for other in CLASSES:
                        if other != flooded:
                            self.comes(other, CLIENT, frames[other])
                    # Another port has its own meters.
                    self.comes(flooded, 8, self.frames(8)[flooded])
            finally:
                self.switch.set_meter("own_meter", cell, None)

    def flood(self, kind: str, frame: bytes, count: int = 12) -> None:
        reason = f"METER_{kind}"
        index = self.reasons[reason]
        before = self.switch.counter("drops", index)
        for _ in range(count):
            self.send(CLIENT, frame)
        passed = 0
        while self.take(kind, 0.3):
            passed += 1
        dropped = self.switch.counter("drops", index) - before
        traffic.SEEN_REASONS.add(reason)
        self.assertIn(passed, range(1, 6), f"a meter of 1 a second, burst 2, let {passed} of {count} through")
        self.assertEqual(passed + dropped, count, f"{kind}: {passed} passed and {dropped} were dropped")

    def take(self, kind: str, wait: float) -> bool:
        """Removes one frame that passed, an answer or a packet to the controller; False if none arrives in time."""
        if kind in ("ARP", "SOLICITATION", "ECHO"):
            return isinstance(self.dataplane.poll(0, timeout=wait), self.dataplane.PollSuccess)
        return self.switch.packet_in(wait) is not None

    def comes(self, kind: str, port: int, frame: bytes) -> None:
        self.send(port, frame)
        self.assertTrue(self.take(kind, PATIENCE_S), f"{kind} at port {port} did not pass")
