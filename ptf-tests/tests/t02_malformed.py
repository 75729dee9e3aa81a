# SPDX-License-Identifier: Apache-2.0
"""Malformed packets: the switch drops each, counts it under its reason and sends nothing."""

import contextlib
import struct

import packets
from layout import CLIENT, NO_PLAIN, TOR_MAC, host_mac
from packets import ACK, FIN, RST, SYN, URG, Entry, Request
from program import CHECKS_AT_TOR, MARKED
from rack import RackTest, families, variants


@variants
class MalformedOptions(RackTest):
    """Rivulet's option with a wrong length, version, flag, class, position or data offset."""

    def check(self) -> None:
        service = self.add_service()
        good = self.good_request(service)
        for length in (0, 4, 7, 9, 12, 255):
            self.fails(service, good.with_(length=length), "OPTION_FORM")
        for version_flags in (0x00, 0x10, 0x30, 0xF0, 0x21, 0x22, 0x24, 0x28, 0x2E):
            self.fails(service, good.with_(version_flags=version_flags), "OPTION_VERSION")
            self.fails(service, Request(name="SYN", version_flags=version_flags), "OPTION_VERSION")
        for value in (0x07, 0x08, 0x40, 0x7F):
            self.fails(service, good.with_(class_=value), "CLASS_UNKNOWN")
            self.fails(service, Request(name="SYN", class_=value), "CLASS_UNKNOWN")


@variants
class OptionElsewhere(RackTest):
    """Rivulet's option after padding or timestamps, or before another option, is malformed except on a SYN."""

    def segment(self, service, options: bytes, flags: int = ACK) -> bytes:
        return self.plain(service, flags=flags, options=options, payload=bytes(100))

    def check(self) -> None:
        service = self.add_service()
        ours = Request().option()
        timestamps = bytes.fromhex("0101080a0000000100000002")
        places = [
            b"\x01" * 4 + ours,
            b"\x01" + ours + b"\0\0\0",
            b"\x01\x01" + ours + b"\0\0",
            b"\x01" * 3 + ours + b"\0",
        ]
        places += [timestamps + ours, ours + b"\x01\x01\x01\x00", ours + timestamps, timestamps + ours + b"\x01" * 8]
        for options in places:
            with self.drops("OPTION_FORM"):
                self.send(CLIENT, self.segment(service, options))
            # On a SYN it makes the segment plain TCP.
            frame = self.segment(service, options, flags=SYN)
            with self.counts("service_outcomes", self.outcome(service, "PLAIN_SYN")):
                self.send(CLIENT, frame)
                self.expect_plain(service, frame)
        # An option of another experiment is not Rivulet's.
        frame = self.segment(service, bytes.fromhex("fd08525700000000"))
        self.send(CLIENT, frame)
        self.expect_plain(service, frame)


@variants
class ClassAndFlags(RackTest):
    """TCP flags that the request's class does not allow."""

    def check(self) -> None:
        service = self.add_service()
        good = self.good_request(service)
        for flags in (0, RST, ACK | RST, ACK | URG, ACK | FIN):
            self.fails(service, good.with_(flags=flags), "CLASS_FLAGS")
        self.fails(service, good.with_(name="CLOSE", flags=ACK), "CLASS_FLAGS")
        self.fails(service, good.with_(class_=0), "CLASS_FLAGS")
        for flags in (SYN | ACK, SYN | FIN, SYN | RST, SYN | URG):
            self.fails(service, Request(name="SYN", flags=flags), "CLASS_FLAGS")
        for value in range(1, 7):
            self.fails(service, Request(name="SYN", class_=value), "CLASS_FLAGS")


@variants
class RequestsCutShort(RackTest):
    """A segment that ends at any byte before the last field that the switch reads."""

    def check(self) -> None:
        service = self.add_service()
        good = self.good_request(service, [(0, 1), (3, 3), (5, 5), (8, 9)])
        for cut in range(0, 44 + 32, 3):
            self.fails(service, good.with_(cut=cut), "REQUEST_LENGTH")
        fresh = self.good_request(service, [(0, 1), (3, 3), (5, 5), (8, 9)])
        self.passes(service, fresh.with_(cut=44 + 32))
        # Entries that the switch does not read must be there too.
        self.fails(service, good.with_(range_count=16, range_kinds=0xAAAAAAAA, cut=44 + 120), "REQUEST_LENGTH")
        for cut in (1, 18, 23):
            self.fails(service, Request(name="SYN", cut=cut), "REQUEST_LENGTH")


@variants
class NumbersAndCounts(RackTest):
    """Invalid low number in the option, count of entries, attempt and kinds."""

    def check(self) -> None:
        service = self.add_service()
        good = self.good_request(service)
        self.fails(service, good.with_(number_low=(good.number + 1) & 0xFFFF), "NUMBER_LOW")
        self.fails(service, Request(name="SYN", number_low=1), "NUMBER_LOW")
        for count in (17, 255):
            self.fails(service, good.with_(range_count=count, tail=bytes(2100)[:1300]), "ENTRY_COUNT")
        self.fails(service, good.with_(name="RESTART"), "ENTRY_COUNT")
        self.fails(service, Request(name="SYN", range_count=1), "ENTRY_COUNT")
        self.fails(service, self.good_request(service, [(0, 1)], attempt=1), "ATTEMPT")
        for name in ("PROBE", "TIMEOUT", "REKEY", "CLOSE", "RESTART"):
            request = self.good_request(service, [] if name == "RESTART" else [(0, 1)], name=name, attempt=4)
            self.fails(service, request, "ATTEMPT")
        self.fails(service, Request(name="SYN", attempt=1), "ATTEMPT")
        for kinds in (0x00000001, 0x20000000, 0x10000000, 0x000000C0):
            self.fails(service, good.with_(range_kinds=kinds), "ENTRY_KINDS")
        self.fails(service, Request(name="SYN", range_kinds=0x80000000), "ENTRY_KINDS")
        # A range after a mark or an excuse, within the first four entries and after them.
        for kinds in (0x80000000, 0xC0000000, 0x20000000, 0x08000000):
            request = self.good_request(service, [(0, 1), (3, 3), (5, 5), (8, 9)], range_kinds=kinds)
            self.fails(service, request, "ENTRY_KINDS")
        many = good.entries + (Entry(2, 1, 1, 0),) * 13 + (Entry(0, 9, 9, 0),) * 2
        self.fails(service, good.with_(entries=many), "ENTRY_KINDS")


@variants
class TcpHeaders(RackTest):
    """A data offset below 5, or beyond the end of the segment."""

    def check(self) -> None:
        service = self.add_service()
        for offset, payload in ((0, b"hello"), (4, b"hello"), (6, b""), (15, b"x" * 39)):
            segment = packets.tcp(self.client, service.address, 40000, 80, payload=payload, data_offset=offset)
            with self.drops("TCP_HEADER"):
                self.send(CLIENT, self.ip_frame(service.address, packets.TCP, segment))


@variants
class UdpHeaders(RackTest):
    """A UDP length below 8, or beyond the end of the packet."""

    def check(self) -> None:
        for length in (0, 7, 14, 65535):
            datagram = struct.pack("!HHHH", 1, 2, length, 0) + b"hello"
            with self.drops("UDP_HEADER"):
                self.send(CLIENT, self.ip_frame(self.client, packets.UDP, datagram))


class Ipv4Headers(RackTest):
    """Invalid version, header length, total length and header checksum."""

    def runTest(self) -> None:
        service = self.add_service()
        frame = self.to_service(service, self.good_request(service))
        for at, value in ((14, 0x55), (14, 0x44), (14, 0x40), (16, 0x00)):
            bad = bytearray(frame)
            bad[at] = value
            if at == 16:
                bad[17] = 19
            with self.drops("IPV4_HEADER"):
                self.send(CLIENT, bytes(bad))
        for at in (15, 18, 22, 24, 26, 33):
            bad = bytearray(frame)
            bad[at] ^= 0x10
            with self.drops("IPV4_CHECKSUM"):
                self.send(CLIENT, bytes(bad))


class Ipv6Version(RackTest):
    """Version 4 in an IPv6 frame."""

    family = 6

    def runTest(self) -> None:
        service = self.add_service()
        bad = bytearray(self.to_service(service, self.good_request(service)))
        bad[14] = 0x45
        with self.drops("IPV6_HEADER"):
            self.send(CLIENT, bytes(bad))


@variants
class Truncated(RackTest):
    """Frames that end within a header, or before their IP length."""

    def check(self) -> None:
        service = self.add_service()
        frame = self.to_service(service, self.good_request(service))
        for length in range(20, len(frame), 7):
            with self.drops("TRUNCATED"):
                self.send(CLIENT, frame[:length])
        arp = packets.ethernet(b"\xff" * 6, host_mac(CLIENT), 0x0806, b"\0" * 20, self.vlan, pad=False)
        with self.drops("TRUNCATED"):
            self.send(CLIENT, arp)


@families
class StackedVlans(RackTest):
    """Two VLAN tags, of either EtherType."""

    def check(self) -> None:
        service = self.add_service()
        frame = self.to_service(service, self.good_request(service))
        for outer, inner in ((0x8100, 0x8100), (0x8100, 0x88A8)):
            tags = struct.pack("!HHHH", outer, 5, inner, 6)
            with self.drops("VLAN_STACKED"):
                self.send(CLIENT, frame[:12] + tags + frame[12:])


@variants
class FragmentsAndExtensions(RackTest):
    """Fragments and IPv6 extension headers to a service address."""

    def check(self) -> None:
        service = self.add_service()
        segment = self.good_request(service).segment(self.client, service.address, 40000, 80)
        if self.family == 4:
            for flags, offset in ((1, 0), (1, 100), (0, 100)):
                with self.drops("FRAGMENT"):
                    frame = self.ip_frame(service.address, packets.TCP, segment, flags=flags, fragment=offset)
                    self.send(CLIENT, frame)
            return
        with self.drops("FRAGMENT"):
            header = struct.pack("!BBHI", packets.TCP, 0, 1, 7)
            self.send(CLIENT, self.ip_frame(service.address, 44, header + segment))
        for extension in (0, 43, 50, 51, 60, 135, 139, 140):
            with self.drops("EXTENSION_HEADER"):
                header = struct.pack("!BB6x", packets.TCP, 0)
                self.send(CLIENT, self.ip_frame(service.address, extension, header + segment))


@variants
class PacketsForNoService(RackTest):
    """Packets with another port or protocol, responses, and group addresses: none reaches a replica."""

    def check(self) -> None:
        service = self.add_service(plain=NO_PLAIN)
        with self.drops("NOT_SERVED"):
            segment = packets.tcp(self.client, service.address, 40000, 81)
            self.send(CLIENT, self.ip_frame(service.address, packets.TCP, segment))
        with self.drops("NOT_SERVED"):
            datagram = packets.udp(self.client, service.address, 1000, 80, b"hello")
            self.send(CLIENT, self.ip_frame(service.address, packets.UDP, datagram))
        with self.drops("NOT_SERVED"):
            self.send(CLIENT, self.ip_frame(service.address, 47, b"\0" * 20))
        with self.drops("PLAIN_TCP_REFUSED"):
            self.send(CLIENT, self.plain(service))
        for name, flags in (("NORMAL", None), ("SYN", SYN | ACK)):
            with self.drops("RESPONSE_CLASS"):
                self.send(CLIENT, self.to_service(service, Request(name=name, class_=0x80, flags=flags)))
        good = self.to_service(service, self.good_request(service))
        for group in (b"\xff" * 6, b"\x01\x00\x5e\x00\x00\x01", b"\x33\x33\x00\x00\x00\x01"):
            with self.drops("MULTICAST_SERVICE"):
                self.send(CLIENT, group + good[6:])
        # A neighbour's frame to a replica's own MAC does not bypass the checks.
        bad = self.good_request(service).with_(entries=(Entry(0, 0, 3, 1),))
        with self.drops("SUM") if CHECKS_AT_TOR else contextlib.nullcontext():
            self.send(CLIENT, host_mac(1) + self.to_service(service, bad)[6:])
        if not CHECKS_AT_TOR:
            self.expect_request(service, self.to_service(service, bad), flags=MARKED)


@variants
class ServiceHalfInstalled(RackTest):
    """A service with an incomplete set of table entries: its packets are dropped and counted."""

    def check(self) -> None:
        from packets import number

        service_id = self.new_id()
        address = packets.ip(f"10.78.0.{service_id & 255}" if self.family == 4 else f"2001:db8:78::{service_id:x}")
        self.insert("addresses", {"address": number(address)}, "service_address")
        self.insert("services", {"address": number(address), "port": 80}, "set_service", service=service_id)
        segment = packets.tcp(self.client, address, 40000, 80)
        frame = self.ip_frame(address, packets.TCP, segment)
        with self.drops("SERVICE_UNCONFIGURED"):
            self.send(CLIENT, frame)
        for pool_exists in (False, True):
            config = {
                "policy": 0,
                "spray_set": 65000,
                "spray_mask": 0,
                "flow_set": 65000,
                "flow_mask": 0,
                "plain": 1,
                "slot_key0": 0,
                "slot_key1": 0,
                "affinity": 0,
            }
            if pool_exists:
                pool = self.add_pool()
                self.modify("service_config", {"service": service_id}, "configure", pool=pool.id, **config)
            else:
                self.insert("service_config", {"service": service_id}, "configure", pool=1023, **config)
                modes = {f"{c}_mode": 2 for c in ("key", "time", "range", "sum", "replay", "meter")}
                others = {"drop_unjudged": 0, "horizon": 1, "seal_epoch": 0, "nonce_epoch": 0}
                self.insert("service_checks", {"service": service_id}, "set_checks", **modes, **others)
            with self.drops("SERVICE_UNCONFIGURED"):
                self.send(CLIENT, frame)


@families
class HeartbeatForm(RackTest):
    """Heartbeats with another version, unknown flags, or a replica index above 63."""

    def check(self) -> None:
        pool = self.add_pool()
        for fields in ({"version": 0}, {"version": 1}, {"flags": 3}, {"flags": 0x80}):
            body = packets.heartbeat(pool.id, 0, **fields)
            with self.drops("HEARTBEAT_FORM"):
                self.send(1, packets.ethernet(TOR_MAC, host_mac(1), 0x88B5, body))
            datagram = packets.udp(self.client, self.tor(), 1000, 34997, body)
            with self.drops("HEARTBEAT_FORM"):
                self.send(CLIENT, self.ip_frame(self.tor(), packets.UDP, datagram))
        with self.drops("HEARTBEAT_FORM"):
            self.send(1, packets.ethernet(TOR_MAC, host_mac(1), 0x88B5, packets.heartbeat(pool.id, 64)))

    def tor(self):
        from layout import TOR

        return TOR[self.family]


class SolicitationForm(RackTest):
    """Neighbour solicitations that RFC 4861 section 7.1.1 requires to be discarded."""

    family = 6

    def runTest(self) -> None:
        service = self.add_service()
        target = service.address.packed

        def send(rest: bytes, code: int = 0, ttl: int = 255) -> None:
            message = packets.icmp(self.client, service.address, 135, code, bytes(4), rest)
            self.send(CLIENT, self.ip_frame(service.address, packets.ICMPV6, message, ttl=ttl))

        with self.drops("NEIGHBOUR_FORM"):
            send(target, ttl=254)
        with self.drops("NEIGHBOUR_FORM"):
            send(target, code=1)
        with self.drops("NEIGHBOUR_FORM"):
            send(target[:15])
        with self.drops("NEIGHBOUR_FORM"):
            send(target + b"\x01\x00" + host_mac(CLIENT))
