"""Path MTUs of the ToRs' tunnels, from routers' ICMP "too big" messages (RFC 792, RFC 1191, RFC
4443).

The ToR passes packets for its own address to the controller, with a limit for each class. A
router's message quotes the outer header of the packet that did not fit: a tunnel from the switch to
a replica. Anyone who can reach the switch can forge such a message, so it counts only within bounds
and for a limited time. Bookkeeping only: time is an argument.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from .limits import IPAddress

MIN_MTU_BYTES = 1280
"""Smallest MTU accepted: the minimum of IPv6 (RFC 8200 section 5). An IPv4 path with a smaller one
loses little."""

MAX_MTU_BYTES = 9216

REPORT_LIFETIME_S = 600.0
"""How long a reported MTU lasts; then the path's full MTU is tried again (RFC 1191 section 6.3)."""

MAX_PATHS = 1024

_VLAN, _IPV4, _IPV6 = b"\x81\x00", b"\x08\x00", b"\x86\xdd"
_TUNNELS = {4, 41}
_UDP, _GUE_PORT = 17, (6080).to_bytes(2, "big")


@dataclass(frozen=True, slots=True)
class TooBig:
    """The path from `source` to `destination` has an MTU of `mtu` bytes."""

    source: IPAddress
    destination: IPAddress
    mtu: int


def too_big(frame: bytes) -> TooBig | None:
    """Parses a "too big" message about a tunnel; None for anything else, and for an MTU out of
    bounds.
    """
    if frame[12:14] == _VLAN:
        frame = frame[:12] + frame[16:]
    kind, packet = frame[12:14], frame[14:]
    if kind == _IPV4:
        header = (packet[0] & 15) * 4 if packet else 0
        message = packet[header:]
        if header < 20 or len(message) < 8 + 28 or packet[9] != 1 or message[:2] != b"\x03\x04":
            return None
        quote, mtu = message[8:], int.from_bytes(message[6:8], "big")
        outer = (quote[0] & 15) * 4
        if quote[0] >> 4 != 4 or outer < 20 or not _is_tunnel(quote[9], quote[outer:]):
            return None
        found = TooBig(ipaddress.IPv4Address(quote[12:16]), ipaddress.IPv4Address(quote[16:20]), mtu)
    elif kind == _IPV6:
        message = packet[40:]
        if len(message) < 8 + 48 or packet[6] != 58 or message[:2] != b"\x02\x00":
            return None
        quote, mtu = message[8:], int.from_bytes(message[4:8], "big")
        if quote[0] >> 4 != 6 or not _is_tunnel(quote[6], quote[40:]):
            return None
        found = TooBig(ipaddress.IPv6Address(quote[8:24]), ipaddress.IPv6Address(quote[24:40]), mtu)
    else:
        return None
    return found if MIN_MTU_BYTES <= mtu <= MAX_MTU_BYTES else None


def _is_tunnel(protocol: int, payload: bytes) -> bool:
    return protocol in _TUNNELS or (protocol == _UDP and payload[2:4] == _GUE_PORT)


class Paths:
    """Path MTUs from one switch, by the replica's address."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, float]] = {}

    def learn(self, found: TooBig, now: float) -> bool:
        """Takes a router's report; True if it lowers a path's MTU."""
        key = str(found.destination)
        mtu, _ = self._known.get(key, (MAX_MTU_BYTES + 1, now))
        if found.mtu >= mtu or (key not in self._known and len(self._known) >= MAX_PATHS):
            return False
        self._known[key] = found.mtu, now
        return True

    def age(self, now: float) -> bool:
        """Drops reports that are too old; True if there were any."""
        old = [key for key, (_, since) in self._known.items() if now - since >= REPORT_LIFETIME_S]
        for key in old:
            del self._known[key]
        return bool(old)

    def mtus(self) -> dict[str, int]:
        """Path MTUs in bytes, by the replica's address."""
        return {key: mtu for key, (mtu, _) in self._known.items()}
