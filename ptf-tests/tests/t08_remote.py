# SPDX-License-Identifier: Apache-2.0
"""Replicas outside the rack: tunnels, packets too big for them, heartbeats over UDP."""

import struct
import time

import packets
from layout import CLIENT, PATIENCE_S, TOR, TOR_MAC, UPLINK, host_mac
from packets import BLOCK_KEY, CHECKED, KEY_EPOCH, TIME_VALID, Entry, Request, ip, number
from rack import RackTest, families, variants
from rivulet_wire import block_tag

TUNNEL_SRC = {4: ip("192.0.2.253"), 6: ip("2001:db8::fd")}
TUNNEL_DST = {4: ip("203.0.113.9"), 6: ip("2001:db8:f::9")}
OVERHEAD = {("ip_in_ip", 4): 20, ("ip_in_ip", 6): 40, ("gue", 4): 32, ("gue", 6): 52}


class Remote(RackTest):
    """Helpers: a replica behind the uplink, reached through a tunnel."""

    def add_remote(self, kind: str, outer: int, mtu: int = 1500):
        """Installs a service whose one replica is remote."""
        pool = self.add_pool([UPLINK], alive=False)
        self.hop = hop = 500 + self.new_id()
        self.insert("next_hops", {"next_hop": hop}, "set_next_hop", port=UPLINK, mtu=mtu)
        macs = {"src_mac": int.from_bytes(TOR_MAC, "big"), "dst_mac": int.from_bytes(host_mac(UPLINK), "big")}
        self.insert("neighbours", {"next_hop": hop}, "set_neighbour", vlan=0, **macs)
        key = {"pool": pool.id, "replica": 0}
        self.reach(pool, hop, OVERHEAD[kind, outer])
        src, dst = TUNNEL_SRC[outer], TUNNEL_DST[outer]
        self.modify("encapsulations", key, f"{kind}_v{outer}", next_hop=hop, src=int(src), dst=int(dst))
        source = {"pool": pool.id, "replica": 0, "ingress_port": UPLINK, "remote": 1, "source": number(dst)}
        self.insert("heartbeat_sources", source, "admit_heartbeat", readmitted=0)
        with self.counts("heartbeats", pool.member(0)):  # counted before the next frame is sent
            self.remote_beat(pool, outer)
        return self.add_service(pool)

    def reach(self, pool, hop: int, overhead: int, **changes: int) -> None:
        """Installs the tunnel to the replica."""
        values = {"path_mtu": 0, "key_epoch": KEY_EPOCH, "block_key0": BLOCK_KEY[0], "block_key1": BLOCK_KEY[1]}
        key = {"pool": pool.id, "replica": 0}
        self.modify("replicas", key, "remote", next_hop=hop, overhead=overhead, **(values | changes))

    def remote_beat(self, pool, outer: int, src=None, port: int = UPLINK) -> None:
        src, tor = src or TUNNEL_DST[outer], TOR[outer]
        pool.last_sequence += 1
        datagram = packets.udp(src, tor, 40000, 34997, packets.heartbeat(pool.id, 0, sequence=pool.last_sequence))
        packet = packets.ip_packet(src, tor, packets.UDP, datagram)
        self.send(port, packets.ethernet(TOR_MAC, host_mac(port), 0x0800 if outer == 4 else 0x86DD, packet))

    def tagged(self, inner: packets.Frame, flags: int) -> None:
        """Checks the tag of this request's ToR block."""
        segment = inner.data[inner.l4 :]
        payload = segment[(segment[12] >> 4) * 4 :]
        sequence, tag = (int.from_bytes(part, "big") for part in (segment[4:8], payload[14:18]))
        self.assertEqual((payload[12], payload[13]), (flags, KEY_EPOCH), "flags and key epoch")
        self.assertEqual(tag, block_tag(BLOCK_KEY, segment[20:28], sequence, payload), "the tag of the ToR block")

    def expect_tunnel(self, service, kind: str, outer: int, inner_packet: bytes, tos: int = 0) -> None:
        port, got = self.receive()
        self.assertEqual(port, UPLINK)
        frame = packets.parse(got)
        src, dst = TUNNEL_SRC[outer], TUNNEL_DST[outer]
        self.assertEqual((frame.src, frame.dst), (src, dst))
        protocol = 4 if self.family == 4 else 41
        body = inner_packet
        if kind == "gue":
            sport = int.from_bytes(got[frame.l4 : frame.l4 + 2], "big")
            self.assertGreaterEqual(sport, 0xC000, "the tunnel's source port is not in the dynamic range")
            body = struct.pack("!HHHH", sport, 6080, 12 + len(inner_packet), 0) + bytes([0, protocol, 0, 0]) + body
            protocol = packets.UDP
        if outer == 4:
            wanted = packets.ipv4(src, dst, protocol, body, ident=0, tos=tos)
        else:
            wanted = packets.ipv6(src, dst, protocol, body, traffic_class=tos)
        ether_type = 0x0800 if outer == 4 else 0x86DD
        self.same(packets.ethernet(host_mac(UPLINK), TOR_MAC, ether_type, wanted), got)


def inner_of(sent: bytes, stamp: bytes | None) -> bytes:
    """The sent IP packet with a smaller hop limit and the stamp."""
    out = packets.forwarded(sent, dst=bytes(6), src=bytes(6), stamp=stamp)
    return packets.parse(out).payload()


@variants
class Tunnels(Remote):
    """IP-in-IP and GUE, over IPv4 and IPv6; the ToR block of a request has a tag."""

    def check(self) -> None:
        for kind, outer in OVERHEAD:
            service = self.add_remote(kind, outer)
            frame = self.to_service(service, self.good_request(service))
            self.send(CLIENT, frame)
            result = self.dataplane.poll(0, timeout=PATIENCE_S)
            self.assertIsInstance(result, self.dataplane.PollSuccess, f"no packet in {kind} over IPv{outer}")
            got = bytes(result.packet)
            header = {"ip_in_ip": 0, "gue": 12}[kind]
            inner_at = packets.parse(got).l4 + header
            inner = packets.parse(
                bytes(12) + struct.pack("!H", 0x0800 if self.family == 4 else 0x86DD) + got[inner_at:]
            )
            self.assertEqual(inner.problems, [])
            self.tagged(inner, CHECKED | TIME_VALID)
            # Plain TCP, byte for byte.
            plain = self.plain(service)
            self.send(CLIENT, plain)
            self.expect_tunnel(service, kind, outer, inner_of(plain, None))


@variants
class TunnelsCarryTos(Remote):
    """TOS and ECN bits are copied to the outer header (RFC 6040)."""

    def check(self) -> None:
        for kind, outer in OVERHEAD:
            service = self.add_remote(kind, outer)
            segment = packets.tcp(self.client, service.address, 40000, 80, payload=b"hello")
            if self.family == 4:
                packet = packets.ipv4(self.client, service.address, packets.TCP, segment, tos=0xB9)
            else:
                packet = packets.ipv6(self.client, service.address, packets.TCP, segment, traffic_class=0xB9)
            frame = self.from_client(0x0800 if self.family == 4 else 0x86DD, packet)
            self.send(CLIENT, frame)
            self.expect_tunnel(service, kind, outer, inner_of(frame, None), tos=0xB9)


@variants
class TooBigForTheTunnel(Remote):
    """A packet of exactly the MTU is sent; one byte more is answered with the MTU and a quote of the packet."""

    def check(self) -> None:
        for kind, outer in OVERHEAD:
            service = self.add_remote(kind, outer, mtu=1400)
            room = 1400 - OVERHEAD[kind, outer]
            head = (20 if self.family == 4 else 40) + 20
            fits = self.plain(service, options=b"", payload=b"x" * (room - head))
            self.send(CLIENT, fits)
            self.expect_tunnel(service, kind, outer, inner_of(fits, None))
            for extra in (1, 100):
                frame = self.plain(service, options=b"", payload=b"x" * (room - head + extra))
                with self.counts("service_outcomes", self.outcome(service, "ANSWERED")):
                    self.send(CLIENT, frame)
                    self.expect_too_big(frame, room)
            request = self.good_request(service, tail=b"y" * 1300, tor_block=bytes(range(18)))
            frame = self.to_service(service, request)
            self.send(CLIENT, frame)
            self.expect_too_big(frame, room)

    def expect_too_big(self, sent: bytes, mtu: int, quoted: int = 20) -> None:
        packet = packets.parse(sent).payload()
        tor = TOR[self.family]
        if self.family == 4:
            message = packets.icmp(tor, self.client, 3, 4, struct.pack("!HH", 0, mtu), packet[:28])
            answer = packets.ipv4(tor, self.client, packets.ICMP, message, ident=0, tos=0xC0)
        else:
            message = packets.icmp(tor, self.client, 2, 0, struct.pack("!I", mtu), packet[: 40 + quoted])
            answer = packets.ipv6(tor, self.client, packets.ICMPV6, message)
        ether_type = 0x0800 if self.family == 4 else 0x86DD
        wanted = packets.ethernet(host_mac(CLIENT), TOR_MAC, ether_type, answer, self.vlan)
        got = self.expect(CLIENT, wanted)
        self.assertEqual(len(got), len(wanted), "the quote must be cut off")


class TooBigWithIpv4Options(TooBigForTheTunnel):
    """The quote holds the IPv4 options."""

    def runTest(self) -> None:
        service = self.add_remote("ip_in_ip", 4, mtu=1400)
        options = b"\x01" * 12
        frame = self.plain(service, payload=b"x" * 1380, options=b"")
        packet = packets.ipv4(
            self.client, service.address, packets.TCP, packets.parse(frame).payload()[20:], options=options
        )
        self.send(CLIENT, self.from_client(0x0800, packet))
        message = packets.icmp(TOR[4], self.client, 3, 4, struct.pack("!HH", 0, 1380), packet[:40])
        answer = packets.ipv4(TOR[4], self.client, packets.ICMP, message, ident=0, tos=0xC0)
        self.expect(CLIENT, packets.ethernet(host_mac(CLIENT), TOR_MAC, 0x0800, answer))


@variants
class TooBigOnARoute(TooBigForTheTunnel):
    """Routed packets that are too big get the same answer, except those that must not be answered."""

    def check(self) -> None:
        hop = 500 + self.new_id()
        self.insert("next_hops", {"next_hop": hop}, "set_next_hop", port=7, mtu=1300)
        macs = {"src_mac": int.from_bytes(TOR_MAC, "big"), "dst_mac": int.from_bytes(host_mac(7), "big")}
        self.insert("neighbours", {"next_hop": hop}, "set_neighbour", vlan=0, **macs)
        dst = ip("10.201.0.1") if self.family == 4 else ip("2001:db8:b::1")
        self.insert("routes", {"destination": (number(dst), 128)}, "route_to", next_hop=hop)
        frame = self.ip_frame(dst, packets.TCP, packets.tcp(self.client, dst, 1, 2, payload=b"x" * 1290))
        self.send(CLIENT, frame)
        self.expect_too_big(frame, 1300)
        frame = self.ip_frame(dst, packets.UDP, packets.udp(self.client, dst, 1, 2, b"x" * 1290))
        self.send(CLIENT, frame)
        self.expect_too_big(frame, 1300, quoted=8)
        # Also a packet that looks like a heartbeat by UDP, which the parser reads further.
        frame = self.ip_frame(dst, packets.UDP, packets.udp(self.client, dst, 1, 34997, b"x" * 1290))
        self.send(CLIENT, frame)
        self.expect_too_big(frame, 1300, quoted=8)
        if self.family == 4:
            with self.drops("FRAGMENTATION_NEEDED"):
                frame = self.ip_frame(dst, packets.UDP, packets.udp(self.client, dst, 1, 2, b"x" * 1290), flags=0)
                self.send(CLIENT, frame)
        # ICMP errors, and packets without ports, are not answered.
        kind, code = (3, 1) if self.family == 4 else (1, 0)
        error = packets.icmp(self.client, dst, kind, code, bytes(4), packets.parse(frame).payload()[:1290])
        with self.drops("TOO_BIG_SILENT"):
            self.send(CLIENT, self.ip_frame(dst, packets.icmp_protocol(dst), error))
        with self.drops("TOO_BIG_SILENT"):
            self.send(CLIENT, self.ip_frame(dst, 47, b"x" * 1290))


class TooBigIsMetered(TooBigForTheTunnel):
    """The meter of these answers counts by ingress port."""

    def runTest(self) -> None:
        service = self.add_remote("ip_in_ip", 4, mtu=1400)
        self.switch.set_meter("too_big_meter", CLIENT, 1, burst=2)
        try:
            frame = self.plain(service, payload=b"x" * 1390)
            self.assertIn(self.metered("TOO_BIG_METER", [frame] * 12), range(1, 6))
        finally:
            self.switch.set_meter("too_big_meter", CLIENT, None)


@families
class UdpHeartbeats(Remote):
    """Heartbeats over UDP are accepted from the tunnel's far end at its port; datagrams in transit pass."""

    def check(self) -> None:
        service = self.add_remote("ip_in_ip", self.family)
        pool = service.pool
        with self.counts("heartbeats", pool.member(0)):
            self.remote_beat(pool, self.family)
            time.sleep(0.05)
        wrong = ip("203.0.113.10") if self.family == 4 else ip("2001:db8:f::10")
        with self.drops("HEARTBEAT_REFUSED"):
            self.remote_beat(pool, self.family, src=wrong)
        with self.drops("HEARTBEAT_REFUSED"):
            self.remote_beat(pool, self.family, port=7)
        # In transit to another host.
        dst = self.client
        datagram = packets.udp(wrong, dst, 1, 34997, packets.heartbeat(pool.id, 0))
        frame = self.ip_frame(dst, packets.UDP, datagram, src=wrong)
        self.send(CLIENT, frame)
        self.expect(CLIENT, packets.forwarded(frame, dst=host_mac(CLIENT), src=TOR_MAC))


@variants
class BlocksForOutsideAreTagged(Remote):
    """The ToR block has a tag, under the replica's key, outside the rack only, for every class and proof."""

    def check(self) -> None:
        service = self.add_service()
        self.passes(service, self.good_request(service), flags=CHECKED | TIME_VALID)
        remote = self.add_remote("ip_in_ip", 4)
        ranges = [(2 * i, 2 * i + 1) for i in range(4)]
        mark = Entry(2, 1, 1, 0)
        good = self.good_request
        cases = [(good(remote, ranges[:n]), CHECKED | TIME_VALID) for n in range(1, 5)]
        marked = good(remote)
        cases += [
            (marked.with_(entries=(*marked.entries, mark)), CHECKED | TIME_VALID),
            (good(remote, [(2 * i, 2 * i) for i in range(6)]), TIME_VALID),
            (good(remote, [], name="TIMEOUT", attempt=2), TIME_VALID),
            (good(remote, [], name="RESTART"), TIME_VALID),
            (good(remote, name="CLOSE"), CHECKED | TIME_VALID),
            (Request(name="SYN"), TIME_VALID),
        ]
        for request, flags in cases:
            frame = self.to_service(remote, request)
            self.send(CLIENT, frame)
            port, got = self.receive()
            self.assertEqual(port, UPLINK)
            inner_at = packets.parse(got).l4
            ether_type = struct.pack("!H", 0x0800 if self.family == 4 else 0x86DD)
            inner = packets.parse(bytes(12) + ether_type + got[inner_at:])
            with self.subTest(request.name, entries=len(request.entries)):
                self.assertEqual(inner.problems, [])
                self.tagged(inner, flags)


@variants
class PathsWithASmallerMtu(TooBigForTheTunnel):
    """With a path MTU below the next hop's, exactly that size is sent, and one byte more is answered."""

    def check(self) -> None:
        service = self.add_remote("gue", 4, mtu=1500)
        hop = self.hop
        head = (20 if self.family == 4 else 40) + 20
        for path_mtu, taken in ((1400, 1400), (1600, 1500), (0, 1500)):
            self.reach(service.pool, hop, OVERHEAD["gue", 4], path_mtu=path_mtu)
            room = taken - OVERHEAD["gue", 4]
            fits = self.plain(service, options=b"", payload=b"x" * (room - head))
            self.send(CLIENT, fits)
            self.expect_tunnel(service, "gue", 4, inner_of(fits, None))
            frame = self.plain(service, options=b"", payload=b"x" * (room - head + 1))
            self.send(CLIENT, frame)
            self.expect_too_big(frame, room)
