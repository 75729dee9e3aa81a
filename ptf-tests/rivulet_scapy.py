# SPDX-License-Identifier: GPL-2.0-only
# Reason: this file imports scapy, which is GPL-2.0-only.
# ruff: noqa: RUF012 -- `fields_desc` is a class attribute by scapy's design
"""Rivulet as scapy layers, with which tests build packets (broken ones too) and dissect them.

A request, from Ethernet up:

    >>> p = (Ether() / IP(src="192.0.2.1", dst="198.51.100.80")
    ...      / rivulet_tcp("NORMAL", number=7, sport=40000, dport=80)
    ...      / RivuletRequest(tag=1, number=7, base=4, entries=[entry("ORIGINAL", 4, 7, base=4, tag=1, key=(k0, k1))]))

Counts, kinds, lengths and checksums that are left out are computed. `dissect` turns a frame into these layers;
`rivulet_check.check_frame` raises the error of a malformed one. Fields have the names of the wire format. Where scapy
already has an attribute of that name, the field ends in an underscore (`time_`, `answers_`). The ToR block's `tor_id`
is `stamp_id`, because the sealed tail has a `tor_id` too.
"""

from __future__ import annotations

import struct
from typing import Any

from rivulet_wire import (
    ANSWER,
    CLASS_NAMES,
    CLASSES,
    CONSUMED,
    DELTA,
    EX_ID,
    FORMER,
    FULL,
    HAS_TOKEN,
    HEARTBEAT_ETHERTYPE,
    HEARTBEAT_PORT,
    HEARTBEAT_VERSION,
    INPUT,
    KINDS,
    NO_UCONT,
    OFFSET,
    OPTION_KIND,
    READY,
    SYN,
    TOKEN,
    UCONT,
    VERSION,
    range_sum,
)
from scapy.error import Scapy_Exception
from scapy.fields import (
    BitField,
    ByteField,
    ConditionalField,
    FieldLenField,
    IntField,
    IP6Field,
    LongField,
    PacketField,
    PacketListField,
    ShortField,
    SignedShortField,
    StrField,
    StrFixedLenField,
    StrLenField,
    XIntField,
    XLongField,
    XShortField,
)
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw, bind_layers


class _Part(Packet):
    """A part of a message; the bytes behind it belong to the message."""

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        return b"", s


class ProofEntry(_Part):
    """One entry of a proof; its kind is in the `range_kinds` of the request."""

    name = "proof entry"
    fields_desc = [ShortField("first", 0), ShortField("last", 0), XIntField("sum", 0)]
    #: Not sent with the entry: `RivuletRequest` puts it into `range_kinds`.
    kind = 0

    def copy(self) -> ProofEntry:
        other = super().copy()
        other.kind = self.kind
        return other


class Want(_Part):
    """A byte range that the client requests."""

    name = "want"
    fields_desc = [
        LongField("offset", 0),
        IntField("length", 1),
        ByteField("ucont", NO_UCONT),
        ByteField("flags", 0),
        ShortField("reserved", 0),
    ]


class Ucont(_Part):
    """A user continuation: opaque bytes with their length."""

    name = "user continuation"
    fields_desc = [FieldLenField("length", None, length_of="blob"), StrLenField("blob", b"", lambda p: p.length)]


class Token(_Part):
    """A token with its length."""

    name = "token"
    fields_desc = [
        FieldLenField("length", None, fmt="B", length_of="blob"),
        StrLenField("blob", b"", lambda p: p.length),
    ]


class Former(_Part):
    """The address and port that the MAC covers after the client has moved."""

    name = "former address"
    fields_desc = [IP6Field("address", "::"), ShortField("port", 0)]


class InputData(_Part):
    """Input for the application."""

    name = "input"
    fields_desc = [
        ShortField("stream", 0),
        ByteField("flags", 0),
        ByteField("ucont", NO_UCONT),
        LongField("offset", 0),
        FieldLenField("length", None, length_of="data"),
        StrLenField("data", b"", lambda p: p.length),
    ]


def _head() -> list[Any]:
    return [
        XIntField("tag", 0),
        IntField("number", 0),
        IntField("base", 0),
        BitField("time_", 0, 48),
        ShortField("nonce_epoch", 0),
    ]


def _tail() -> list[Any]:
    return [
        ShortField("seal_epoch", 0),
        ShortField("generation", 0),
        ShortField("tor_id", 0),
        IntField("tcp_base", 0),
        ShortField("start_cwnd", 0),
        ShortField("ssthresh", 0),
        XIntField("wire_base", 0),
        ShortField("mss", 0),
        ByteField("flags", 0),
        ByteField("gain", 0),
        IntField("srtt", 0),
        LongField("connection", 0),
        StrFixedLenField("mac", bytes(12), 12),
    ]


class Continuation(_Part):
    """A sealed transport continuation, whole."""

    name = "continuation"
    fields_desc = _head() + _tail()


class GroupMember(_Part):
    """One member of a GROUP."""

    name = "group member"
    fields_desc = [XIntField("nonce", 0), PacketField("continuation", Continuation(), Continuation)]


class DeltaContinuation(_Part):
    """A continuation as its difference from the client's prediction."""

    name = "delta"
    fields_desc = [
        ByteField("bitmap", 0),
        ConditionalField(IntField("time_low", 0), lambda p: p.bitmap & 0x01),
        ConditionalField(BitField("time_", 0, 48), lambda p: p.bitmap & 0x02),
        ConditionalField(ShortField("tor_id", 0), lambda p: p.bitmap & 0x04),
        ConditionalField(ShortField("seal_epoch", 0), lambda p: p.bitmap & 0x08),
        ConditionalField(SignedShortField("srtt_step", 0), lambda p: p.bitmap & 0x10),
        ConditionalField(IntField("srtt", 0), lambda p: p.bitmap & 0x20),
        ConditionalField(ByteField("flags", 0), lambda p: p.bitmap & 0x40),
        ShortField("check", 0),
        StrFixedLenField("mac", bytes(12), 12),
    ]


_TOR = [
    BitField("tor_time", 0, 48),
    ShortField("stamp_id", 0),
    ShortField("tor_seal_epoch", 0),
    ShortField("tor_nonce_epoch", 0),
    ByteField("tor_flags", 0),
    ByteField("tor_key_epoch", 0),
    XIntField("tor_tag", 0),
]


def _counts() -> list[Any]:
    return [
        FieldLenField("range_count", None, fmt="B", count_of="entries"),
        ByteField("attempt", 0),
        XIntField("range_kinds", None),
    ]


def _host_part() -> list[Any]:
    return [
        ShortField("hold", 0),
        ByteField("covers", 1),
        FieldLenField("want_count", None, fmt="B", count_of="wants"),
        FieldLenField("ucont_count", None, fmt="B", count_of="uconts"),
        ByteField("body_flags", 0),
        PacketListField("wants", [], Want, count_from=lambda p: p.want_count),
        ConditionalField(PacketField("token", Token(), Token), lambda p: p.body_flags & TOKEN),
        ConditionalField(PacketField("former", Former(), Former), lambda p: p.body_flags & FORMER),
        PacketListField("uconts", [], Ucont, count_from=lambda p: p.ucont_count),
        ConditionalField(PacketField("input", InputData(), InputData), lambda p: p.body_flags & INPUT),
        StrField("padding", b""),
    ]


class _Kinds(Packet):
    """Computes `range_kinds` from the entries when building, and sets the entries' kinds when dissecting."""

    range_kinds: int | None
    entries: list[ProofEntry]

    def self_build(self) -> bytes:
        if self.range_kinds is not None:
            return bytes(super().self_build())
        self.range_kinds = 0
        for i, e in enumerate(self.entries[:16]):
            self.range_kinds |= (e.kind & 3) << (30 - 2 * i)
        try:
            return bytes(super().self_build())
        finally:
            self.range_kinds = None

    def post_dissect(self, s: bytes) -> bytes:
        for i, e in enumerate(self.entries[:16]):
            e.kind = (self.range_kinds or 0) >> (30 - 2 * i) & 3
        return s


class RivuletSyn(_Kinds):
    """The payload of a SYN."""

    name = "Rivulet SYN"
    fields_desc = [
        *_TOR,
        *_counts(),
        PacketListField("entries", [], ProofEntry, count_from=lambda p: 0),
        *_host_part(),
    ]


class RivuletRequest(_Kinds):
    """Payload of every other request: ToR block, sealed head, proof, sealed tail, MAC, wanted ranges."""

    name = "Rivulet request"
    fields_desc = [
        *_TOR,
        *_counts(),
        *_head(),
        PacketListField("entries", [], ProofEntry, count_from=lambda p: p.range_count),
        *_tail(),
        *_host_part(),
    ]


class RivuletResponse(Packet):
    """Payload of a response. `body_class` is in the TCP option and decides the type of the body."""

    name = "Rivulet response"

    @staticmethod
    def _is(*names: str) -> Any:
        return lambda p: p.class_name() in names

    fields_desc = [
        IntField("number", 0),
        XIntField("nonce", 0),
        ByteField("content", 0),
        ByteField("answers_", 0),
        ConditionalField(PacketField("continuation", Continuation(), Continuation), lambda p: p.content & FULL),
        ConditionalField(PacketField("delta", DeltaContinuation(), DeltaContinuation), lambda p: p.content & DELTA),
        ConditionalField(LongField("offset", 0), lambda p: p.content & OFFSET),
        ConditionalField(FieldLenField("ucont_count", None, fmt="B", count_of="uconts"), lambda p: p.content & UCONT),
        ConditionalField(
            PacketListField("uconts", [], Ucont, count_from=lambda p: p.ucont_count), lambda p: p.content & UCONT
        ),
        ConditionalField(ShortField("consumed_stream", 0), lambda p: p.content & CONSUMED),
        ConditionalField(LongField("consumed_offset", 0), lambda p: p.content & CONSUMED),
        ConditionalField(PacketField("token", Token(), Token), lambda p: p.content & HAS_TOKEN),
        ConditionalField(FieldLenField("member_count", None, fmt="B", count_of="members"), _is("GROUP")),
        ConditionalField(
            PacketListField("members", [], GroupMember, count_from=lambda p: p.member_count), _is("GROUP")
        ),
        ConditionalField(LongField("skip_offset", 0), _is("SKIP")),
        ConditionalField(LongField("skip_length", 1), _is("SKIP")),
        ConditionalField(ShortField("milliseconds", 0), _is("WAIT")),
        ConditionalField(ShortField("code", 0), _is("NOT_MINE", "ERROR")),
        ConditionalField(PacketField("challenge", Token(), Token), _is("CHALLENGE")),
        StrField("data", b""),
    ]

    def class_name(self) -> str:
        """The class in the option of the TCP header below; DATA if there is no such header yet."""
        fields = option_fields(self.underlayer) if isinstance(self.underlayer, TCP) else None
        return fields["class"] if fields else "DATA"


class RivuletHeartbeat(Packet):
    """The heartbeat that a replica sends to the ToR."""

    name = "Rivulet heartbeat"
    fields_desc = [
        ByteField("version", HEARTBEAT_VERSION),
        ByteField("flags", READY),
        ShortField("pool", 0),
        ByteField("replica", 0),
        ByteField("key_epoch", 0),
        ShortField("load", 0),
        IntField("incarnation", 0),
        IntField("sequence", 0),
        XIntField("tag", 0),
    ]

    @classmethod
    def dispatch_hook(cls, _pkt: bytes = b"", *_args: Any, **_kargs: Any) -> type[Packet]:
        """A flag at the same offset distinguishes answers from heartbeats."""
        return RivuletAnswer if len(_pkt) >= 2 and _pkt[1] & ANSWER else cls


class RivuletAnswer(Packet):
    """The ToR's answer to a heartbeat."""

    name = "Rivulet heartbeat answer"
    fields_desc = [
        ByteField("version", HEARTBEAT_VERSION),
        ByteField("flags", ANSWER),
        ShortField("pool", 0),
        ByteField("replica", 0),
        ByteField("key_epoch", 0),
        XShortField("tor_id", 0),
        IntField("incarnation", 0),
        IntField("sequence", 0),
        XLongField("alive", 0),
        XLongField("plain", 0),
        XIntField("tag", 0),
    ]


bind_layers(Ether, RivuletHeartbeat, type=HEARTBEAT_ETHERTYPE)
bind_layers(UDP, RivuletHeartbeat, dport=HEARTBEAT_PORT)
bind_layers(UDP, RivuletHeartbeat, sport=HEARTBEAT_PORT)


def option(name: str | int, number_low: int = 0) -> tuple[int, bytes]:
    """The TCP option of a class, in scapy's form."""
    value = CLASSES[name] if isinstance(name, str) else name
    return OPTION_KIND, EX_ID.to_bytes(2, "big") + bytes([value, VERSION << 4]) + number_low.to_bytes(2, "big")


def option_fields(tcp: TCP) -> dict[str, Any] | None:
    """Class and number_low of a TCP header whose first option is Rivulet's; None for any other header."""
    first = tcp.options[0] if tcp.options else None
    if not first or first[0] != OPTION_KIND or len(first[1]) != 6 or first[1][:2] != EX_ID.to_bytes(2, "big"):
        return None
    value = first[1][2]
    return {
        "class": CLASS_NAMES.get(value, value),
        "number_low": int.from_bytes(first[1][4:6], "big"),
    }


def rivulet_tcp(name: str, number: int = 0, **fields: Any) -> TCP:
    """TCP header of a segment of this class: option, flags and window; other fields have scapy's defaults."""
    flags = {"SYN": "S", "CLOSE": "FA"}.get(name, "PA")
    options: list[tuple[Any, Any]] = [option(name, number & 0xFFFF)]
    if "S" in str(fields.get("flags", flags)):
        options += syn_block(fields.pop("mss", 1440), fields.pop("ts_value", 0), fields.pop("ts_echo", 0))
    given: dict[str, Any] = {"flags": flags, "window": 0xFFFF, "options": options} | fields
    return TCP(**given)


def syn_block(mss: int, ts_value: int, ts_echo: int, window_scale: int = 14) -> list[tuple[Any, Any]]:
    """The 20 bytes of ordinary options behind Rivulet's in a SYN."""
    return [("MSS", mss), ("SAckOK", b""), ("Timestamp", (ts_value, ts_echo)), ("WScale", window_scale), ("EOL", None)]


def entry(kind: str, first: int, last: int, base: int, tag: int, key: tuple[int, int]) -> ProofEntry:
    """A range of the response numbers first..last with its right sum under a nonce key."""
    e = ProofEntry(first=first - base & 0xFFFFFFFF, last=last - base & 0xFFFFFFFF, sum=range_sum(key, tag, first, last))
    e.kind = KINDS[kind]
    return e


def mark(at: int) -> ProofEntry:
    """An ECN mark, its number relative to base."""
    e = ProofEntry(first=at, last=at)
    e.kind = KINDS["MARK"]
    return e


def dissect(frame: bytes) -> Packet:
    """A frame as layers, with RivuletSyn, RivuletRequest or RivuletResponse above a TCP header with Rivulet's option.

    A payload that ends within a field stays `Raw`.
    """
    try:
        packet = Ether(frame)
    except struct.error:
        return Raw(frame)
    if TCP not in packet:
        return packet
    tcp = packet[TCP]
    fields = option_fields(tcp)
    payload = _tcp_payload(packet)
    if fields is None or not payload:
        return packet
    name = fields["class"]
    layer: Any = RivuletSyn if tcp.flags & SYN else RivuletRequest
    if CLASSES.get(name, 0) >= 0x80:
        layer = RivuletResponse
    try:
        # The class decides which fields follow, so the layer needs the TCP header below while it is dissected.
        top = layer(payload, _underlayer=tcp)
    except (struct.error, IndexError, TypeError, ValueError, Scapy_Exception):
        return packet
    tcp.remove_payload()
    tcp.add_payload(top)
    return packet


def _tcp_payload(packet: Packet) -> bytes:
    """The payload within the IP length, without the Ethernet padding of a short frame."""
    tcp = packet[TCP]
    length = packet[IP].len - packet[IP].ihl * 4 if IP in packet else packet[IPv6].plen
    return bytes(tcp.payload)[: max(length - tcp.dataofs * 4, 0)]
