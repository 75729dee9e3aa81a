# SPDX-License-Identifier: Apache-2.0
"""Builds frames byte by byte, edits fields by name and verifies every checksum.

It uses no packet library. The expected frame is the sent frame with named edits, compared byte for byte.
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass, field, replace

from rivulet_wire import (
    ANSWER,
    CLASSES,
    EX_ID,
    HEARTBEAT_VERSION,
    KINDS,
    OPTION_KIND,
    SETTLED,
    TOR_BLOCK,
    VERSION,
    internet_checksum,
    range_sum,
    with_tag,
)

FIN, SYN, RST, PSH, ACK, URG = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
ICMP, TCP, UDP, ICMPV6 = 1, 6, 17, 58
CHECKED, TIME_VALID = 0x01, 0x02

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def ip(text: str) -> Address:
    return ipaddress.ip_address(text)


def number(address: Address) -> int:
    """The address as the tables' keys have it: 128 bits, IPv4 as ::ffff:a.b.c.d."""
    return int(address) | (0xFFFF << 32 if address.version == 4 else 0)


# ---- building ----


def ethernet(
    dst: bytes, src: bytes, ether_type: int, payload: bytes, vlan: int | None = None, pad: bool = True
) -> bytes:
    tag = b"" if vlan is None else struct.pack("!HH", 0x8100, vlan)
    frame = dst + src + tag + struct.pack("!H", ether_type) + payload
    return frame.ljust(60, b"\0") if pad else frame


def ipv4(
    src: Address,
    dst: Address,
    protocol: int,
    payload: bytes,
    *,
    ttl: int = 64,
    flags: int = 2,
    fragment: int = 0,
    options: bytes = b"",
    tos: int = 0,
    ident: int = 0x1234,
) -> bytes:
    head = struct.pack(
        "!BBHHHBBH4s4s",
        0x45 + len(options) // 4,
        tos,
        20 + len(options) + len(payload),
        ident,
        flags << 13 | fragment,
        ttl,
        protocol,
        0,
        src.packed,
        dst.packed,
    )
    head += options
    return head[:10] + struct.pack("!H", internet_checksum(head)) + head[12:] + payload


def ipv6(
    src: Address, dst: Address, next_header: int, payload: bytes, *, hop_limit: int = 64, traffic_class: int = 0
) -> bytes:
    first = 6 << 28 | traffic_class << 20
    return struct.pack("!IHBB16s16s", first, len(payload), next_header, hop_limit, src.packed, dst.packed) + payload


def ip_packet(src: Address, dst: Address, protocol: int, payload: bytes, **fields: int) -> bytes:
    """An IPv4 or IPv6 packet, by the type of the addresses; `ttl` is the hop limit."""
    if src.version == 4:
        return ipv4(src, dst, protocol, payload, **fields)  # type: ignore[arg-type]
    return ipv6(src, dst, protocol, payload, **({"hop_limit": fields["ttl"]} if "ttl" in fields else {}))


def pseudo(src: Address, dst: Address, protocol: int, length: int) -> bytes:
    if src.version == 4:
        return src.packed + dst.packed + struct.pack("!HH", protocol, length)
    return src.packed + dst.packed + struct.pack("!II", length, protocol)


def with_checksum(src: Address, dst: Address, protocol: int, segment: bytes, at: int) -> bytes:
    """Returns the segment with its checksum filled in at byte `at`."""
    segment = segment[:at] + b"\0\0" + segment[at + 2 :]
    total = internet_checksum(pseudo(src, dst, protocol, len(segment)) + segment)
    if protocol == UDP and total == 0:
        total = 0xFFFF
    return segment[:at] + struct.pack("!H", total) + segment[at + 2 :]


def tcp(
    src: Address,
    dst: Address,
    sport: int,
    dport: int,
    *,
    flags: int = ACK,
    sequence: int = 0x11112222,
    acknowledgement: int = 0x33334444,
    options: bytes = b"",
    payload: bytes = b"",
    data_offset: int | None = None,
    window: int = 0xFFFF,
) -> bytes:
    offset = 5 + len(options) // 4 if data_offset is None else data_offset
    head = struct.pack("!HHIIBBHHH", sport, dport, sequence, acknowledgement, offset << 4, flags, window, 0, 0)
    return with_checksum(src, dst, TCP, head + options + payload, 16)


def udp(src: Address, dst: Address, sport: int, dport: int, payload: bytes) -> bytes:
    return with_checksum(src, dst, UDP, struct.pack("!HHHH", sport, dport, 8 + len(payload), 0) + payload, 6)


def icmp(src: Address, dst: Address, kind: int, code: int, rest: bytes, payload: bytes = b"") -> bytes:
    message = struct.pack("!BBH", kind, code, 0) + rest + payload
    if src.version == 6:
        return with_checksum(src, dst, ICMPV6, message, 2)
    return message[:2] + struct.pack("!H", internet_checksum(message)) + message[4:]


def icmp_protocol(address: Address) -> int:
    return ICMP if address.version == 4 else ICMPV6


SYN_BLOCK = bytes.fromhex("020405a00402080a010203040000000003030e00")


@dataclass(frozen=True)
class Entry:
    """One entry of a proof."""

    kind: int
    first: int
    last: int
    sum: int


def good_range(kind: str, key: tuple[int, int], tag: int, base: int, first: int, last: int) -> Entry:
    """A range of offsets from base with its correct sum."""
    return Entry(KINDS[kind], first, last, range_sum(key, tag, base + first, base + last))


@dataclass(frozen=True)
class Request:
    """A Rivulet request with every field that the switch reads; None: the valid value."""

    name: str = "NORMAL"
    tag: int = 0xA0B0C0D0
    number: int = 1000
    base: int = 1000
    time: int = 0
    epoch: int = 1
    entries: tuple[Entry, ...] = ()
    attempt: int = 0
    range_count: int | None = None
    range_kinds: int | None = None
    tor_block: bytes = bytes(TOR_BLOCK)
    tail: bytes = bytes(range(86)) + b"GET /"
    kind: int = OPTION_KIND
    length: int = 8
    exid: int = EX_ID
    class_: int | None = None
    version_flags: int = VERSION << 4
    number_low: int | None = None
    flags: int | None = None
    cut: int | None = None  # bytes of TCP payload to keep

    def option(self) -> bytes:
        value = CLASSES[self.name] if self.class_ is None else self.class_
        low = self.number_low
        if low is None:
            low = 0 if self.name == "SYN" else self.number & 0xFFFF
        return struct.pack("!BBHBBH", self.kind, self.length, self.exid, value, self.version_flags, low)

    def payload(self) -> bytes:
        count = len(self.entries) if self.range_count is None else self.range_count
        kinds = self.range_kinds
        if kinds is None:
            kinds = 0
            for i, entry in enumerate(self.entries[:16]):
                kinds |= entry.kind << (30 - 2 * i)
        data = self.tor_block + struct.pack("!BBI", count, self.attempt, kinds)
        if self.name != "SYN":
            data += struct.pack("!III", self.tag, self.number & 0xFFFFFFFF, self.base)
            data += (self.time % (1 << 48)).to_bytes(6, "big") + struct.pack("!H", self.epoch)
            for entry in self.entries:
                data += struct.pack("!HHI", entry.first, entry.last, entry.sum)
        data += self.tail
        return data if self.cut is None else data[: self.cut]

    def tcp_flags(self) -> int:
        if self.flags is not None:
            return self.flags
        return {"SYN": SYN, "CLOSE": ACK | FIN}.get(self.name, ACK | PSH)

    def segment(self, src: Address, dst: Address, sport: int, dport: int, sequence: int = 0x11112222) -> bytes:
        options = self.option() + (SYN_BLOCK if self.name == "SYN" else b"")
        return tcp(
            src, dst, sport, dport, flags=self.tcp_flags(), sequence=sequence, options=options, payload=self.payload()
        )

    def with_(self, **fields: object) -> Request:
        return replace(self, **fields)  # type: ignore[arg-type]


# Keys that every replica shares with the ToR unless a test installs others.
BEAT_KEY, BLOCK_KEY, KEY_EPOCH = (0xBEA70001, 0xBEA70002), (0xB10C0001, 0xB10C0002), 5


def heartbeat(
    pool: int,
    replica: int,
    *,
    version: int = HEARTBEAT_VERSION,
    flags: int = 1,
    load: int = 0,
    incarnation: int = 7,
    sequence: int = 1,
    key: tuple[int, int] = BEAT_KEY,
    key_epoch: int = KEY_EPOCH,
) -> bytes:
    head = struct.pack("!BBHBBHII", version, flags, pool, replica, key_epoch, load, incarnation, sequence)
    return with_tag(key, head)


def heartbeat_answer(beat: bytes, tor_id: int, alive: int, plain: int, settled: bool = True) -> bytes:
    """The ToR's answer to a heartbeat, under the same key."""
    flags = ANSWER | (SETTLED if settled else 0)
    head = beat[:1] + bytes([flags]) + beat[2:6] + struct.pack("!H", tor_id) + beat[8:16]
    return with_tag(BEAT_KEY, head + struct.pack("!QQ", alive, plain))


# ---- taking apart ----


@dataclass
class Frame:
    """A frame with the offsets of its headers."""

    data: bytes
    vlan: int | None = None
    ether_type: int = 0
    l3: int = 0
    l4: int = 0
    end: int = 0  # of the IP packet
    src: Address | None = None
    dst: Address | None = None
    protocol: int = -1
    problems: list[str] = field(default_factory=list)

    def fragmented(self) -> bool:
        """An IPv4 fragment."""
        return self.ether_type == 0x0800 and bool(int.from_bytes(self.data[self.l3 + 6 : self.l3 + 8], "big") & 0x3FFF)

    def payload(self) -> bytes:
        """The IP packet without Ethernet padding."""
        return self.data[self.l3 : self.end]


def parse(data: bytes, quoted: bool = False) -> Frame:
    """Finds the headers and verifies every checksum of a frame."""
    frame = Frame(data)
    at = 12
    frame.ether_type = int.from_bytes(data[at : at + 2], "big")
    if frame.ether_type == 0x8100:
        frame.vlan = int.from_bytes(data[14:16], "big") & 0xFFF
        at = 16
        frame.ether_type = int.from_bytes(data[16:18], "big")
    frame.l3 = at + 2
    if frame.ether_type in (0x0800, 0x86DD) and len(data) >= frame.l3 + (20 if frame.ether_type == 0x0800 else 40):
        _parse_ip(frame)
    return frame


def _parse_ip(frame: Frame) -> None:
    data, l3 = frame.data, frame.l3
    if frame.ether_type == 0x0800:
        header = (data[l3] & 0xF) * 4
        frame.l4, frame.end = l3 + header, l3 + int.from_bytes(data[l3 + 2 : l3 + 4], "big")
        frame.protocol = data[l3 + 9]
        frame.src, frame.dst = (ipaddress.IPv4Address(data[l3 + a : l3 + a + 4]) for a in (12, 16))
        if internet_checksum(data[l3 : l3 + header]) != 0:
            frame.problems.append("wrong IPv4 header checksum")
        if int.from_bytes(data[l3 + 6 : l3 + 8], "big") & 0x3FFF:
            return  # a fragment: nothing behind the header to verify
    else:
        frame.l4, frame.end = l3 + 40, l3 + 40 + int.from_bytes(data[l3 + 4 : l3 + 6], "big")
        frame.protocol = data[l3 + 6]
        frame.src, frame.dst = (ipaddress.IPv6Address(data[l3 + a : l3 + a + 16]) for a in (8, 24))
    if frame.end > len(data):
        frame.problems.append(f"the IP packet ends at byte {frame.end} of {len(data)}")
        return
    segment = data[frame.l4 : frame.end]
    names = {TCP: "TCP", UDP: "UDP", ICMPV6: "ICMPv6"}
    if frame.protocol == ICMP:
        if internet_checksum(segment) != 0:
            frame.problems.append("wrong ICMP checksum")
    elif frame.protocol in names:
        name = names[frame.protocol]
        if frame.protocol == UDP and segment[6:8] == b"\0\0":
            return
        if internet_checksum(pseudo(frame.src, frame.dst, frame.protocol, len(segment)) + segment) != 0:
            frame.problems.append(f"wrong {name} checksum")
    elif frame.protocol in (4, 41):
        inner = parse(data[:12] + struct.pack("!H", 0x0800 if frame.protocol == 4 else 0x86DD) + segment)
        frame.problems += [f"inside the tunnel: {problem}" for problem in inner.problems]


# ---- editing ----


def forwarded(
    data: bytes, *, dst: bytes, src: bytes, vlan: int | None = None, ttl: int = -1, stamp: bytes | None = None
) -> bytes:
    """The frame as the ToR forwards it, with new MACs, hop limit, VLAN tag and ToR block."""
    frame = parse(data)
    l3 = bytearray(data[frame.l3 :])
    if frame.ether_type == 0x0800:
        l3[8] += ttl
        header = (l3[0] & 0xF) * 4
        l3[10:12] = b"\0\0"
        l3[10:12] = struct.pack("!H", internet_checksum(bytes(l3[:header])))
    elif frame.ether_type == 0x86DD:
        l3[7] += ttl
    if stamp is not None:
        l4 = frame.l4 - frame.l3
        header = (l3[l4 + 12] >> 4) * 4
        l3[l4 + header : l4 + header + TOR_BLOCK] = stamp
        end = frame.end - frame.l3
        l3[l4:end] = with_checksum(frame.src, frame.dst, TCP, bytes(l3[l4:end]), 16)
    tag = b"" if vlan is None else struct.pack("!HH", 0x8100, vlan)
    return dst + src + tag + struct.pack("!H", frame.ether_type) + bytes(l3)


def tor_block(data: bytes) -> bytes:
    """The 18 bytes of a request that the ToR overwrites."""
    frame = parse(data)
    at = frame.l4 + (data[frame.l4 + 12] >> 4) * 4
    return data[at : at + TOR_BLOCK]


def stamp(
    time: int, tor_id: int, seal_epoch: int, nonce_epoch: int, flags: int, key_epoch: int = 0, tag: int = 0
) -> bytes:
    return time.to_bytes(6, "big") + struct.pack("!HHHBBI", tor_id, seal_epoch, nonce_epoch, flags, key_epoch, tag)
