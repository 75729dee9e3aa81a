# SPDX-License-Identifier: Apache-2.0
"""Second implementation of the ToR's decisions, from wire-format.md, dataplane.md and the RFCs.

It shares no line with the P4 program. `Model.judge` takes a frame of a client and returns what the switch must do
with it: drop it for a reason, forward it as these bytes, answer it, route it, or send it to the controller.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from program import block_hash, flow_hash
from rivulet_wire import internet_checksum, range_sum

ETH_IPV4, ETH_ARP, ETH_VLAN, ETH_IPV6, ETH_QINQ, ETH_HEARTBEAT = 0x0800, 0x0806, 0x8100, 0x86DD, 0x88A8, 0x88B5
EXTENSIONS = {0, 43, 50, 51, 60, 135, 139, 140}
FRAGMENT_HEADER = 44
SYN_CLASS, NORMAL, PROBE, TIMEOUT, RESTART, REKEY, CLOSE = range(7)
ONCE = {NORMAL, REKEY}
ANSWERING = (NORMAL, PROBE, REKEY)  # their proof covers the number that they answer


class Malformed(Exception):
    """The drop reason with which a parser stops."""


@dataclass(frozen=True)
class Verdict:
    """`kind`: drop, request, plain, answer, routed, punt. `detail`: the drop reason, or the flags of the stamp."""

    kind: str
    detail: str | int = ""
    port: int = 0
    key: tuple[int, ...] | None = None  # key under which the replay defence counts the request


@dataclass
class ServiceModel:
    """A service in the model: every check enforced, block policy."""

    address: bytes  # 16 bytes
    port: int
    keys: dict[int, tuple[tuple[int, int], tuple[int, int]]]
    slots: list[int]  # port of each slot's first candidate
    horizon: int
    id: int
    slot_key: tuple[int, int]
    judge_time: bool = True


@dataclass
class Parsed:
    """Headers of one frame."""

    dst_mac: bytes = b""
    ether_type: int = 0
    is_ip: bool = False
    src: bytes = b""
    dst: bytes = b""
    ttl: int = 0
    protocol: int = -1
    fragment: bool = False
    extension: bool = False
    l4: bytes = b""  # the IP payload, without Ethernet padding
    tcp: bool = False
    request: Request | None = None
    response: bool = False
    bare_syn: bool = False
    arp: bytes | None = None
    solicitation: bytes | None = None
    heartbeat: bytes | None = None
    icmp: tuple[int, int] | None = None
    quote: tuple[bytes, int, bytes, int, str] | None = None  # service, its port, client, its port, kind


@dataclass
class Request:
    """The fields of a request that the switch reads."""

    class_: int = 0
    attempt: int = 0
    kinds: list[int] = field(default_factory=list)
    entries: list[tuple[int, int, int]] = field(default_factory=list)
    tag: int = 0
    number: int = 0
    base: int = 0
    time: int = 0
    epoch: int = 0


def mapped(address: bytes) -> bytes:
    return bytes(10) + b"\xff\xff" + address if len(address) == 4 else address


def u(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "big")


def need(condition: bool, reason: str) -> None:
    if not condition:
        raise Malformed(reason)


# ---- parsing ----


def parse(frame: bytes) -> Parsed:
    """Raises Malformed with the drop reason."""
    p = Parsed()
    need(len(frame) >= 14, "TRUNCATED")
    p.dst_mac, p.ether_type, at = frame[:6], u(frame, 12, 2), 14
    if p.ether_type == ETH_VLAN:
        need(len(frame) >= 18, "TRUNCATED")
        p.ether_type, at = u(frame, 16, 2), 18
        need(p.ether_type not in (ETH_VLAN, ETH_QINQ), "VLAN_STACKED")
    need(p.ether_type != ETH_QINQ, "VLAN_STACKED")
    body = frame[at:]
    if p.ether_type == ETH_ARP:
        need(len(body) >= 28, "TRUNCATED")
        p.arp = body[:28]
    elif p.ether_type == ETH_HEARTBEAT:
        need(len(body) >= 20, "TRUNCATED")
        p.heartbeat = body[:20]
        need(heartbeat_well_formed(p.heartbeat), "HEARTBEAT_FORM")
    elif p.ether_type == ETH_IPV4:
        _ipv4(p, body)
    elif p.ether_type == ETH_IPV6:
        _ipv6(p, body)
    return p


def heartbeat_well_formed(beat: bytes) -> bool:
    return beat[0] == 2 and beat[1] <= 1 and beat[4] < 64


def _ipv4(p: Parsed, body: bytes) -> None:
    need(len(body) >= 20, "TRUNCATED")
    header = (body[0] & 15) * 4
    need(body[0] >> 4 == 4 and header >= 20, "IPV4_HEADER")
    total = u(body, 2, 2)
    need(total >= header, "IPV4_HEADER")
    need(total <= len(body), "TRUNCATED")
    p.is_ip, p.src, p.dst, p.ttl, p.protocol = True, mapped(body[12:16]), mapped(body[16:20]), body[8], body[9]
    p.l4 = body[header:total]
    p.fragment = u(body, 6, 2) & 0x3FFF != 0
    if not p.fragment:
        if p.protocol == 6:
            _tcp(p, body[header:])
        elif p.protocol == 17:
            _udp(p, body[header:])
        elif p.protocol == 1:
            _icmp(p, body[header:])
    # A packet that the parser refuses is dropped for that reason, not for its header checksum.
    need(internet_checksum(body[:header]) == 0, "IPV4_CHECKSUM")


def _ipv6(p: Parsed, body: bytes) -> None:
    need(len(body) >= 40, "TRUNCATED")
    need(body[0] >> 4 == 6, "IPV6_HEADER")
    length = u(body, 4, 2)
    need(length <= len(body) - 40, "TRUNCATED")
    p.is_ip, p.src, p.dst, p.ttl, p.protocol = True, body[8:24], body[24:40], body[7], body[6]
    p.l4 = body[40 : 40 + length]
    p.fragment, p.extension = p.protocol == FRAGMENT_HEADER, p.protocol in EXTENSIONS
    if p.protocol == 6:
        _tcp(p, body[40:])
    elif p.protocol == 17:
        _udp(p, body[40:])
    elif p.protocol == 58:
        _icmp(p, body[40:])


def _udp(p: Parsed, rest: bytes) -> None:
    need(len(rest) >= 8, "TRUNCATED")
    length = u(rest, 4, 2)
    need(8 <= length <= len(p.l4), "UDP_HEADER")
    if u(rest, 2, 2) == 34997 and length == 28:
        p.heartbeat = p.l4[8:28]


def _icmp(p: Parsed, rest: bytes) -> None:
    need(len(rest) >= 8 and len(p.l4) >= 8, "TRUNCATED")
    kind = rest[0]
    p.icmp = (kind, rest[1])
    if p.protocol == 1 and kind in (3, 11, 12):
        _quoted_ipv4(p)
    elif p.protocol == 58 and kind in (1, 2, 3, 4):
        quote = p.l4[8:]
        if len(quote) >= 48 and quote[0] >> 4 == 6 and quote[6] == 6:
            p.quote = (quote[8:24], u(quote, 40, 2), quote[24:40], u(quote, 42, 2), _quoted_kind(quote[40:]))
    elif p.protocol == 58 and kind == 135:
        need(p.ttl == 255 and rest[1] == 0 and len(p.l4) >= 24, "NEIGHBOUR_FORM")
        if len(p.l4) in (24, 32):
            need(len(p.l4) == 24 or p.l4[25] == 1, "NEIGHBOUR_FORM")
            p.solicitation = p.l4[8:24]


def _quoted_ipv4(p: Parsed) -> None:
    quote = p.l4[8:]
    if len(quote) < 28 or quote[0] >> 4 != 4 or quote[9] != 6 or u(quote, 6, 2) & 0x1FFF:
        return
    header = (quote[0] & 15) * 4
    if header >= 20 and len(quote) >= header + 8:
        tcp = quote[header:]
        p.quote = (mapped(quote[12:16]), u(tcp, 0, 2), mapped(quote[16:20]), u(tcp, 2, 2), _quoted_kind(tcp))


def _quoted_kind(tcp: bytes) -> str:
    if len(tcp) < 24:
        return "short"
    return "rivulet" if tcp[20] == 253 and tcp[22:24] == b"RV" else "plain"


def _is_lead(options: bytes) -> bool:
    return len(options) >= 4 and options[0] == 253 and options[2:4] == b"RV"


def _tcp(p: Parsed, rest: bytes) -> None:
    need(len(rest) >= 20, "TRUNCATED")
    header, flags = (rest[12] >> 4) * 4, rest[13]
    need(header >= 20 and len(p.l4) >= header, "TCP_HEADER")
    p.tcp = True
    options, payload, syn = p.l4[20:header], p.l4[header:], bool(flags & 2)
    ours = _is_lead(options)
    if ours and options[1] == 8 and header == (48 if syn else 28):
        _rivulet(p, options, payload, flags, syn)
    elif not syn:
        need(not ours, "OPTION_FORM")
        padding = len(options) - len(options.lstrip(b"\x01"))
        if len(options) >= 8:
            need(not (1 <= padding <= 4 and _is_lead(options[padding:])), "OPTION_FORM")
        if len(options) >= 20 and options[:4] == b"\x01\x01\x08\x0a":
            need(not _is_lead(options[12:]), "OPTION_FORM")


def _rivulet(p: Parsed, options: bytes, payload: bytes, flags: int, syn: bool) -> None:
    class_, low = options[4], u(options, 6, 2)
    need(options[5] >> 4 == 2 and options[5] & 0xF == 0, "OPTION_VERSION")
    if class_ & 0x80:
        p.response = True
        return
    need(class_ <= CLOSE, "CLASS_UNKNOWN")
    r = Request(class_=class_)
    if syn:
        need(class_ == SYN_CLASS and flags & 0x35 == 0, "CLASS_FLAGS")
        need(low == 0, "NUMBER_LOW")
        p.request = r
        if not payload:
            p.bare_syn = True
            return
        need(len(payload) >= 24, "REQUEST_LENGTH")
        need(payload[18] == 0, "ENTRY_COUNT")
        need(payload[19] == 0, "ATTEMPT")
        need(u(payload, 20, 4) == 0, "ENTRY_KINDS")
        return
    need(class_ != SYN_CLASS and flags & 0x34 == 0x10 and bool(flags & 1) == (class_ == CLOSE), "CLASS_FLAGS")
    need(len(payload) >= 44, "REQUEST_LENGTH")
    count, r.attempt, kinds = payload[18], payload[19], u(payload, 20, 4)
    r.tag, r.number, r.base, r.time, r.epoch = (
        u(payload, a, n) for a, n in ((24, 4), (28, 4), (32, 4), (36, 6), (42, 2))
    )
    need(count <= 16 and not (class_ == RESTART and count), "ENTRY_COUNT")
    need(r.attempt == 0 or (r.attempt <= 3 and class_ != NORMAL), "ATTEMPT")
    # The switch extracts at most four entries, from the frame, before it compares lengths.
    need(len(payload) >= 44 + 8 * count, "REQUEST_LENGTH")
    need(low == r.number & 0xFFFF, "NUMBER_LOW")
    all_kinds = [kinds >> (30 - 2 * i) & 3 for i in range(16)]
    r.kinds = all_kinds[:count]
    late = [k < 2 for k in r.kinds]
    need(not any(all_kinds[count:]) and late == sorted(late, reverse=True), "ENTRY_KINDS")
    r.entries = [(u(payload, a, 2), u(payload, a + 2, 2), u(payload, a + 4, 4)) for a in range(44, 44 + 8 * count, 8)]
    p.request = r


# ---- deciding ----


class Model:
    """The rack in the model. `routes`: (network, port)."""

    def __init__(self, own_mac: bytes, own: set[bytes], services: list[ServiceModel]) -> None:
        self.own_mac, self.own = own_mac, own
        self.services = {(s.address, s.port): s for s in services}
        self.service_addresses = {s.address for s in services}
        self.routes: list[tuple[ipaddress.IPv6Network, int]] = []
        self.used: dict[tuple[int, ...], int] = {}

    def judge(self, frame: bytes, clock: int) -> Verdict:
        """The expected verdict on a frame. Remembers the numbers that were used."""
        try:
            p = parse(frame)
        except Malformed as reason:
            return Verdict("drop", str(reason))
        about = p.dst
        if p.arp:
            about = mapped(p.arp[24:28])
        elif p.solicitation:
            about = p.solicitation
        own, service = about in self.own, about in self.service_addresses
        if own or service:
            if p.arp and p.arp[:4] == b"\0\1\x08\0" and p.arp[6:8] == b"\0\1" and p.arp[4:6] == b"\6\4":
                return Verdict("answer")
            if p.solicitation:
                return Verdict("answer")
            echo = {1: (8, 0), 58: (128, 0)}.get(p.protocol)
            if p.icmp and p.icmp == echo and not p.dst_mac[0] & 1:
                return Verdict("answer")
        if p.heartbeat and (own or not p.is_ip):
            return Verdict("drop", "HEARTBEAT_REFUSED" if heartbeat_well_formed(p.heartbeat) else "HEARTBEAT_FORM")
        if service and p.is_ip:
            return self._service(p, clock)
        return self._forward(p, own)

    def _forward(self, p: Parsed, own: bool) -> Verdict:
        if p.dst_mac != self.own_mac:
            return Verdict("drop", "NO_BRIDGE")
        if own:
            return Verdict("punt")
        if not p.is_ip:
            return Verdict("drop", "OWN_ADDRESS")
        address = ipaddress.IPv6Address(p.dst)
        for network, port in self.routes:
            if address in network:
                return Verdict("drop", "TTL_EXPIRED") if p.ttl <= 1 else Verdict("routed", port=port)
        return Verdict("drop", "NO_ROUTE")

    def _service(self, p: Parsed, clock: int) -> Verdict:
        if p.dst_mac[0] & 1:
            return Verdict("drop", "MULTICAST_SERVICE")
        if p.fragment:
            return Verdict("drop", "FRAGMENT")
        if p.extension:
            return Verdict("drop", "EXTENSION_HEADER")
        if p.icmp:
            return self._icmp_error(p)
        if not p.tcp:
            return Verdict("drop", "NOT_SERVED")
        sport, dport = u(p.l4, 0, 2), u(p.l4, 2, 2)
        service = self.services.get((p.dst, dport))
        if service is None:
            return Verdict("drop", "NOT_SERVED")
        if p.response:
            return Verdict("drop", "RESPONSE_CLASS")
        by_flow = service.slots[flow_hash(service.slot_key, p.src, p.dst, sport, dport) & (len(service.slots) - 1)]
        if p.request is None:
            return Verdict("drop", "TTL_EXPIRED") if p.ttl <= 1 else Verdict("plain", port=by_flow)
        verdict = self._checks(p, service, clock)
        if verdict.kind == "drop":
            return verdict
        if p.ttl <= 1:
            return Verdict("drop", "TTL_EXPIRED")
        if p.request.class_ == SYN_CLASS:
            return Verdict("plain" if p.bare_syn else "request", verdict.detail, by_flow, verdict.key)
        r = p.request
        block = block_hash(service.slot_key, r.tag, r.number, r.attempt)
        return Verdict("request", verdict.detail, service.slots[block & (len(service.slots) - 1)], verdict.key)

    def _icmp_error(self, p: Parsed) -> Verdict:
        service = self.services.get((p.quote[0], p.quote[1])) if p.quote else None
        if p.quote is None or service is None or p.quote[0] != p.dst:
            return Verdict("drop", "ICMP_QUOTE")
        if p.ttl <= 1:
            return Verdict("drop", "TTL_EXPIRED")
        if p.quote[4] != "plain":
            return Verdict("copies")
        flow = flow_hash(service.slot_key, p.quote[2], p.quote[0], p.quote[3], p.quote[1])
        return Verdict("plain", port=service.slots[flow & (len(service.slots) - 1)])

    def _checks(self, p: Parsed, service: ServiceModel, clock: int) -> Verdict:
        r = p.request
        assert r is not None
        if r.class_ == SYN_CLASS:
            key = (service.id, 0, r.class_, int.from_bytes(p.src, "big"), u(p.l4, 0, 2), u(p.l4, 4, 4))
            return self._once(key, r, 2)
        if r.class_ == RESTART and r.epoch == 0:
            key = (service.id, 0, r.class_, int.from_bytes(p.src, "big"), u(p.l4, 0, 2), u(p.l4, 4, 4))
            return self._once(key, r, 2)
        if r.class_ != RESTART and r.epoch not in service.keys:
            return Verdict("drop", "KEY_UNKNOWN")
        if r.class_ != RESTART and service.judge_time:
            age = (clock - r.time + (1 << 47)) % (1 << 48) - (1 << 47)
            if age < -100_000:
                return Verdict("drop", "FUTURE")
            if age > service.horizon:
                return Verdict("drop", "STALE")
        ranges = [e for e, kind in zip(r.entries, r.kinds, strict=True) if kind < 2]
        wrong = self._form(r)
        if wrong:
            return Verdict("drop", wrong)
        in_sight = ranges[:4]
        for (first, last, total), kind in zip(in_sight, r.kinds, strict=False):
            if range_sum(service.keys[r.epoch][kind], r.tag, r.base + first, r.base + last) != total:
                return Verdict("drop", "SUM")
        number = 0 if r.class_ == RESTART else r.number
        beyond = r.class_ in ANSWERING and bool(ranges) and (r.number - r.base) % (1 << 32) > in_sight[-1][1]
        proved = 1 if ranges and not beyond else 0
        flags = 3 if ranges and len(ranges) <= 4 else 2
        return self._once((service.id, r.epoch, r.class_, r.tag, number, proved), r, flags)

    @staticmethod
    def _form(r: Request) -> str:
        """Drop reason of the last fault in the first four entries, or of a fault in what they cover."""
        wrong, before, any_range = "", -1, False
        for (first, last, total), kind in list(zip(r.entries, r.kinds, strict=True))[:4]:
            if kind < 2:
                if first > last or first <= before:
                    wrong = "RANGE_ORDER"
                before, any_range = last, True
            elif total or (kind == 2 and first != last) or (kind == 3 and last):
                wrong = "ENTRY_FORM"
        if wrong:
            return wrong
        if r.class_ in ANSWERING:
            if not any_range:
                return "RANGE_MISSING"
            unseen = len(r.kinds) > 4 and r.kinds[4] < 2
            if (r.number - r.base) % (1 << 32) > (0xFFFF if unseen else before):
                return "RANGE_COVER"
        return ""

    def _once(self, key: tuple[int, ...], r: Request, flags: int) -> Verdict:
        allowed = 1 if r.class_ in ONCE else 4
        if self.used.get(key, 0) >= allowed:
            return Verdict("drop", "REPLAY", key=key)
        self.used[key] = self.used.get(key, 0) + 1
        return Verdict("request", flags, key=key)
