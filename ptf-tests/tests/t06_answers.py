# SPDX-License-Identifier: Apache-2.0
"""Packets that the ToR answers: ARP requests, neighbour solicitations, echo requests."""

import struct

import packets
from layout import CLIENT, CLIENTS, PATIENCE_S, TOR, TOR_MAC, host_mac
from packets import ip
from rack import RackTest, variants


def arp(operation: int, sender_mac: bytes, sender, target_mac: bytes, target, hardware: int = 1) -> bytes:
    head = struct.pack("!HHBBH", hardware, 0x0800, 6, 4, operation)
    return head + sender_mac + sender.packed + target_mac + target.packed


class Arp(RackTest):
    """ARP requests and probes for the ToR's and for service addresses are answered, others are not."""

    def runTest(self) -> None:
        service = self.add_service()
        for vlan in (None, 200):
            for target in (TOR[4], service.address):
                for sender in (CLIENTS[4], ip("0.0.0.0")):  # the second is a probe (RFC 5227)
                    for dst in (b"\xff" * 6, TOR_MAC):
                        request = arp(1, host_mac(CLIENT), sender, bytes(6), target)
                        self.send(CLIENT, packets.ethernet(dst, host_mac(CLIENT), 0x0806, request, vlan))
                        reply = arp(2, TOR_MAC, target, host_mac(CLIENT), sender)
                        self.expect(CLIENT, packets.ethernet(host_mac(CLIENT), TOR_MAC, 0x0806, reply, vlan))
        request = arp(1, host_mac(CLIENT), CLIENTS[4], bytes(6), ip("10.99.99.99"))
        with self.drops("NO_BRIDGE"):
            self.send(CLIENT, packets.ethernet(b"\xff" * 6, host_mac(CLIENT), 0x0806, request))


class Solicitations(RackTest):
    """Neighbour solicitations with and without an option, and duplicate address detection."""

    family = 6

    def runTest(self) -> None:
        service = self.add_service()
        for vlan in (None, 200):
            self.vlan = vlan
            for target in (TOR[6], service.address):
                group = ip(f"ff02::1:ff{int(target) >> 16 & 0xFF:02x}:{int(target) & 0xFFFF:x}")
                mac = b"\x33\x33" + group.packed[-4:]
                option = b"\x01\x01" + host_mac(CLIENT)
                for dst, dst_mac in ((group, mac), (target, TOR_MAC)):
                    for body in (target.packed, target.packed + option):
                        self.ask(dst, dst_mac, CLIENTS[6], body)
                        self.answered(target, CLIENTS[6], host_mac(CLIENT), 0xE0000000)
                self.ask(group, mac, ip("::"), target.packed)
                self.answered(target, ip("ff02::1"), b"\x33\x33\0\0\0\x01", 0xA0000000)

    def ask(self, dst, dst_mac: bytes, src, body: bytes) -> None:
        message = packets.icmp(src, dst, 135, 0, bytes(4), body)
        packet = packets.ipv6(src, dst, packets.ICMPV6, message, hop_limit=255)
        self.send(CLIENT, packets.ethernet(dst_mac, host_mac(CLIENT), 0x86DD, packet, self.vlan))

    def answered(self, target, dst, dst_mac: bytes, flags: int) -> None:
        body = target.packed + b"\x02\x01" + TOR_MAC
        message = packets.icmp(target, dst, 136, 0, flags.to_bytes(4, "big"), body)
        packet = packets.ipv6(target, dst, packets.ICMPV6, message, hop_limit=255)
        self.expect(CLIENT, packets.ethernet(dst_mac, TOR_MAC, 0x86DD, packet, self.vlan))


@variants
class Echo(RackTest):
    """Echo requests to the ToR's and to service addresses, of any length; the checksum is repaired."""

    def check(self) -> None:
        service = self.add_service()
        request, reply = (8, 0) if self.family == 4 else (128, 129)
        protocol = packets.icmp_protocol(self.client)
        for address in (TOR[self.family], service.address):
            for length in (0, 1, 31, 56, 1000, 1452):
                rest, data = self.random.randbytes(4), self.random.randbytes(length)
                message = packets.icmp(self.client, address, request, 0, rest, data)
                self.send(CLIENT, self.ip_frame(address, protocol, message, ttl=3))
                message = packets.icmp(address, self.client, reply, 0, rest, data)
                fields = {"ttl": 64}
                packet = packets.ip_packet(address, self.client, protocol, message, **fields)
                ether_type = 0x0800 if self.family == 4 else 0x86DD
                self.expect(CLIENT, packets.ethernet(host_mac(CLIENT), TOR_MAC, ether_type, packet, self.vlan))


class EchoWithIpv4Options(RackTest):
    """The reply to an echo keeps the IPv4 options and has a right header checksum."""

    def runTest(self) -> None:
        service = self.add_service()
        message = packets.icmp(self.client, service.address, 8, 0, b"\1\2\3\4", b"hello")
        self.send(CLIENT, self.ip_frame(service.address, packets.ICMP, message, options=b"\x01" * 8))
        reply = packets.icmp(service.address, self.client, 0, 0, b"\1\2\3\4", b"hello")
        packet = packets.ipv4(service.address, self.client, packets.ICMP, reply, options=b"\x01" * 8)
        self.expect(CLIENT, packets.ethernet(host_mac(CLIENT), TOR_MAC, 0x0800, packet))


@variants
class EchoOfZeros(RackTest):
    """A reply of zeros has the checksum 0xffff, the one case that the formula of RFC 1624 gets wrong."""

    def check(self) -> None:
        service = self.add_service()
        kind, protocol = (8, 1) if self.family == 4 else (128, 58)
        for rest, data in ((bytes(4), b""), (bytes(4), bytes(64)), (b"\xff\xff\0\0", b""), (b"\0\0\xff\xff", bytes(8))):
            message = packets.icmp(self.client, service.address, kind, 0, rest, data)
            self.send(CLIENT, self.ip_frame(service.address, protocol, message))
            self.receive()  # verifies the checksum


@variants
class EchoDamagedOrFragmented(RackTest):
    """A wrong echo checksum stays wrong; fragmented echoes and other ICMP to a service are dropped."""

    def check(self) -> None:
        service = self.add_service()
        kind = 8 if self.family == 4 else 128
        protocol = packets.icmp_protocol(self.client)
        message = bytearray(packets.icmp(self.client, service.address, kind, 0, b"\1\2\3\4", b"hello"))
        message[2] ^= 0x40
        self.send(CLIENT, self.ip_frame(service.address, protocol, bytes(message)))
        result = self.dataplane.poll(0, timeout=PATIENCE_S)
        self.assertIsInstance(result, self.dataplane.PollSuccess)
        problems = packets.parse(bytes(result.packet)).problems
        self.assertEqual(len(problems), 1, f"expected a wrong checksum: {problems}")
        if self.family == 4:
            with self.drops("FRAGMENT"):
                self.send(CLIENT, self.ip_frame(service.address, protocol, bytes(message), flags=1))
        other = packets.icmp(self.client, service.address, 13 if self.family == 4 else 130, 0, bytes(4), bytes(20))
        with self.drops("ICMP_QUOTE"):
            self.send(CLIENT, self.ip_frame(service.address, protocol, other))
