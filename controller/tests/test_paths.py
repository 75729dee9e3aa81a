"""Routers' messages about the ToRs' tunnels: parsing, bounds and expiry."""

import ipaddress
import struct

import pytest

from rivulet_controller.config import IPAddress
from rivulet_controller.paths import MAX_PATHS, MIN_MTU_BYTES, REPORT_LIFETIME_S, Paths, TooBig, too_big

TOR4, FAR4 = ipaddress.ip_address("10.0.3.254"), ipaddress.ip_address("10.0.2.1")
TOR6, FAR6 = ipaddress.ip_address("fd00:3::fe"), ipaddress.ip_address("fd00:2::1")


def ipv4(source: IPAddress, destination: IPAddress, protocol: int, payload: bytes) -> bytes:
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), 0, 0x4000, 64, protocol, 0)
    return head + source.packed + destination.packed + payload


def ipv6(source: IPAddress, destination: IPAddress, protocol: int, payload: bytes) -> bytes:
    return struct.pack("!IHBB", 6 << 28, len(payload), protocol, 64) + source.packed + destination.packed + payload


def too_big4(quote: bytes, mtu: int, kind: int = 3, code: int = 4, tag: bytes = b"") -> bytes:
    message = struct.pack("!BBHHH", kind, code, 0, 0, mtu) + quote
    return bytes(12) + tag + b"\x08\x00" + ipv4(FAR4, TOR4, 1, message)


def too_big6(quote: bytes, mtu: int, kind: int = 2) -> bytes:
    return bytes(12) + b"\x86\xdd" + ipv6(FAR6, TOR6, 58, struct.pack("!BBHI", kind, 0, 0, mtu) + quote)


QUOTES4 = [
    ipv4(TOR4, FAR4, 4, bytes(8)),
    ipv4(TOR4, FAR4, 41, bytes(8)),
    ipv4(TOR4, FAR4, 17, struct.pack("!4H", 1, 6080, 9, 0)),
]
QUOTES6 = [
    ipv6(TOR6, FAR6, 4, bytes(8)),
    ipv6(TOR6, FAR6, 41, bytes(8)),
    ipv6(TOR6, FAR6, 17, struct.pack("!4H", 1, 6080, 9, 0)),
]


def test_too_big_is_parsed_for_every_tunnel() -> None:
    for quote in QUOTES4:
        for tag in (b"", b"\x81\x00\x00\x07"):
            assert too_big(too_big4(quote, 1400, tag=tag)) == TooBig(TOR4, FAR4, 1400)
    for quote in QUOTES6:
        assert too_big(too_big6(quote, 1400)) == TooBig(TOR6, FAR6, 1400)


@pytest.mark.parametrize(
    "frame",
    [
        too_big4(ipv4(TOR4, FAR4, 6, bytes(8)), 1400),
        too_big4(ipv4(TOR4, FAR4, 17, struct.pack("!4H", 1, 53, 9, 0)), 1400),
        too_big4(QUOTES4[0], 1400, kind=11),
        too_big4(QUOTES4[0], 1400, code=3),
        too_big4(QUOTES4[0][:20], 1400),
        too_big4(QUOTES4[0], MIN_MTU_BYTES - 1),
        too_big4(QUOTES4[0], 0),
        too_big4(QUOTES4[0], 9217),
        too_big6(QUOTES6[0], MIN_MTU_BYTES - 1),
        too_big6(QUOTES6[0], 1 << 31),
        too_big6(QUOTES6[0], 1400, kind=1),
        too_big6(QUOTES6[0][:40], 1400),
        b"",
        bytes(14),
    ],
)
def test_other_messages_are_ignored(frame: bytes) -> None:
    assert too_big(frame) is None


def test_random_frames_raise_nothing() -> None:
    for whole in (too_big4(QUOTES4[2], 1400), too_big6(QUOTES6[2], 1400)):
        for length in range(len(whole)):
            assert too_big(whole[:length]) is None or length >= len(whole) - 4


def test_path_mtu_shrinks_and_expires() -> None:
    paths = Paths()
    assert paths.learn(TooBig(TOR4, FAR4, 1400), 100.0)
    assert not paths.learn(TooBig(TOR4, FAR4, 1450), 101.0), "a path does not grow by a word"
    assert paths.learn(TooBig(TOR4, FAR4, 1300), 200.0)
    assert paths.mtus() == {"10.0.2.1": 1300}
    assert not paths.age(200.0 + REPORT_LIFETIME_S - 1)
    assert paths.age(200.0 + REPORT_LIFETIME_S) and paths.mtus() == {}
    for n in range(2 * MAX_PATHS):
        paths.learn(TooBig(TOR4, ipaddress.IPv4Address(n), 1400), 1.0)
    assert len(paths.mtus()) == MAX_PATHS
