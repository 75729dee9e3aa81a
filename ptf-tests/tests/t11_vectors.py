# SPDX-License-Identifier: Apache-2.0
"""The vectors of docs/wire-vectors.json, which Rust, Python and this program share."""

import packets
from layout import CLIENT, ENFORCE, OFF, PATIENCE_S, TOR, TOR_ID, TOR_MAC, host_mac
from packets import CHECKED, TIME_VALID, Entry, ip, number
from rack import RackTest
from rivulet_wire import load_vectors

VECTORS = load_vectors()
# Verdict of the switch on each invalid vector. Hosts refuse what the switch does not read.
HOSTS = "passes: the hosts refuse it"
ERRORS = {
    "eth_truncated": "TRUNCATED",
    "ipv4_truncated": "TRUNCATED",
    "ipv6_truncated": "TRUNCATED",
    "eth_tag_twice": "VLAN_STACKED",
    "ipv4_version": "IPV4_HEADER",
    "ipv4_checksum": "IPV4_CHECKSUM",
    "ipv6_version": "IPV6_HEADER",
    "ipv4_fragment": "FRAGMENT",
    "ipv6_next_header": "FRAGMENT",
    "option_length": "OPTION_FORM",
    "option_not_first": "OPTION_FORM",
    "option_version": "OPTION_VERSION",
    "option_flags": "OPTION_VERSION",
    "tcp_flags": "CLASS_FLAGS",
    "tor_truncated": "REQUEST_LENGTH",
    "head_truncated": "REQUEST_LENGTH",
    "entry_truncated": "REQUEST_LENGTH",
    "range_count": "ENTRY_COUNT",
    "attempt": "ATTEMPT",
    "range_kinds_unused": "ENTRY_KINDS",
    "entry_range_late": "ENTRY_KINDS",
    "number_low": "NUMBER_LOW",
    "entry_empty": "RANGE_ORDER",
    "entry_order": "RANGE_ORDER",
    "entry_mark": "ENTRY_FORM",
}
BY_NAME = {
    "a tag and nothing behind it": None,  # Linux drops it before the switch reads it
    "an ARP frame": None,  # its address is not the service's
    "IPv4 options": None,  # moves the TCP header, see Ipv4OptionsAndTos
    "a total length beyond the frame": "TRUNCATED",
    "a total length within the header": "IPV4_HEADER",
    "an IPv6 length beyond the frame": "TRUNCATED",
    "UDP over IPv4": None,  # its length field is the TCP sequence number: see UdpHeaders
    "a TCP header of 19 bytes": "TRUNCATED",
    "a data offset beyond the segment": "TCP_HEADER",
    "a data offset of 4": "TCP_HEADER",
    "our option and another behind it": "OPTION_FORM",
    "a NORMAL with SYN": "plain",  # a SYN with Rivulet's option at another data offset
    "another experiment's option": "plain",
    "a segment without options": "plain",
    "a SYN with a third data offset": "plain",
    "request class 7": "CLASS_UNKNOWN",
}


class Vectors(RackTest):
    """Installs the vectors' service and keys; time and replay are off, because the vectors' times are fixed."""

    def install(self) -> None:
        keys = VECTORS["nonce_keys"][0]
        pool = self.add_pool()
        service = self.add_service(pool, modes={"time": OFF, "replay": OFF})
        self.insert(
            "nonce_keys",
            {"service": service.id, "nonce_epoch": keys["epoch"]},
            "set_nonce_keys",
            k0=keys["k"]["k0"],
            k1=keys["k"]["k1"],
            k0_prime=keys["k_prime"]["k0"],
            k1_prime=keys["k_prime"]["k1"],
            usable=1,
        )
        for address in ("198.51.100.80", "2001:db8:1::80"):
            self.insert("services", {"address": number(ip(address)), "port": 80}, "set_service", service=service.id)
            self.insert("addresses", {"address": number(ip(address))}, "service_address")
        for network, length in (("192.0.2.0", 96 + 24), ("2001:db8::", 64)):
            self.insert("routes", {"destination": (number(ip(network)), length)}, "route_to", next_hop=CLIENT)
        self.service = service

    def passed(self, frame: bytes, flags: int) -> None:
        self.send(CLIENT, frame)
        port, got = self.dataplane_receive()
        block = packets.tor_block(got)
        wanted_block = packets.stamp(
            int.from_bytes(block[:6], "big"), TOR_ID, self.service.seal_epoch, self.service.epoch, flags
        )
        self.same(packets.forwarded(frame, dst=host_mac(port), src=TOR_MAC, stamp=wanted_block), got)

    def dataplane_receive(self) -> tuple[int, bytes]:
        result = self.dataplane.poll(0, timeout=PATIENCE_S)
        self.assertIsInstance(result, self.dataplane.PollSuccess, "the packet did not arrive")
        return result.port, bytes(result.packet)


class ValidPackets(Vectors):
    """Requests with right sums pass marked as checked; responses are routed unchanged."""

    def runTest(self) -> None:
        self.install()
        judged = 0
        for vector in VECTORS["packets"]:
            frame = TOR_MAC + bytes.fromhex(vector["frame"])[6:]
            request = vector["request"]
            name = vector["option"]["class"]
            with self.subTest(vector["name"]):
                if request is None and name != "SYN":
                    self.send(1, frame)
                    port, got = self.receive()
                    self.assertEqual(port, CLIENT)
                    self.same(packets.forwarded(frame, dst=host_mac(CLIENT), src=TOR_MAC), got)
                    continue
                if request is None:  # a bare SYN
                    self.send(CLIENT, frame)
                    self.expect_plain(self.service, frame)
                    continue
                ranges = [e for e in request["proof"] if e["kind"] in ("ORIGINAL", "RETRANSMITTED")]
                if name in ("NORMAL", "PROBE", "REKEY") and not ranges:
                    with self.drops("RANGE_MISSING"):
                        self.send(CLIENT, frame)
                elif len(ranges) > 4:
                    self.passed(frame, TIME_VALID)
                elif not request["sums_right"]:
                    with self.drops("SUM"):
                        self.send(CLIENT, frame)
                else:
                    self.passed(frame, TIME_VALID | (CHECKED if ranges else 0))
                    judged += len(ranges)
        self.assertGreater(judged, 30, "the vectors hold proofs")


class InvalidPackets(Vectors):
    """Invalid fields that the switch reads are dropped for their reason; the others pass to the hosts."""

    def runTest(self) -> None:
        self.install()
        seen = set()
        for vector in VECTORS["invalid"]:
            frame = TOR_MAC + bytes.fromhex(vector["frame"])[6:]
            reason = BY_NAME.get(vector["name"], ERRORS.get(vector["error"], HOSTS))
            if len(frame) < 14 or reason is None or ("response" in vector["name"] and reason != "CLASS_FLAGS"):
                continue
            if vector["layer"] == "frame" and "truncated" in vector["error"]:
                destination = None
            else:
                destination = packets.parse(frame).dst
            if destination is not None and destination not in (ip("198.51.100.80"), ip("2001:db8:1::80")):
                continue  # a response: the switch does not check its content
            # Some vectors that the hosts refuse have no proof either, which is not their subject.
            self.set_checks(self.service, range_mode=OFF if reason in (HOSTS, "plain") else ENFORCE)
            with self.subTest(vector["name"]):
                if reason in (HOSTS, "plain"):
                    self.send(CLIENT, frame)
                    _, got = self.dataplane_receive()
                    self.assertEqual(len(got), len(frame))
                else:
                    with self.drops(reason):
                        self.send(CLIENT, frame)
                seen.add(reason)
        self.assertGreater(len(seen), 15)


class NonceVectors(Vectors):
    """Nonces of the vectors, r(x) ^ r(x+1) under their keys, as the sum of a range of one number."""

    def runTest(self) -> None:
        self.install()
        by_key: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for k0, k1, tag, x, nonce in VECTORS["nonces"]:
            by_key.setdefault((k0, k1), []).append((tag, x, nonce))
        known = {(k0, k1, tag, x): nonce for k0, k1, tag, x, nonce in VECTORS["nonces"]}
        epoch, tested = 1000, 0
        for (k0, k1), nonces in by_key.items():
            pairs = [
                (tag, x, y, nonce ^ known[k0, k1, tag, y])
                for tag, x, nonce in nonces
                for y in self.ends(known, k0, k1, tag, x)
            ]
            if not pairs:
                continue
            epoch += 1
            words = {"k0": k0, "k1": k1, "k0_prime": k0, "k1_prime": k1}
            key = {"service": self.service.id, "nonce_epoch": epoch}
            self.insert("nonce_keys", key, "set_nonce_keys", usable=1, **words)
            for tag, x, y, total in pairs[:40]:
                last = (y - x - 1) & 0xFFFFFFFF
                for kind in (0, 1):
                    request = packets.Request(
                        tag=tag, number=x, base=x, epoch=epoch, entries=(Entry(kind, 0, last, total),)
                    )
                    self.passes_with(request)
                    tested += 1
                bad = request.with_(entries=(Entry(0, 0, last, total ^ 1),))
                with self.drops("SUM"):
                    self.send(CLIENT, self.to_service(self.service, bad))
        self.assertGreater(tested, 20, "the vectors hold numbers that are at most 65,536 apart")

    @staticmethod
    def ends(known, k0: int, k1: int, tag: int, x: int) -> list[int]:
        """Numbers of the vectors before which a range from x can end."""
        candidates = [(x + step) & 0xFFFFFFFF for step in (1, 2, 3, 7, 8, 100, 65536)]
        return [y for y in candidates if (k0, k1, tag, y) in known]

    def passes_with(self, request) -> None:
        frame = self.to_service(self.service, request)
        self.passed(frame, CHECKED | TIME_VALID)


class HeartbeatVectors(Vectors):
    """Invalid heartbeats are dropped as malformed, valid ones of unknown replicas as refused."""

    def runTest(self) -> None:
        for vector in VECTORS["heartbeats"]:
            with self.drops("HEARTBEAT_REFUSED"):
                body = bytes.fromhex(vector["bytes"])
                self.send(1, packets.ethernet(TOR_MAC, host_mac(1), 0x88B5, body))
        for vector in VECTORS["invalid_heartbeats"]:
            body = bytes.fromhex(vector["bytes"])
            with self.subTest(vector["name"]), self.drops("TRUNCATED" if len(body) < 20 else "HEARTBEAT_FORM"):
                self.send(1, packets.ethernet(TOR_MAC, host_mac(1), 0x88B5, body, pad=False))
        self.assertIn(4, TOR)
