# SPDX-License-Identifier: Apache-2.0
"""ICMP errors about a service's responses: they go to the flow's replica, or to every live replica."""

import struct
import time

import packets
from layout import CLIENT, TOR_MAC, host_mac
from packets import Request, ip
from rack import RackTest, in_time, variants

ROUTER = {4: ip("198.51.100.1"), 6: ip("2001:db8:c::1")}
ERRORS = {4: ((3, 4), (11, 0), (12, 0)), 6: ((1, 0), (2, 0), (3, 0), (4, 0))}


class IcmpErrors(RackTest):
    """Helpers: ICMP errors of a router near the client about a response of the service."""

    def response(self, service, sport: int, rivulet: bool, options: bytes = b"") -> bytes:
        """The response that the error quotes, as an IP packet."""
        tcp_options = Request(class_=0x80).option() if rivulet else bytes.fromhex("0101080a0000000100000002")
        segment = packets.tcp(service.address, self.client, 80, sport, options=tcp_options, payload=b"d" * 500)
        if self.family == 4:
            return packets.ipv4(service.address, self.client, packets.TCP, segment, options=options)
        return packets.ipv6(service.address, self.client, packets.TCP, segment)

    def error(self, service, quote: bytes, kind: int, code: int, dst=None) -> bytes:
        router = ROUTER[self.family]
        dst = dst or service.address
        message = packets.icmp(router, dst, kind, code, struct.pack("!I", 1400), quote)
        return self.ip_frame(dst, packets.icmp_protocol(router), message, src=router)

    def header(self) -> int:
        return 20 if self.family == 4 else 40


@variants
class ErrorsOfPlainTcp(IcmpErrors):
    """An error about plain TCP goes to the flow's replica, once."""

    def check(self) -> None:
        service = self.add_service()
        for kind, code in ERRORS[self.family]:
            for sport in range(50000, 50010):
                frame = self.plain(service, sport)
                self.send(CLIENT, frame)
                replica = self.expect_plain(service, frame)
                error = self.error(service, self.response(service, sport, False)[: self.header() + 200], kind, code)
                with self.counts("service_outcomes", self.outcome(service, "ICMP_ERROR")):
                    self.send(CLIENT, error)
                    self.expect_plain(service, error, replicas=[replica])
        if self.family == 4:
            quote = self.response(service, 50001, False, options=b"\x01" * 12)[:100]
            error = self.error(service, quote, 3, 4)
            self.send(CLIENT, error)
            self.expect_plain(service, error)


@variants
class ErrorsOfRivulet(IcmpErrors):
    """Errors about Rivulet, or with a quote too short to decide, go to every live member."""

    @in_time
    def check(self) -> None:
        pool = self.add_pool([1, 2, 3], bound=60_000_000)
        service = self.add_service(pool)
        whole = self.response(service, 50000, True)
        for quote in (whole[: self.header() + 200], whole[: self.header() + 24], whole[: self.header() + 8]):
            for kind, code in ERRORS[self.family]:
                error = self.error(service, quote, kind, code)
                self.send(CLIENT, error)
                got = dict(self.receive() for _ in range(3))
                self.assertEqual(set(got), {1, 2, 3})
                for port, frame in got.items():
                    wanted = packets.forwarded(error, dst=host_mac(port), src=TOR_MAC, vlan=self.rack_vlan())
                    self.same(wanted, frame)
        error = bytearray(self.error(service, whole[: self.header() + 200], *ERRORS[self.family][0]))
        packet = packets.ip_packet(
            ROUTER[self.family],
            service.address,
            packets.icmp_protocol(self.client),
            packets.parse(bytes(error)).payload()[self.header() :],
            ttl=1,
        )
        with self.drops("TTL_EXPIRED"):
            self.send(CLIENT, self.from_client(0x0800 if self.family == 4 else 0x86DD, packet))
        # One dies; the copies go to the others.
        self.set_pool(pool, bound=1_000_000, settle=1_000_000)
        for replica in (0, 2):
            self.keep_beating(pool, [replica], 0.05)
        time.sleep(1.5)
        for sport in range(51000, 51020):
            self.send(CLIENT, self.plain(service, sport))
            self.receive()
        error = self.error(service, whole[: self.header() + 200], *ERRORS[self.family][0])
        with self.counts("egress_drops", self.reasons["COPY_EXCLUDED"]):
            self.send(CLIENT, error)
            self.assertEqual({self.receive()[0] for _ in range(2)}, {1, 3})
            self.quiet(0.05)
        import traffic

        traffic.SEEN_REASONS.add("COPY_EXCLUDED")


@variants
class ErrorsAboutOtherConnections(IcmpErrors):
    """Quotes of another port, address or protocol, or none, are dropped; errors in transit pass unchanged."""

    def check(self) -> None:
        service = self.add_service()
        kind, code = ERRORS[self.family][0]
        whole = self.response(service, 50000, True)[: self.header() + 100]
        at = self.header()
        port = whole[:at] + b"\x00\x51" + whole[at + 2 :]
        address = bytearray(whole)
        address[15 if self.family == 4 else 23] ^= 1
        protocol = bytearray(whole)
        protocol[9 if self.family == 4 else 6] = 17
        version = b"\x95" + whole[1:]
        for quote in (port, bytes(address), bytes(protocol), version, whole[: at + 7], b""):
            with self.drops("ICMP_QUOTE"):
                self.send(CLIENT, self.error(service, quote, kind, code))
        # An error about another service's response, sent to this address.
        other = self.add_service(service.pool)
        with self.drops("ICMP_QUOTE"):
            quote = self.response(other, 50000, True)[: self.header() + 100]
            self.send(CLIENT, self.error(service, quote, kind, code))
        transit = self.error(service, whole, kind, code, dst=self.client)
        self.send(CLIENT, transit)
        self.expect(CLIENT, packets.forwarded(transit, dst=host_mac(CLIENT), src=TOR_MAC))


class ErrorsAreMetered(IcmpErrors):
    """Copies to all members are metered for each service."""

    def runTest(self) -> None:
        service = self.add_service()
        self.switch.set_meter("icmp_error_meter", service.id, 1, burst=2)
        error = self.error(service, self.response(service, 50000, True)[:100], 3, 4)
        self.assertIn(self.metered("ICMP_ERROR_METER", [error] * 12, per_packet=3), range(1, 6))
        self.switch.set_meter("icmp_error_meter", service.id, None)
