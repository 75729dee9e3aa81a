# SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
"""Strict parser of the wire format: raises the first rule that a packet breaks.

Names and positions of errors are the same as in `host/packet`.
"""

from __future__ import annotations

from collections.abc import Callable

from rivulet_wire import (
    ACK,
    ALLOWED,
    CHECKED,
    CLASS_NAMES,
    CLASSES,
    CONSUMED,
    DELTA,
    EX_ID,
    FIN,
    FORMER,
    FULL,
    HAS_TOKEN,
    HEARTBEAT_VERSION,
    INPUT,
    KINDS,
    LEAST_CLOCK,
    MAX_ATTEMPT,
    MAX_ENTRIES,
    MAX_GAIN,
    MAX_GROUP,
    MAX_UCONTS,
    MAX_WANTS,
    NO_UCONT,
    OFFSET,
    OPTION_KIND,
    OPTION_LENGTH,
    PAD,
    PRIME,
    READY,
    RETIRE,
    RST,
    SYN,
    TIME_VALID,
    TOKEN,
    UCONT,
    URG,
    VERSION,
    internet_checksum,
)


class WireError(Exception):
    """A packet that breaks a rule: the name of the rule, and the offset in bytes within the layer."""

    def __init__(self, name: str, position: int, layer: str = "frame") -> None:
        super().__init__(f"{layer} byte {position}: {name}")
        self.name, self.position, self.layer = name, position, layer


class _Reader:
    def __init__(self, data: bytes, short: str, layer: str, pos: int = 0) -> None:
        self.data, self.short, self.layer, self.pos = data, short, layer, pos

    def take(self, n: int) -> bytes:
        if n > len(self.data) - self.pos:
            raise WireError(self.short, self.pos, self.layer)
        self.pos += n
        return self.data[self.pos - n : self.pos]

    def uint(self, n: int) -> int:
        return int.from_bytes(self.take(n), "big")

    def left(self) -> int:
        return len(self.data) - self.pos

    def rule(self, ok: bool, name: str, position: int) -> None:
        if not ok:
            raise WireError(name, position, self.layer)


def check_frame(frame: bytes) -> None:
    """Raises the WireError of the first rule that an Ethernet frame breaks, as a host would."""
    name, number_low, payload, syn = _check_headers(frame)
    if syn and not payload:
        return  # a bare SYN, or the cookie that answers it
    if CLASSES[name] & 0x80:
        check_response(name, number_low, payload)
    else:
        check_request(name, number_low, payload)


def _check_headers(frame: bytes) -> tuple[str, int, bytes, bool]:
    r = _Reader(frame, "eth_truncated", "frame")
    r.take(6)
    r.take(6)
    ether_type = r.uint(2)
    if ether_type == 0x8100:
        r.take(2)
        at = r.pos
        ether_type = r.uint(2)
        r.rule(ether_type != 0x8100, "eth_tag_twice", at)
    r.rule(ether_type in (0x0800, 0x86DD), "eth_type", r.pos - 2)
    start = r.pos
    tcp, end, pseudo = _check_ipv4(frame, start) if ether_type == 0x0800 else _check_ipv6(frame, start)
    return _check_tcp(frame[:end], tcp, pseudo)


def _check_ipv4(frame: bytes, start: int) -> tuple[int, int, bytes]:
    r = _Reader(frame, "ipv4_truncated", "frame", start)
    r.rule(r.left() >= 20, "ipv4_truncated", len(frame))
    b = frame[start : start + 20]
    r.rule(b[0] >> 4 == 4, "ipv4_version", start)
    r.rule(b[0] & 0xF == 5, "ipv4_options", start)
    length = int.from_bytes(b[2:4], "big")
    r.rule(20 <= length <= r.left(), "ipv4_length", start + 2)
    r.rule(int.from_bytes(b[6:8], "big") & 0x3FFF == 0, "ipv4_fragment", start + 6)
    r.rule(b[9] == 6, "ipv4_protocol", start + 9)
    r.rule(internet_checksum(b) == 0, "ipv4_checksum", start + 10)
    return start + 20, start + length, b[12:20]


def _check_ipv6(frame: bytes, start: int) -> tuple[int, int, bytes]:
    r = _Reader(frame, "ipv6_truncated", "frame", start)
    r.rule(r.left() >= 40, "ipv6_truncated", len(frame))
    b = frame[start : start + 40]
    r.rule(b[0] >> 4 == 6, "ipv6_version", start)
    length = int.from_bytes(b[4:6], "big")
    r.rule(40 + length <= r.left(), "ipv6_length", start + 4)
    r.rule(b[6] == 6, "ipv6_next_header", start + 6)
    return start + 40, start + 40 + length, b[8:40]


def _is_ours(options: bytes) -> bool:
    return len(options) >= 4 and options[0] == OPTION_KIND and options[2:4] == EX_ID.to_bytes(2, "big")


def _find_ours(options: bytes) -> int | None:
    i = 0
    while i < len(options):
        if _is_ours(options[i:]):
            return i
        if options[i] == 0:
            return None
        if options[i] == 1:
            i += 1
        elif i + 1 < len(options):
            i += max(options[i + 1], 2)
        else:
            return None
    return None


def _flags_fit(name: str, flags: int) -> bool:
    connection = flags & (SYN | ACK | FIN | RST | URG)
    if name == "SYN":
        return connection == SYN
    if name == "CLOSE":
        return connection == ACK | FIN
    return connection == ACK or (CLASSES[name] >= 0x80 and connection in (ACK | SYN, ACK | FIN))


def _check_tcp(segment: bytes, start: int, pseudo: bytes) -> tuple[str, int, bytes, bool]:
    r = _Reader(segment, "tcp_truncated", "frame", start)
    for n in (2, 2, 4, 4, 1, 1, 2, 4):
        r.take(n)
    data_offset, flags = segment[start + 12], segment[start + 13]
    header = (data_offset >> 4) * 4
    r.rule(header >= 20 and data_offset & 0xF == 0, "tcp_data_offset", start + 12)
    r.rule(len(segment) - start >= header, "tcp_truncated", len(segment))
    options = segment[start + 20 : start + header]
    syn = bool(flags & SYN)
    if not _is_ours(options):
        found = _find_ours(options)
        r.rule(syn or found is None, "option_not_first", start + 20 + (found or 0))
        raise WireError("option_missing", start + 20)
    if header != (48 if syn else 28):
        raise WireError("option_missing", start + 20) if syn else WireError("tcp_data_offset", start + 12)
    r.rule(options[1] == OPTION_LENGTH, "option_length", start + 21)
    r.rule(options[5] >> 4 == VERSION, "option_version", start + 25)
    r.rule(options[4] in CLASS_NAMES, "class_unknown", start + 24)
    r.rule(options[5] & 0xF == 0, "option_flags", start + 25)
    name = CLASS_NAMES[options[4]]
    r.rule(_flags_fit(name, flags), "tcp_flags", start + 13)
    if syn:
        for i, want in ((0, 2), (1, 4), (4, 4), (5, 2), (6, 8), (7, 10), (16, 3), (17, 3), (19, 0)):
            r.rule(options[8 + i] == want, "syn_options", start + 28 + i)
    tcp = segment[start:]
    total = pseudo + (6).to_bytes(2, "big") + len(tcp).to_bytes(4, "big") + tcp
    r.rule(internet_checksum(total) == 0, "tcp_checksum", start + 16)
    return name, int.from_bytes(options[6:8], "big"), segment[start + header :], syn


def _fields(r: _Reader, *widths: int) -> list[int]:
    return [r.uint(n) for n in widths]


def _sealed_head(r: _Reader) -> int:
    return _fields(r, 4, 4, 4, 6, 2)[1]


def _sealed_tail(r: _Reader) -> None:
    _fields(r, 2, 2, 2, 4, 2, 2, 4, 2)
    at = r.pos
    flags, gain = _fields(r, 1, 1)
    r.rule(flags & ~0x07 == 0, "continuation_flags", at)
    r.rule(gain <= MAX_GAIN or gain >= LEAST_CLOCK, "continuation_gain", at + 1)
    _fields(r, 4, 8, 12)


def _token(r: _Reader) -> None:
    r.short = "token_truncated"
    at = r.pos
    length = r.uint(1)
    r.rule(length > 0, "token_empty", at)
    r.take(length)


def _uconts(r: _Reader, count: int) -> None:
    r.short = "ucont_truncated"
    for _ in range(count):
        at = r.pos
        length = r.uint(2)
        r.rule(length > 0, "ucont_empty", at)
        r.take(length)


def check_request(name: str, number_low: int, payload: bytes) -> None:
    """Raises the WireError of the first rule that a request's payload breaks."""
    r = _Reader(payload, "tor_truncated", "payload")
    _fields(r, 6, 2, 2, 2)
    flags, _, _ = _fields(r, 1, 1, 4)
    r.rule(flags & ~(CHECKED | TIME_VALID) == 0, "tor_flags", 12)
    count, attempt, kinds = _fields(r, 1, 1, 4)
    r.rule(count <= (0 if name == "SYN" else MAX_ENTRIES), "range_count", 18)
    r.rule(attempt <= (0 if name in ("SYN", "NORMAL") else MAX_ATTEMPT), "attempt", 19)
    r.rule(kinds << 2 * count & 0xFFFFFFFF == 0, "range_kinds_unused", 20)
    r.rule(kinds & kinds >> 1 & 0x55555555 == 0, "range_kinds_unknown", 20)
    if name == "SYN":
        r.rule(number_low == 0, "number_low", 0)
        r.short = "tail_truncated"
    else:
        r.short = "head_truncated"
        number = _sealed_head(r)
        r.rule(number & 0xFFFF == number_low, "number_low", 28)
        _check_entries(r, count, kinds)
        r.short = "tail_truncated"
        _sealed_tail(r)
    at = r.pos
    _, covers, wants, uconts, body = _fields(r, 2, 1, 1, 1, 1)
    r.rule(covers in (1, 2), "covers", at + 2)
    r.rule(wants <= MAX_WANTS, "want_count", at + 3)
    r.rule(uconts <= MAX_UCONTS, "ucont_count", at + 4)
    known = INPUT | TOKEN | PAD | {"RESTART": FORMER, "REKEY": RETIRE}.get(name, 0)
    r.rule(body & ~known == 0, "body_flags", at + 5)
    _check_wants(r, wants, uconts)
    if body & TOKEN:
        _token(r)
    if body & FORMER:
        r.short = "former_truncated"
        _fields(r, 16, 2)
    _uconts(r, uconts)
    if body & INPUT:
        _check_input(r, uconts)
    r.rule(bool(body & PAD) or r.left() == 0, "trailing_bytes", r.pos)


def _check_entries(r: _Reader, count: int, kinds: int) -> None:
    r.short = "entry_truncated"
    before, late = -1, False
    for i in range(count):
        kind = kinds >> (30 - 2 * i) & 3
        at = r.pos
        entry = r.take(8)
        first, last, total = (int.from_bytes(entry[a:b], "big") for a, b in ((0, 2), (2, 4), (4, 8)))
        if kind in (KINDS["ORIGINAL"], KINDS["RETRANSMITTED"]):
            r.rule(not late, "entry_range_late", at)
            r.rule(first <= last, "entry_empty", at)
            r.rule(first > before, "entry_order", at)
            before = last
        else:
            late = True
            r.rule(first == last and total == 0, "entry_mark", at)


def _check_wants(r: _Reader, count: int, uconts: int) -> None:
    r.short = "want_truncated"
    for _ in range(count):
        at = r.pos
        offset, length = _fields(r, 8, 4)
        r.rule(length > 0, "want_empty", at + 8)
        r.rule(offset + length < 1 << 64, "want_beyond", at)
        ucont, flags, reserved = _fields(r, 1, 1, 2)
        r.rule(ucont == NO_UCONT or ucont < uconts, "want_ucont", at + 12)
        r.rule(flags & ~0x01 == 0, "want_flags", at + 13)
        r.rule(reserved == 0, "want_reserved", at + 14)


def _check_input(r: _Reader, uconts: int) -> None:
    r.short = "input_truncated"
    at = r.pos
    _, flags, ucont = _fields(r, 2, 1, 1)
    r.rule(flags & ~0x01 == 0, "input_flags", at + 2)
    r.rule(ucont == NO_UCONT or ucont < uconts, "input_ucont", at + 3)
    offset, length = _fields(r, 8, 2)
    r.rule(offset + length < 1 << 64, "input_beyond", at + 4)
    r.take(length)


def check_response(name: str, number_low: int, payload: bytes) -> None:
    """Raises the WireError of the first rule that a response's payload breaks."""
    r = _Reader(payload, "response_truncated", "payload")
    r.rule(r.uint(4) & 0xFFFF == number_low, "number_low", 0)
    _, content, _ = _fields(r, 4, 1, 1)
    allowed = content & ~ALLOWED[name] == 0 and content & (FULL | DELTA) != FULL | DELTA
    r.rule(allowed and (name != "RETRANSMISSION" or bool(content & PRIME)), "content_flags", 8)
    if content & FULL:
        r.short = "tail_truncated"
        _sealed_head(r)
        _sealed_tail(r)
    if content & DELTA:
        _check_delta(r)
    r.short = "response_truncated"
    if content & OFFSET:
        r.take(8)
    if content & UCONT:
        r.short = "ucont_truncated"
        at = r.pos
        count = r.uint(1)
        r.rule(1 <= count <= MAX_UCONTS, "ucont_count", at)
        _uconts(r, count)
    r.short = "response_truncated"
    if content & CONSUMED:
        _fields(r, 2, 8)
    if content & HAS_TOKEN:
        _token(r)
    r.short = "response_truncated"
    body = _BODIES.get(name)
    if body:
        body(r)
    if not ALLOWED[name] & OFFSET:
        r.rule(r.left() == 0, "trailing_bytes", r.pos)


def _check_delta(r: _Reader) -> None:
    r.short = "delta_truncated"
    at = r.pos
    bits = r.uint(1)
    r.rule(not bits & 0x80 and bits & 0x03 != 0x03 and bits & 0x30 != 0x30, "delta_bitmap", at)
    for bit, widths in ((0x01, (4,)), (0x02, (6,)), (0x04, (2,)), (0x08, (2,)), (0x10, (2,)), (0x20, (4,))):
        if bits & bit:
            _fields(r, *widths)
    if bits & 0x40:
        at = r.pos
        r.rule(r.uint(1) & ~0x05 == 0, "continuation_flags", at)
    _fields(r, 2, 12)


def _check_group(r: _Reader) -> None:
    r.short = "group_truncated"
    at = r.pos
    count = r.uint(1)
    r.rule(1 <= count <= MAX_GROUP, "group_count", at)
    for _ in range(count):
        r.take(4)
        _sealed_head(r)
        _sealed_tail(r)


def _check_skip(r: _Reader) -> None:
    at = r.pos
    offset, length = _fields(r, 8, 8)
    r.rule(length > 0 and offset + length < 1 << 64, "skip_beyond", at)


def _check_code(r: _Reader) -> None:
    r.take(2)


_BODIES: dict[str, Callable[[_Reader], None]] = {
    "GROUP": _check_group,
    "SKIP": _check_skip,
    "WAIT": _check_code,
    "NOT_MINE": _check_code,
    "ERROR": _check_code,
    "CHALLENGE": _token,
}


def check_heartbeat(data: bytes) -> None:
    """Raises the WireError of the first rule that a heartbeat breaks. Bytes behind it are Ethernet padding."""
    r = _Reader(data, "heartbeat_truncated", "heartbeat")
    version, flags, _ = _fields(r, 1, 1, 2)
    r.rule(version == HEARTBEAT_VERSION, "heartbeat_version", 0)
    r.rule(flags & ~READY == 0, "heartbeat_flags", 1)
    r.rule(r.uint(1) < 64, "heartbeat_replica", 4)
    _fields(r, 1, 2, 4, 4, 4)
