# SPDX-License-Identifier: Apache-2.0
"""Plain TCP to a stateless service: SYN cookies, segments without a valid cookie, and spraying of the others."""

import json
import struct
from pathlib import Path

import cookies
import packets
from cookies import LAYOUTS
from layout import BLOCK, CLIENT, CLIENTS, FOREVER, RANDOM, STATELESS, TOR_MAC, Service, host_mac
from packets import ACK, FIN, RST, SYN, ip
from rack import RackTest, cookie_keys, families, variants

VECTORS = Path(__file__).resolve().parents[2] / "docs" / "plain-vectors.json"
SEQUENCE = 0xFFFFFFFF  # its successor is 0
OFFERED = 0x01020304  # TSval of the clients' SYNs
MTU = 1500
MSS = {4: MTU - 40, 6: MTU - 60}


class Stateless(RackTest):
    """Helpers: a stateless service, and the segments of its clients."""

    def stateless(self, keys: int = 2, **fields) -> Service:
        self.keys = [(self.random.getrandbits(32), self.random.getrandbits(32)) for _ in range(keys)]
        return self.add_service(plain=STATELESS, cookies=self.keys, mtu=MTU, **fields)

    def flow(self, service: Service, sport: int) -> list[int]:
        return cookies.words(self.client, sport, service.port)

    def syn(self, service: Service, sport: int, options: bytes, **fields) -> bytes:
        fields = {"flags": SYN, "sequence": SEQUENCE, "acknowledgement": 0, "payload": b""} | fields
        return self.plain(service, sport, options=options, **fields)

    def answers(self, service: Service, sport: int, layout: str, mss: int, shift: int) -> list[bytes]:
        """The expected SYN-ACKs: for now, and for one time unit later, in case the clock advances meanwhile."""
        order, flow, first = LAYOUTS[layout], self.flow(service, sport), SEQUENCE + 1 & 0xFFFFFFFF
        ours = MSS[self.family]
        wanted = []
        for minute in {(self.clock() + ahead) // cookies.MINUTE for ahead in (-3_000_000, 0, 3_000_000)}:
            if cookies.bare(order):
                value, isn = 0, cookies.bare_isn(self.keys[0], flow, first)
                kept = order.replace("ws", "nop nop nop")
            else:
                value = cookies.opening(self.keys[0], flow, minute % (1 << 22), first, shift)
                isn, kept = cookies.stamped_isn(self.keys[0], flow, min(mss, ours)), order
            options = cookies.options(kept, ours, 0, value, OFFERED)
            segment = cookies.welcome(self.client, service.address, (sport, service.port), SEQUENCE, options, isn)
            if self.family == 4:
                packet = packets.ipv4(service.address, self.client, packets.TCP, segment, ident=0)
            else:
                packet = packets.ipv6(service.address, self.client, packets.TCP, segment)
            ether_type = 0x0800 if self.family == 4 else 0x86DD
            wanted.append(packets.ethernet(host_mac(CLIENT), TOR_MAC, ether_type, packet, self.vlan))
        return wanted

    def welcomed(self, service: Service, frame: bytes, wanted: list[bytes]) -> None:
        with self.counts("service_outcomes", self.outcome(service, "COOKIE")):
            self.send(CLIENT, frame)
            port, got = self.receive()
        self.assertEqual(port, CLIENT, "the answer must leave the port at which the SYN arrived")
        end = packets.parse(got).end
        self.assertIn(got[:end], [w[: packets.parse(w).end] for w in wanted])
        self.assertLessEqual(len(got), max(len(frame), 60), "the answer is longer than the SYN")

    def segment(self, service: Service, sport: int, acknowledgement: int, echo: int | None, **fields) -> bytes:
        """A client's segment, with timestamps and TSecr `echo`, or without timestamps (None)."""
        options = b"" if echo is None else cookies.stamps(OFFERED, echo)
        fields = {"flags": ACK, "payload": b"GET / HTTP/1.1\r\n\r\n", "acknowledgement": acknowledgement} | fields
        return self.plain(service, sport, options=options, **fields)

    def stamped(self, service: Service, sport: int, at: int, echo: int | None = None, key: int = 0, **fields) -> bytes:
        """A segment that acknowledges `at` bytes of the answers."""
        isn = cookies.stamped_isn(self.keys[key], self.flow(service, sport), 1460)
        if echo is None:
            echo = cookies.opening(self.keys[key], self.flow(service, sport), 5, 0, 7)
        return self.segment(service, sport, isn + 1 + at & 0xFFFFFFFF, echo, **fields)

    def bare(self, service: Service, sport: int, at: int, key: int = 0, **fields) -> bytes:
        isn = cookies.bare_isn(self.keys[key], self.flow(service, sport), 0x3579BDF)
        return self.segment(service, sport, isn + 1 + at & 0xFFFFFFFF, None, **fields)

    def comes(self, service: Service, frame: bytes, replicas=None) -> int:
        self.send(CLIENT, frame)
        return self.expect_plain(service, frame, replicas)

    def dropped(self, reason: str, frame: bytes) -> None:
        with self.drops(reason):
            self.send(CLIENT, frame)


class VectorsOfTheDocument(RackTest):
    """The second implementation computes the values of docs/plain-vectors.json, as Rust does."""

    def runTest(self) -> None:
        vectors = json.loads(VECTORS.read_text())
        for v in vectors["cookies"] + vectors["openings"]:
            key = struct.unpack("<II", bytes.fromhex(v["key"]))
            flow = cookies.words(ip(v["client"]), v["client_port"], v["service_port"])
            if "minute" in v:
                got = cookies.opening(key, flow, v["minute"], v["first"], v["shift"])
                self.assertEqual(got, v["value"], v)
            elif v["stamped"]:
                self.assertEqual(cookies.stamped_isn(key, flow, v["mss"]), v["isn"], v)
            else:
                self.assertEqual(cookies.bare_isn(key, flow, v["first"]), v["isn"], v)
        self.assertGreater(len(vectors["cookies"]) + len(vectors["openings"]), 90)


@variants
class SynsOfKnownStacks(Stateless):
    """SYNs of each stack's layout, MSS and window scale: the answer is byte for byte a replica's."""

    def check(self) -> None:
        service = self.stateless()
        sport = 30000
        for layout, order in LAYOUTS.items():
            for mss in (536, 1219, 1220, 1439, 1440, 1459, 1460, 8960):
                if cookies.bare(order) and mss < cookies.BARE_SEGMENT:
                    continue
                sport += 1
                frame = self.syn(service, sport, cookies.options(order, mss, 7, OFFERED))
                self.welcomed(service, frame, self.answers(service, sport, layout, mss, 7))
        for shift in range(15):
            frame = self.syn(service, 31000 + shift, cookies.options(LAYOUTS["LINUX"], 1460, shift, OFFERED))
            self.welcomed(service, frame, self.answers(service, 31000 + shift, "LINUX", 1460, shift))


@families
class SynsWithDataOrOddFlags(Stateless):
    """SYNs with data, ECN, FIN or RST, and replicas that are reached over a path of a smaller MTU."""

    def check(self) -> None:
        service = self.stateless()
        options = cookies.options(LAYOUTS["LINUX"], 1460, 7, OFFERED)
        wanted = self.answers(service, 32000, "LINUX", 1460, 7)
        self.welcomed(service, self.syn(service, 32000, options, payload=b"early" * 50), wanted)
        self.welcomed(service, self.syn(service, 32000, options, flags=SYN | 0xC0), wanted)
        for more in (FIN, RST):
            self.dropped("CLASS_FLAGS", self.syn(service, 32000, options, flags=SYN | more))
        self.dropped("CLASS_FLAGS", self.syn(service, 32000, options, flags=SYN | ACK))
        self.modify("cookie_keys", {"service": service.id}, "set_cookie_keys", **cookie_keys(self.keys, 1300))
        self.send(CLIENT, self.syn(service, 32000, options))
        _, got = self.receive()
        frame = packets.parse(got)
        announced = int.from_bytes(got[frame.l4 + 22 : frame.l4 + 24], "big")
        self.assertEqual(announced, 1300 - (40 if self.family == 4 else 60))
        isn = int.from_bytes(got[frame.l4 + 4 : frame.l4 + 8], "big")
        self.assertEqual(isn, cookies.stamped_isn(self.keys[0], self.flow(service, 32000), announced))


@variants
class SynsThatAReplicaAnswers(Stateless):
    """SYNs with layouts that the ToR's codec does not know go to a replica unchanged."""

    def check(self) -> None:
        service = self.stateless()
        linux, windows = LAYOUTS["LINUX"], LAYOUTS["WINDOWS"]
        frames = [
            self.syn(service, 33000, b""),
            self.syn(service, 33001, cookies.options("mss", 1460, 0, 0)),
            self.syn(service, 33002, cookies.options("mss sack nop nop", 1460, 0, 0)),
            self.syn(service, 33003, cookies.options("nop nop sack mss nop ws", 1460, 7, 0)),
            self.syn(service, 33004, cookies.options("mss nop ws nop nop ts nop nop sack", 1460, 7, OFFERED)),
            self.syn(service, 33005, cookies.options("sack mss ts nop ws", 1460, 7, OFFERED)),
            self.syn(service, 33006, cookies.options(linux, 535, 7, OFFERED)),
            self.syn(service, 33007, cookies.options(windows, 1023, 8, 0)),
            self.syn(service, 33008, cookies.options(windows, 1460, 8, 0), window=1023),
        ]
        for frame in frames:
            with self.counts("service_outcomes", self.outcome(service, "PLAIN_SYN")):
                self.comes(service, frame)
        if self.family == 4:
            segment = packets.tcp(
                self.client, service.address, 33009, 80, flags=SYN, options=cookies.options(linux, 1460, 7, OFFERED)
            )
            frame = self.from_client(
                0x0800, packets.ipv4(self.client, service.address, packets.TCP, segment, options=b"\x01" * 4)
            )
            self.comes(service, frame)


@variants
class AcknowledgementsWithinCookieReach(Stateless):
    """Acknowledgements pass under either key up to the cookie's reach; other keys, clients and ports are dropped."""

    def check(self) -> None:
        service = self.stateless()
        other = self.stateless(keys=1)
        keys = self.keys
        self.keys = [(self.random.getrandbits(32), self.random.getrandbits(32)) for _ in range(2)]
        self.modify("cookie_keys", {"service": service.id}, "set_cookie_keys", **cookie_keys(self.keys, MTU))
        value = cookies.answer_value(0)
        for key in (0, 1):
            for at in (0, 8, 1448, 15360, cookies.STAMPED_REACH - 8):
                self.comes(service, self.stamped(service, 34000, at, value, key))
            for at in (cookies.STAMPED_REACH, cookies.STAMPED_REACH + 800, -8, -1 << 31):
                self.dropped("COOKIE", self.stamped(service, 34000, at, value, key))
            for kind in (cookies.STEADY, cookies.REPAIR):
                for at in (8, cookies.STAMPED_REACH, cookies.LARGE_REACH - 8):
                    self.comes(service, self.stamped(service, 34000, at, cookies.large_value(at, kind), key))
        isn = cookies.stamped_isn(keys[0], self.flow(service, 34000), 1460)
        self.dropped("COOKIE", self.segment(service, 34000, isn + 1, value))
        isn = cookies.stamped_isn(self.keys[0], self.flow(service, 34001), 1460)
        self.dropped("COOKIE", self.segment(service, 34000, isn + 1, value))
        # With one key both parameters hold the same key.
        self.keys = keys
        self.comes(other, self.stamped(other, 34000, 0, value))
        for kind in (cookies.STEADY, cookies.REPAIR):
            # With two keys one of the two reaches would match by chance.
            for at in (cookies.LARGE_REACH, -8, -1 << 31):
                self.dropped("COOKIE", self.stamped(other, 34000, at, cookies.large_value(0, kind)))
            # The timestamp names the cell of the acknowledged number, or one at most 120 before it.
            for cell in (200, 300):
                for ahead, passes in ((0, True), (120, True), (121, False), (255, False), (-1, False)):
                    echo = cookies.large_value((cell - ahead) * cookies.CELL, kind)
                    frame = self.stamped(other, 34000, cell * cookies.CELL + 8, echo)
                    if passes:
                        self.comes(other, frame)
                    else:
                        self.dropped("COOKIE", frame)
        self.dropped("CLASS_FLAGS", self.stamped(other, 34000, 0, value, flags=0))
        self.dropped("COOKIE", self.segment(other, 34000, 1, 0))


@variants
class HandshakesEndAtTheTor(Stateless):
    """A bare acknowledgement of the SYN-ACK is dropped; one with data, FIN or SACK, or of the answer, passes."""

    def check(self) -> None:
        service = self.stateless()
        for segment in (self.stamped, self.bare):
            for key in (0, 1):
                self.dropped("HANDSHAKE", segment(service, 35000, 0, key=key, payload=b""))
            self.comes(service, segment(service, 35000, 0, payload=b"", flags=ACK | FIN))
            self.comes(service, segment(service, 35000, 0))
            self.comes(service, segment(service, 35000, 1024, payload=b""))
        # The client has a later segment of an answer, the first segment of which was lost.
        isn = cookies.stamped_isn(self.keys[0], self.flow(service, 35000), 1460)
        sack = b"\x01\x01" + struct.pack("!BBII", 5, 10, isn + 1449 & 0xFFFFFFFF, isn + 2897 & 0xFFFFFFFF)
        for echo in (cookies.answer_value(0), cookies.large_value(0, cookies.STEADY)):
            options = cookies.stamps(OFFERED, echo)
            fields = {"flags": ACK, "payload": b"", "acknowledgement": isn + 1 & 0xFFFFFFFF}
            self.comes(service, self.plain(service, 35000, options=options + sack, **fields))
            self.dropped("HANDSHAKE", self.plain(service, 35000, options=options, **fields))


@families
class FlowAndSprayedSegments(Stateless):
    """Acknowledgements within an answer go to any replica; starts of answers, and kernel connections, by flow."""

    def check(self) -> None:
        service = self.stateless(policy=RANDOM)
        all_replicas = set(range(len(service.pool.ports)))
        for sport in range(36000, 36006):
            sprayed = {self.comes(service, self.stamped(service, sport, 0, cookies.answer_value(0))) for _ in range(40)}
            self.assertEqual(sprayed, all_replicas, "acknowledgements within an answer must reach every replica")
            home = {self.comes(service, self.stamped(service, sport, 0))}
            self.assertEqual(len(home), 1)
            for frame in (
                self.stamped(service, sport, 0),
                self.stamped(service, sport, 1 << 30, cookies.kernel_value(1)),
                self.stamped(service, sport, 77, cookies.kernel_value(255)),
                self.bare(service, sport, 0),
                self.bare(service, sport, 1 << 20),
                self.bare(service, sport, 0, flags=RST, payload=b""),
                self.stamped(service, sport, 0, cookies.answer_value(0), flags=RST | ACK, payload=b""),
                self.syn(service, sport, cookies.options("mss", 1460, 0, 0)),
            ):
                for _ in range(4):
                    self.comes(service, frame, replicas=list(home))
        # Without blocks the block policy is by flow, so that a replica's soft state is of use.
        service = self.stateless(policy=BLOCK)
        value = cookies.answer_value(640)
        homes = [
            {self.comes(service, self.stamped(service, sport, at, value)) for at in (640, 1448, 9000)}
            for sport in range(37000, 37016)
        ]
        self.assertTrue(all(len(home) == 1 for home in homes))
        self.assertEqual(set().union(*homes), all_replicas)


@families
class BlocksOfLargeAnswers(Stateless):
    """A block of a large answer has one replica, the first block the flow's; blocks are spread under every policy."""

    def check(self) -> None:
        for policy in (RANDOM, BLOCK):
            service = self.stateless(keys=1, policy=policy)
            all_replicas = set(range(len(service.pool.ports)))
            for sport in (38500, 38501):
                home = self.comes(service, self.stamped(service, sport, 0))
                homes = []
                for block in (*range(16), 1023):
                    first, last = block * cookies.LARGE_BLOCK, (block + 1) * cookies.LARGE_BLOCK - 8
                    reached = {
                        self.comes(
                            service,
                            self.stamped(service, sport, at, cookies.large_value(at, kind), payload=payload),
                        )
                        for at in (max(first, 8), first + 1448 * 8, last)
                        for kind, payload in ((cookies.STEADY, b""), (cookies.REPAIR, b"GET / "))
                    }
                    self.assertEqual(len(reached), 1, "a block went to several replicas")
                    homes.append(reached.pop())
                self.assertEqual(homes[0], home, "the replica that began the answer must continue it")
                self.assertEqual(set(homes), all_replicas)
                self.assertLess(max(homes.count(replica) for replica in all_replicas), 12, homes)


@families
class SegmentsFindDeadReplicas(Stateless):
    """A segment for a dead replica finds the death, once, and goes to another one, by flow or sprayed."""

    def check(self) -> None:
        pool = self.add_pool(bound=FOREVER, alive=False)
        self.beat(pool, 2)
        service = self.stateless(pool=pool, slots=[(0, 1)] * 8)
        for frame in (self.stamped(service, 38000, 8, cookies.answer_value(0)), self.stamped(service, 38001, 0)):
            self.comes(service, frame, replicas=[2])
        self.welcomed(
            service,
            self.syn(service, 38002, cookies.options(LAYOUTS["LINUX"], 1460, 7, OFFERED)),
            self.answers(service, 38002, "LINUX", 1460, 7),
        )


class Metered(Stateless):
    """Meters by client, and by service for segments without a cookie, do not affect other segments."""

    def runTest(self) -> None:
        service = self.stateless()
        cell = cookies.client_cell(service.slot_key, self.client)
        value = cookies.answer_value(0)
        good = self.stamped(service, 39000, 8, value)
        elsewhere = self.client
        self.switch.set_meter("plain_meter", cell, 1, burst=3)
        try:
            self.assertIn(self.metered("METER_PLAIN", [good] * 20), range(1, 6))
            # SYNs are still answered, and another client is not limited.
            syn = self.syn(service, 39001, cookies.options(LAYOUTS["LINUX"], 1460, 7, OFFERED))
            self.welcomed(service, syn, self.answers(service, 39001, "LINUX", 1460, 7))
            self.client = CLIENTS[4] + 1
            self.assertNotEqual(cookies.client_cell(service.slot_key, self.client), cell)
            frame = self.stamped(service, 39000, 8, value, src=self.client)
            self.comes(service, frame)
        finally:
            self.client = elsewhere
            self.switch.set_meter("plain_meter", cell, None)
        uncookied = (
            self.stamped(service, 39000, 1 << 30, cookies.kernel_value(1)),
            self.bare(service, 39000, 1 << 20),
            self.bare(service, 39000, 0, flags=RST, payload=b""),
            self.syn(service, 39000, cookies.options("mss", 1460, 0, 0)),
        )
        for frame in uncookied:
            self.switch.set_meter("uncookied_meter", service.id, 1, burst=3)
            try:
                self.assertIn(self.metered("METER_UNCOOKIED", [frame] * 12), range(1, 6))
                self.comes(service, good)
                self.comes(service, self.bare(service, 39000, 0))
            finally:
                self.switch.set_meter("uncookied_meter", service.id, None)


@families
class StatelessErrorsGoToAll(Stateless):
    """ICMP errors go to every live replica, because any may have sent the quoted packet."""

    def check(self) -> None:
        service = self.stateless()
        segment = packets.tcp(service.address, self.client, 80, 40000, options=cookies.stamps(1, 2), payload=b"d" * 500)
        quote = packets.ip_packet(service.address, self.client, packets.TCP, segment)
        router = {4: ip("198.51.100.1"), 6: ip("2001:db8:c::1")}[self.family]
        kind, code = {4: (3, 4), 6: (2, 0)}[self.family]
        message = packets.icmp(router, service.address, kind, code, struct.pack("!I", 1400), quote[:300])
        error = self.ip_frame(service.address, packets.icmp_protocol(router), message, src=router)
        self.send(CLIENT, error)
        came = {self.expect_plain(service, error) for _ in service.pool.ports}
        self.assertEqual(came, set(range(len(service.pool.ports))))


class StatelessServiceWithoutKeys(Stateless):
    """A service without cookie keys lets no plain TCP pass."""

    def runTest(self) -> None:
        service = self.add_service(plain=STATELESS)
        self.keys = [(1, 2)]
        for frame in (
            self.syn(service, 41000, cookies.options(LAYOUTS["LINUX"], 1460, 7, OFFERED)),
            self.stamped(service, 41000, 0),
        ):
            self.dropped("SERVICE_UNCONFIGURED", frame)
