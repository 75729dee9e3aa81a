# SPDX-License-Identifier: Apache-2.0
"""Packets that are not for a service: bridging, routing, VLANs, packets of the controller."""

import struct
import time

import packets
from layout import CLIENT, CLIENTS, PATIENCE_S, TOR, TOR_MAC, host_mac
from packets import Request, ip, number
from rack import RackTest, variants

FLOOD_GROUPS = 2000  # above the group numbers of pools


def integer(mac: bytes) -> int:
    return int.from_bytes(mac, "big")


@variants
class Bridging(RackTest):
    """Known unicast, unknown unicast and broadcast stay in their VLAN and do not return to their port."""

    def check(self) -> None:
        group = FLOOD_GROUPS + self.new_id()
        vlan = self.vlan or 0
        self.switch.insert_group(group, [(5, 1), (7, 1), (8, 1)])
        self.groups.append(group)
        self.insert("bridges", {"vlan": vlan, "mac": integer(host_mac(8))}, "bridge_to", port=8)
        ether_type = 0x0800 if self.family == 4 else 0x86DD
        there = ip("10.1.1.1") if self.family == 4 else ip("2001:db8:9::1")
        packet = packets.ip_packet(self.client, there, 99, b"x" * 40)

        known = packets.ethernet(host_mac(8), host_mac(CLIENT), ether_type, packet, self.vlan)
        self.send(CLIENT, known)
        self.expect(8, known)
        with self.drops("SAME_PORT"):
            self.send(8, packets.ethernet(host_mac(8), host_mac(7), ether_type, packet, self.vlan))
        for dst in (b"\x02\x00\x00\x00\x77\x77", b"\xff" * 6, b"\x01\x00\x5e\x01\x02\x03"):
            frame = packets.ethernet(dst, host_mac(CLIENT), ether_type, packet, self.vlan)
            with self.drops("NO_BRIDGE"):
                self.send(CLIENT, frame)
        self.insert("floods", {"vlan": vlan}, "flood", group=group)
        for dst in (b"\x02\x00\x00\x00\x77\x77", b"\xff" * 6, b"\x01\x00\x5e\x01\x02\x03"):
            frame = packets.ethernet(dst, host_mac(CLIENT), ether_type, packet, self.vlan)
            self.send(CLIENT, frame)
            got = dict(self.receive() for _ in range(2))
            self.assertEqual(got, {7: frame, 8: frame}, "a flooded frame goes to all ports of its VLAN but its own")
            self.quiet(0.05)


class VlanTranslation(RackTest):
    """Untagged frames at an access port are in its VLAN; `port_vlans` removes the tag where they leave untagged."""

    def runTest(self) -> None:
        self.insert("ports", {"ingress_port": 7}, "set_port", pvid=300, guarded=0)
        self.insert("bridges", {"vlan": 300, "mac": integer(host_mac(8))}, "bridge_to", port=8)
        self.insert("bridges", {"vlan": 300, "mac": integer(host_mac(7))}, "bridge_to", port=7)
        self.insert("port_vlans", {"egress_port": 7, "vlan": 300}, "send_untagged")
        body = b"q" * 60

        def frame(dst: int, src: int, vlan: int | None) -> bytes:
            return packets.ethernet(host_mac(dst), host_mac(src), 0x9000, body, vlan)

        self.send(7, frame(8, 7, None))
        self.expect(8, frame(8, 7, 300))
        self.send(8, frame(7, 8, 300))
        self.expect(7, frame(7, 8, None))
        # A priority tag has no VLAN id: the frame gets the port's VLAN and keeps its priority.
        tagged = bytearray(frame(8, 7, 0))
        tagged[14] = 0xA0
        self.send(7, bytes(tagged))
        wanted = bytearray(frame(8, 7, 300))
        wanted[14] |= 0xA0
        self.expect(8, bytes(wanted))


class VlanFilter(RackTest):
    """A filtered port accepts its own VLAN and those that it carries tagged, and drops and counts others."""

    def runTest(self) -> None:
        self.insert("ports", {"ingress_port": 7}, "set_filtered_port", pvid=300, guarded=0)
        self.insert("vlan_members", {"ingress_port": 7, "vlan": 301}, "member")
        for vlan in (300, 301, 302):
            self.insert("bridges", {"vlan": vlan, "mac": integer(host_mac(8))}, "bridge_to", port=8)
            self.insert("bridges", {"vlan": vlan, "mac": integer(host_mac(5))}, "bridge_to", port=5)

        def frame(dst: int, src: int, vlan: int | None) -> bytes:
            return packets.ethernet(host_mac(dst), host_mac(src), 0x9000, b"q" * 60, vlan)

        # Untagged, with a priority tag, and tagged.
        for sent, out in ((None, 300), (0, 300), (300, 300), (301, 301)):
            self.send(7, frame(8, 7, sent))
            self.expect(8, frame(8, 7, out))
        with self.drops("VLAN_REFUSED"):
            self.send(7, frame(8, 7, 302))
        # A filtered frame is not sent to the controller either.
        self.insert("punts", {"ether_type": 0x88CC}, "punt", reason=1)
        with self.drops("VLAN_REFUSED"):
            self.send(7, packets.ethernet(b"\x01\x80\xc2\x00\x00\x0e", host_mac(7), 0x88CC, b"x" * 46, 302))
        # Without a filter nothing changes.
        self.send(8, frame(5, 8, 302))
        self.expect(5, frame(5, 8, 302))


@variants
class Routing(RackTest):
    """Longest prefix, hop limit and MACs; no frame to the ToR's MAC is bridged."""

    def check(self) -> None:
        wide, narrow = ("10.200.0.0", "10.200.7.0") if self.family == 4 else ("2001:db8:a::", "2001:db8:a:7::")
        lengths = (96 + 16, 96 + 24) if self.family == 4 else (48, 64)
        self.insert("routes", {"destination": (number(ip(wide)), lengths[0])}, "route_to", next_hop=7)
        self.insert("routes", {"destination": (number(ip(narrow)), lengths[1])}, "route_to", next_hop=108)
        for host, port, vlan in (("1", 7, None), ("7", 8, 100)):
            dst = ip(f"10.200.{host}.9") if self.family == 4 else ip(f"2001:db8:a:{host}::9")
            frame = self.ip_frame(dst, packets.UDP, packets.udp(self.client, dst, 1, 2, b"hello"))
            self.send(CLIENT, frame)
            self.expect(port, packets.forwarded(frame, dst=host_mac(port), src=TOR_MAC, vlan=vlan))
            for ttl in (0, 1):
                with self.drops("TTL_EXPIRED"):
                    self.send(
                        CLIENT, self.ip_frame(dst, packets.UDP, packets.udp(self.client, dst, 1, 2, b""), ttl=ttl)
                    )
        nowhere = ip("172.31.0.1") if self.family == 4 else ip("2001:db8:ffff::1")
        with self.drops("NO_ROUTE"):
            self.send(CLIENT, self.ip_frame(nowhere, 99, b"hello"))
        self.insert("routes", {"destination": (number(nowhere), 128)}, "route_to", next_hop=999)
        with self.drops("NO_NEXT_HOP"):
            self.send(CLIENT, self.ip_frame(nowhere, 99, b"hello"))
        with self.drops("OWN_ADDRESS"):
            self.send(CLIENT, packets.ethernet(TOR_MAC, host_mac(CLIENT), 0x9000, b"x" * 46, self.vlan))


@variants
class RoutedFragmentsAndExtensions(RackTest):
    """Fragments and extension headers are routed unless they are for a service."""

    def check(self) -> None:
        dst = CLIENTS[self.family]
        if self.family == 4:
            frames = [
                self.ip_frame(dst, packets.TCP, b"x" * 40, flags=flags, fragment=f) for flags, f in ((1, 0), (0, 9))
            ]
            frames.append(self.ip_frame(dst, 47, b"x" * 40, options=b"\x01" * 40))
        else:
            frames = [self.ip_frame(dst, header, bytes([59, 0]) + b"x" * 38) for header in (0, 43, 44, 51, 60)]
        for frame in frames:
            sent = TOR_MAC + host_mac(7) + frame[12:]
            self.send(7, sent)
            self.expect(CLIENT, packets.forwarded(sent, dst=host_mac(CLIENT), src=TOR_MAC))


@variants
class TransitRivulet(RackTest):
    """A Rivulet request or response to a service elsewhere passes unchanged."""

    def check(self) -> None:
        service = self.add_service()
        request = self.good_request(service, tor_block=b"\x01" * 18)
        other = CLIENTS[self.family]
        src = ip("10.9.9.9") if self.family == 4 else ip("2001:db8:9::9")
        segment = request.segment(src, other, 40000, 80)
        sent = self.ip_frame(other, packets.TCP, segment, src=src)
        self.send(CLIENT, sent)
        self.expect(CLIENT, packets.forwarded(sent, dst=host_mac(CLIENT), src=TOR_MAC))


class PacketOutAndIn(RackTest):
    """The controller sends arbitrary frames, and receives frames that it requests or that are for the ToR."""

    def runTest(self) -> None:
        frame = bytes(range(14)) + b"from the controller, any bytes whatever" + bytes(20)
        for port in (1, 8):
            self.switch.packet_out(frame, egress_port=port)
            self.expect(port, frame)
        # Also a malformed one: the switch does not parse it.
        self.switch.packet_out(b"\x01\x02\x03" + bytes(57), egress_port=2)
        self.expect(2, b"\x01\x02\x03" + bytes(57))

        reasons = self.switch.info.enum("punt_reason_t")
        lldp = packets.ethernet(mac := b"\x01\x80\xc2\x00\x00\x0e", host_mac(3), 0x88CC, b"lldp" * 12, 77)
        self.insert("punts", {"ether_type": 0x8100}, "punt", reason=reasons["ETHER_TYPE"])
        untagged = packets.ethernet(mac, host_mac(3), 0x88CC, b"lldp" * 12)
        self.insert("punts", {"ether_type": 0x88CC}, "punt", reason=reasons["ETHER_TYPE"])
        self.sent_to_controller(3, untagged, vlan=0, reason=reasons["ETHER_TYPE"])
        self.sent_to_controller(3, lldp, vlan=77, reason=reasons["ETHER_TYPE"])

    def sent_to_controller(self, port: int, frame: bytes, vlan: int, reason: int) -> None:
        self.send(port, frame)
        got = self.switch.packet_in(3.0)
        self.assertIsNotNone(got, "no packet-in arrived")
        self.assertEqual(got[0], frame)
        self.assertEqual(got[1], {"ingress_port": port, "vlan": vlan, "reason": reason})
        self.quiet(0.02)


@variants
class PacketsForTheTor(RackTest):
    """Packets for the ToR that it does not answer go to the controller: TCP, ARP replies, advertisements."""

    def check(self) -> None:
        reasons = self.switch.info.enum("punt_reason_t")
        tor = TOR[self.family]
        frames = [(self.ip_frame(tor, packets.TCP, packets.tcp(self.client, tor, 1000, 179)), "OWN_ADDRESS")]
        if self.family == 4:
            body = (
                struct.pack("!HHBBH", 1, 0x0800, 6, 4, 2) + host_mac(CLIENT) + self.client.packed + TOR_MAC + tor.packed
            )
            frames.append((packets.ethernet(TOR_MAC, host_mac(CLIENT), 0x0806, body, self.vlan), "NEIGHBOUR"))
        else:
            body = self.client.packed + b"\x02\x01" + host_mac(CLIENT)
            message = packets.icmp(self.client, tor, 136, 0, bytes(4), body)
            frames.append((self.ip_frame(tor, packets.ICMPV6, message, ttl=255), "OWN_ADDRESS"))
        for frame, reason in frames:
            self.send(CLIENT, frame)
            got = self.switch.packet_in(3.0)
            self.assertIsNotNone(got, f"no packet-in for {reason} arrived")
            self.assertEqual(got[0], frame)
            self.assertEqual(got[1], {"ingress_port": CLIENT, "vlan": self.vlan or 0, "reason": reasons[reason]})


@variants
class FatesAndEgressDrops(RackTest):
    """Every packet counts under one fate, and drops in egress under a reason."""

    def fate(self, name: str) -> int:
        return self.switch.info.enum("fate_t")[name]

    def check(self) -> None:
        service = self.add_service()
        with self.counts("fates", self.fate("SERVICE")):
            self.passes(service, self.good_request(service))
        with self.counts("fates", self.fate("DROPPED")), self.drops("RESPONSE_CLASS"):
            self.send(CLIENT, self.to_service(service, Request(class_=0x80)))
        with self.counts("fates", self.fate("HEARTBEAT")):
            self.beat(service.pool, 0)
            time.sleep(0.1)
        routed = self.ip_frame(CLIENTS[self.family], 99, b"hello")
        with self.counts("fates", self.fate("ROUTED")):
            self.send(7, TOR_MAC + host_mac(7) + routed[12:])
            self.receive()
        tor = TOR[self.family]
        with self.counts("fates", self.fate("PUNTED")):
            self.send(CLIENT, self.ip_frame(tor, packets.TCP, packets.tcp(self.client, tor, 1, 179)))
            self.assertIsNotNone(self.switch.packet_in(5.0))
        kind, protocol = (8, 1) if self.family == 4 else (128, 58)
        echo = packets.icmp(self.client, service.address, kind, 0, bytes(4))
        with self.counts("fates", self.fate("ANSWERED")):
            self.send(CLIENT, self.ip_frame(service.address, protocol, echo))
            self.receive()

        # A next hop without a neighbour, a replica without an encapsulation.
        hop = 700 + self.new_id()
        self.insert("next_hops", {"next_hop": hop}, "set_next_hop", port=7, mtu=1500)
        dst = ip("10.202.0.1") if self.family == 4 else ip("2001:db8:ccc::1")
        self.insert("routes", {"destination": (number(dst), 128)}, "route_to", next_hop=hop)
        with self.drops("NO_NEIGHBOUR", counter="egress_drops"):
            self.send(CLIENT, self.ip_frame(dst, 99, b"hello"))
        pool = self.add_pool([1], members=3)
        key = {"pool": pool.id, "replica": 1}
        self.insert("replicas", key, "rack", next_hop=2)
        pool.ports.append(2)
        self.admit(pool, 1)
        self.beat(pool, 1)
        half = self.add_service(pool, slots=[(1, 0)])
        with self.drops("NO_ENCAPSULATION", counter="egress_drops"):
            self.send(CLIENT, self.plain(half))


class FloodFates(RackTest):
    """Bridged and flooded frames; egress drops the copy for the ingress port."""

    def runTest(self) -> None:
        fates = self.switch.info.enum("fate_t")
        group = FLOOD_GROUPS + self.new_id()
        self.switch.insert_group(group, [(7, 1), (8, 1)])
        self.groups.append(group)
        self.insert("floods", {"vlan": 321}, "flood", group=group)
        self.insert("bridges", {"vlan": 321, "mac": integer(host_mac(8))}, "bridge_to", port=8)
        frame = packets.ethernet(b"\xff" * 6, host_mac(7), 0x9000, b"x" * 46, 321)
        with self.counts("fates", fates["FLOODED"]), self.counts("egress_drops", self.reasons["COPY_SOURCE"]):
            self.send(7, frame)
            self.expect(8, frame)
            time.sleep(0.1)
        import traffic

        traffic.SEEN_REASONS.add("COPY_SOURCE")
        frame = packets.ethernet(host_mac(8), host_mac(7), 0x9000, b"x" * 46, 321)
        with self.counts("fates", fates["BRIDGED"]):
            self.send(7, frame)
            self.expect(8, frame)


class UnknownSources(RackTest):
    """A frame from a source unknown to the bridge raises an event with MAC, port and VLAN; a known one does not."""

    def runTest(self) -> None:
        mac = b"\x02\x00\x00\x00\x99\x99"
        frame = packets.ethernet(b"\xff" * 6, mac, 0x9000, b"x" * 46, 123)
        self.send(7, frame)
        kind = self.event_kinds["UNKNOWN_SOURCE"]
        found = [e for e in self.switch.events(PATIENCE_S) if e["kind"] == kind]
        self.assertEqual(len(found), 1, "expected one event")
        event = found[0]
        self.assertEqual((event["mac"], event["port"], event["vlan"]), (integer(mac), 7, 123))
        self.insert("known_sources", {"vlan": 123, "mac": integer(mac), "ingress_port": 7}, "source_known")
        time.sleep(0.05)
        self.switch.drop_events()
        self.send(7, frame)
        self.assertEqual(self.switch.events(0.4), [])
        self.send(8, frame)  # the source has moved
        (event,) = self.switch.events(PATIENCE_S)
        self.assertEqual((event["kind"], event["mac"], event["port"]), (kind, integer(mac), 8))
