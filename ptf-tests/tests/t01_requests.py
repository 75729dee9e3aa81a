# SPDX-License-Identifier: Apache-2.0
"""Requests through the switch to a replica, and responses back."""

import packets
from layout import CLIENT, PATIENCE_S, TOR_MAC, host_mac
from packets import TIME_VALID, Entry, Request, ip_packet
from program import CHECKS_AT_TOR, MARKED
from rack import RackTest, variants


@variants
class RequestReachesAReplica(RackTest):
    """A valid request reaches one replica of the pool, stamped and marked as checked, with a repaired checksum."""

    def check(self) -> None:
        service = self.add_service()
        with self.counts("service_outcomes", self.outcome(service, "CHECKED" if CHECKS_AT_TOR else "UNCHECKED"), 5):
            for _ in range(5):
                frame = self.to_service(service, self.good_request(service))
                self.send(CLIENT, frame)
                replica = self.expect_request(service, frame, flags=MARKED)
        self.assertGreaterEqual(self.switch.counter("replica_packets", service.pool.member(replica)), 1)


@variants
class ResponseReachesTheClient(RackTest):
    """A replica's response is routed to the client; only MACs, hop limit and VLAN change."""

    def check(self) -> None:
        service = self.add_service()
        options = Request(class_=0x80).option()
        segment = packets.tcp(service.address, self.client, 80, 40000, options=options, payload=bytes(range(200)))
        payload = ip_packet(service.address, self.client, packets.TCP, segment)
        ether_type = 0x0800 if self.family == 4 else 0x86DD
        sent = packets.ethernet(TOR_MAC, host_mac(1), ether_type, payload, self.rack_vlan())
        with self.counts("port_answers", 1):
            self.send(1, sent)
            self.expect(CLIENT, packets.forwarded(sent, dst=host_mac(CLIENT), src=TOR_MAC))


@variants
class PlainTcpIsNotCountedAsRequests(RackTest):
    """`replica_requests` and `port_answers`, by which the controller finds stalled replicas, do not count plain TCP."""

    def check(self) -> None:
        service = self.add_service()
        frame = self.plain(service, flags=packets.SYN)
        self.send(CLIENT, frame)
        member = service.pool.member(self.expect_plain(service, frame))
        with self.counts("replica_packets", member), self.counts("replica_requests", member, 0):
            self.send(CLIENT, frame)
            self.expect_plain(service, frame)
        before = self.switch.counters("replica_requests")
        member = service.pool.member(self.passes(service, self.good_request(service)))
        self.assertEqual(self.switch.counters("replica_requests"), before | {member: before.get(member, 0) + 1})
        segment = packets.tcp(service.address, self.client, 80, 40000, payload=bytes(range(200)))
        payload = ip_packet(service.address, self.client, packets.TCP, segment)
        ether_type = 0x0800 if self.family == 4 else 0x86DD
        sent = packets.ethernet(TOR_MAC, host_mac(1), ether_type, payload, self.rack_vlan())
        with self.counts("port_answers", 1, 0):
            self.send(1, sent)
            self.expect(CLIENT, packets.forwarded(sent, dst=host_mac(CLIENT), src=TOR_MAC))


@variants
class EveryProofThatTheSwitchCanSee(RackTest):
    """One to four ranges, original or retransmitted, followed by marks and excuses, pass marked as checked."""

    def check(self) -> None:
        service = self.add_service()
        ranges = [(0, 2), (4, 4), (7, 9), (12, 200)]
        for count in range(1, 5):
            for kinds in (["ORIGINAL"] * 4, ["RETRANSMITTED"] * 4, ["ORIGINAL", "RETRANSMITTED"] * 2):
                self.passes(service, self.good_request(service, ranges[:count], kinds=kinds[:count]))
        request = self.good_request(service, [(0, 3), (5, 6)])
        extras = (Entry(2, 5, 5, 0), Entry(3, 77, 0, 0), Entry(2, 6, 6, 0))
        self.passes(service, request.with_(entries=request.entries + extras))
        # Four ranges and then twelve entries without a sum: the switch verifies every sum.
        request = self.good_request(service, ranges)
        self.passes(service, request.with_(entries=request.entries + (Entry(2, 1, 1, 0),) * 12))


@variants
class NumbersWrap(RackTest):
    """Ranges across the wrap of 32-bit numbers, and the longest encodable range, pass."""

    def check(self) -> None:
        service = self.add_service()
        self.passes(service, self.good_request(service, [(0, 20)], base=0xFFFFFFF8))
        self.passes(service, self.good_request(service, [(0, 3), (9, 10)], base=0xFFFFFFFF))
        self.passes(service, self.good_request(service, [(0, 65535)], base=0x80000000))


@variants
class EveryClassOfRequest(RackTest):
    """Requests of every class reach a replica; those without a proof are not marked as checked."""

    def check(self) -> None:
        service = self.add_service()
        for name in ("NORMAL", "PROBE", "TIMEOUT", "REKEY", "CLOSE"):
            self.passes(
                service, self.good_request(service, name=name, attempt=2 if name in ("PROBE", "TIMEOUT") else 0)
            )
        for name in ("TIMEOUT", "RESTART", "CLOSE"):
            self.passes(service, self.good_request(service, [], name=name), flags=TIME_VALID)
        # A RESTART may have any age.
        self.passes(service, self.good_request(service, [], name="RESTART", time=5), flags=TIME_VALID)
        with self.counts("service_outcomes", self.outcome(service, "OPENING")):
            self.passes(service, Request(name="SYN"), flags=TIME_VALID)


@variants
class BareSyn(RackTest):
    """A SYN with Rivulet's option and no data has no ToR block and is forwarded unchanged."""

    def check(self) -> None:
        service = self.add_service()
        frame = self.to_service(service, Request(name="SYN", cut=0))
        with self.counts("service_outcomes", self.outcome(service, "OPENING")):
            self.send(CLIENT, frame)
            self.expect_plain(service, frame)


@variants
class ClientsCannotSetTheStamp(RackTest):
    """The switch overwrites the ToR block that a client sends, including the checked mark."""

    def check(self) -> None:
        service = self.add_service(modes={"sum": 0})
        for block in (b"\xff" * 18, bytes(range(18)), bytes(12) + b"\x03\x80" + bytes(4)):
            request = self.good_request(service, tor_block=block)
            bad = request.with_(entries=(Entry(0, 0, 3, 0xBAD),))
            self.passes(service, bad, flags=TIME_VALID)  # not checked
        service = self.add_service()
        for block in (b"\xff" * 18, bytes(range(18)), bytes(12) + b"\x03\x80" + bytes(4)):
            self.passes(service, self.good_request(service, tor_block=block))


@variants
class WrongTcpChecksumStaysWrong(RackTest):
    """A request with a wrong TCP checksum still has a wrong one after the incremental repair."""

    def check(self) -> None:
        service = self.add_service()
        for i in range(8):
            frame = bytearray(self.to_service(service, self.good_request(service)))
            at = packets.parse(bytes(frame)).l4 + 16
            wrong = (int.from_bytes(frame[at : at + 2], "big") ^ (0x0101 << i)) & 0xFFFF
            frame[at : at + 2] = wrong.to_bytes(2, "big")
            self.send(CLIENT, bytes(frame))
            result = self.dataplane.poll(0, timeout=PATIENCE_S)
            self.assertIsInstance(result, self.dataplane.PollSuccess, "the request did not arrive")
            problems = packets.parse(bytes(result.packet)).problems
            self.assertEqual(problems, ["wrong TCP checksum"], "the switch made a wrong checksum right")


@variants
class ChecksumsOfManyStamps(RackTest):
    """The repaired checksum is right for 200 requests with random ToR blocks and payloads."""

    def check(self) -> None:
        service = self.add_service()
        for _ in range(200):
            tail = self.random.randbytes(86 + self.random.randrange(300))
            self.passes(service, self.good_request(service, tor_block=self.random.randbytes(18), tail=tail))


class Ipv4OptionsAndTos(RackTest):
    """A request with IPv4 options of any length, TOS and ECN bits passes with these unchanged."""

    def runTest(self) -> None:
        service = self.add_service()
        for length in range(0, 44, 4):
            options = (b"\x01" * length)[:-1] + b"\x00" if length else b""
            frame = self.to_service(service, self.good_request(service), options=options, tos=0xBA, flags=0)
            self.send(CLIENT, frame)
            self.expect_request(service, frame)


@variants
class ShortestRequest(RackTest):
    """A request may end with the last field that the switch reads."""

    def check(self) -> None:
        service = self.add_service()
        self.passes(service, self.good_request(service, [(0, 1), (3, 3), (5, 5), (8, 9)], tail=b""))
        self.passes(service, Request(name="SYN", cut=24), flags=TIME_VALID)
