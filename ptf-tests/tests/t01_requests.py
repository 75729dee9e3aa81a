# SPDX-License-Identifier: Apache-2.0
"""Requests through the switch to a replica, and responses back."""

import packets
from layout import CLIENT, PATIENCE_S, TOR_MAC, host_mac
from packets import CHECKED, TIME_VALID, Entry, Request, ip_packet
from rack import RackTest, variants


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
        options = Request(class_=0x80).option()
        segment = packets.tcp(service.address, self.client, 80, 40000, options=options, payload=bytes(range(200)))
        payload = ip_packet(service.address, self.client, packets.TCP, segment)
        ether_type = 0x0800 if self.family == 4 else 0x86DD
        sent = packets.ethernet(TOR_MAC, host_mac(1), ether_type, payload, self.rack_vlan())
        with self.counts("port_answers", 1):
            self.send(1, sent)
            self.expect(CLIENT, packets.forwarded(sent, dst=host_mac(CLIENT), src=TOR_MAC))


@variants
class OnlyRequestsAndResponsesCountAsSuch(RackTest):
    """By `replica_requests` and `port_answers` the controller finds who answers nothing: plain TCP is neither."""

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
    """One to four ranges, of originals and retransmissions, with marks and excuses behind, pass marked."""

    def check(self) -> None:
        service = self.add_service()
        ranges = [(0, 2), (4, 4), (7, 9), (12, 200)]
        for count in range(1, 5):
            for kinds in (["ORIGINAL"] * 4, ["RETRANSMITTED"] * 4, ["ORIGINAL", "RETRANSMITTED"] * 2):
                self.passes(service, self.good_request(service, ranges[:count], kinds=kinds[:count]))
        request = self.good_request(service, [(0, 3), (5, 6)])
        extras = (Entry(2, 5, 5, 0), Entry(3, 77, 0, 0), Entry(2, 6, 6, 0))
        self.passes(service, request.with_(entries=request.entries + extras))
        # Four ranges and twelve entries behind them that have no sum: all is seen that matters.
        request = self.good_request(service, ranges)
        self.passes(service, request.with_(entries=request.entries + (Entry(2, 1, 1, 0),) * 12))


@variants
class NumbersWrap(RackTest):
    """Ranges across the wrap of 32-bit numbers, and the longest one that can be written down."""

    def check(self) -> None:
        service = self.add_service()
        self.passes(service, self.good_request(service, [(0, 20)], base=0xFFFFFFF8))
        self.passes(service, self.good_request(service, [(0, 3), (9, 10)], base=0xFFFFFFFF))
        self.passes(service, self.good_request(service, [(0, 65535)], base=0x80000000))


@variants
class EveryClassOfRequest(RackTest):
    """All classes reach a replica; those without a proof go on without the mark."""

    def check(self) -> None:
        service = self.add_service()
        for name in ("NORMAL", "PROBE", "TIMEOUT", "REKEY", "CLOSE"):
            self.passes(
                service, self.good_request(service, name=name, attempt=2 if name in ("PROBE", "TIMEOUT") else 0)
            )
        for name in ("TIMEOUT", "RESTART", "CLOSE"):
            self.passes(service, self.good_request(service, [], name=name), flags=TIME_VALID)
        # A RESTART may be of any age.
        self.passes(service, self.good_request(service, [], name="RESTART", time=5), flags=TIME_VALID)
        with self.counts("service_outcomes", self.outcome(service, "OPENING")):
            self.passes(service, Request(name="SYN"), flags=TIME_VALID)


@variants
class BareSyn(RackTest):
    """A SYN with our option and no data has no ToR block: it is passed on as it is."""

    def check(self) -> None:
        service = self.add_service()
        frame = self.to_service(service, Request(name="SYN", cut=0))
        with self.counts("service_outcomes", self.outcome(service, "OPENING")):
            self.send(CLIENT, frame)
            self.expect_plain(service, frame)


@variants
class TheStampIsTheTorsOwn(RackTest):
    """Whatever a client writes into the ToR block is overwritten, the checked mark first of all."""

    def check(self) -> None:
        service = self.add_service(modes={"sum": 0})
        for block in (b"\xff" * 18, bytes(range(18)), bytes(12) + b"\x03\x80" + bytes(4)):
            request = self.good_request(service, tor_block=block)
            bad = request.with_(entries=(Entry(0, 0, 3, 0xBAD),))
            self.passes(service, bad, flags=TIME_VALID)  # nobody checked it
        service = self.add_service()
        for block in (b"\xff" * 18, bytes(range(18)), bytes(12) + b"\x03\x80" + bytes(4)):
            self.passes(service, self.good_request(service, tor_block=block))


@variants
class AWrongTcpChecksumStaysWrong(RackTest):
    """The repair is incremental: damage is not hidden by it."""

    def check(self) -> None:
        service = self.add_service()
        for i in range(8):
            frame = bytearray(self.to_service(service, self.good_request(service)))
            at = packets.parse(bytes(frame)).l4 + 16
            wrong = (int.from_bytes(frame[at : at + 2], "big") ^ (0x0101 << i)) & 0xFFFF
            frame[at : at + 2] = wrong.to_bytes(2, "big")
            self.send(CLIENT, bytes(frame))
            result = self.dataplane.poll(0, timeout=PATIENCE_S)
            self.assertIsInstance(result, self.dataplane.PollSuccess, "expected the request, none came")
            problems = packets.parse(bytes(result.packet)).problems
            self.assertEqual(problems, ["wrong TCP checksum"], "the switch made a wrong checksum right")


@variants
class ChecksumsOfManyStamps(RackTest):
    """200 requests with random ToR blocks and payloads, every repaired checksum right."""

    def check(self) -> None:
        service = self.add_service()
        for _ in range(200):
            tail = self.random.randbytes(86 + self.random.randrange(300))
            self.passes(service, self.good_request(service, tor_block=self.random.randbytes(18), tail=tail))


class Ipv4OptionsAndTos(RackTest):
    """A request behind IPv4 options of any length, with TOS and ECN bits, passes with both untouched."""

    def runTest(self) -> None:
        service = self.add_service()
        for length in range(0, 44, 4):
            options = (b"\x01" * length)[:-1] + b"\x00" if length else b""
            frame = self.to_service(service, self.good_request(service), options=options, tos=0xBA, flags=0)
            self.send(CLIENT, frame)
            self.expect_request(service, frame)


@variants
class ShortestRequest(RackTest):
    """A request may end where the switch's part ends."""

    def check(self) -> None:
        service = self.add_service()
        self.passes(service, self.good_request(service, [(0, 1), (3, 3), (5, 5), (8, 9)], tail=b""))
        self.passes(service, Request(name="SYN", cut=24), flags=TIME_VALID)
