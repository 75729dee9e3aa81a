"""Finds MAC addresses of hosts by ARP (RFC 826) and neighbour discovery (RFC 4861) where the
configuration has none.

The controller sends a request by packet-out on the host's port and VLAN. A reply arrives by
packet-in and counts only from that port and VLAN, and only for a short time after a request.
`Neighbours` does the bookkeeping only: time is an argument, and the caller sends the frames.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .config import SwitchConfig
from .l2 import hop_name, mac_int, mac_text
from .limits import IPAddress

REFRESH_S = 30.0
"""Interval of requests to a neighbour that answers."""

REQUEST_PAUSE_S = (1.0, 8.0)
"""First and longest pause between requests to a neighbour that does not answer; it doubles in
between."""

REPLY_WINDOW_S = 3.0
"""How long after a request a reply counts."""

STALE_S = 3 * REFRESH_S
"""A neighbour without a reply for this long keeps its row and is shown as stale."""

_ARP, _IPV6, _VLAN = b"\x08\x06", b"\x86\xdd", b"\x81\x00"
_ARP_HEAD = bytes.fromhex("000108000604")
"""Hardware type Ethernet, protocol type IPv4, and their address lengths."""

_BROADCAST = b"\xff" * 6
_HOP_LIMIT = 255
"""Hop limit of neighbour discovery: a smaller one shows that a router forwarded the packet (RFC
4861 section 7.1)."""

_SOLICITATION, _ADVERTISEMENT = 135, 136
_OPTION_SOURCE, _OPTION_TARGET = 1, 2
_NEXT_ICMPV6 = 58
_HEADER = 14
_SHORTEST = 60
"""Shortest Ethernet frame without its check sequence."""


@dataclass(frozen=True, slots=True)
class NeighbourReply:
    """A neighbour's reply: its address and MAC address."""

    ip: IPAddress
    mac: str


def _checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    if len(data) % 2:
        data += b"\0"
    total = sum(int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _icmpv6_sum(source: bytes, destination: bytes, message: bytes) -> int:
    return _checksum(source + destination + len(message).to_bytes(4, "big") + bytes([0, 0, 0, _NEXT_ICMPV6]) + message)


def request_frame(ip: IPAddress, source_ip: IPAddress, source_mac: str, tag: int = 0) -> bytes:
    """An ARP request or neighbour solicitation for `ip`; `tag` is an IEEE 802.1Q VLAN id, 0 for
    none.
    """
    mac, source_address, target = mac_int(source_mac).to_bytes(6, "big"), source_ip.packed, ip.packed
    vlan = _VLAN + tag.to_bytes(2, "big") if tag else b""
    if ip.version == 4:
        frame = _BROADCAST + mac + vlan + _ARP + _ARP_HEAD + b"\0\1" + mac + source_address + bytes(6) + target
        return frame.ljust(_SHORTEST + len(vlan), b"\0")
    group = ipaddress.IPv6Address("ff02::1:ff00:0").packed[:13] + target[13:]
    option = bytes([_OPTION_SOURCE, 1]) + mac
    message = bytes([_SOLICITATION, 0, 0, 0, 0, 0, 0, 0]) + target + option
    message = message[:2] + _icmpv6_sum(source_address, group, message).to_bytes(2, "big") + message[4:]
    head = b"\x60\0\0\0" + len(message).to_bytes(2, "big") + bytes([_NEXT_ICMPV6, _HOP_LIMIT]) + source_address + group
    return b"\x33\x33" + group[12:] + mac + vlan + _IPV6 + head + message


def parse_reply(frame: bytes) -> NeighbourReply | None:
    """Parses a frame as ARP reply or neighbour advertisement; None if it is neither, or malformed."""
    if frame[12:14] == _VLAN:
        frame = frame[:12] + frame[16:]
    kind, rest = frame[12:14], frame[_HEADER:]
    if kind == _ARP:
        if len(rest) < 28 or rest[:6] != _ARP_HEAD or rest[6:8] != b"\0\2":
            return None
        return _reply(ipaddress.IPv4Address(rest[14:18]), rest[8:14])
    if kind != _IPV6 or len(rest) < 40 or rest[0] >> 4 != 6 or rest[6] != _NEXT_ICMPV6 or rest[7] != _HOP_LIMIT:
        return None
    length = int.from_bytes(rest[4:6], "big")
    message = rest[40 : 40 + length]
    if length < 24 or len(message) < length or message[:2] != bytes([_ADVERTISEMENT, 0]):
        return None
    if _icmpv6_sum(rest[8:24], rest[24:40], message) != 0:
        return None
    mac, options = frame[6:12], message[24:]
    while options:
        size = options[1] * 8 if len(options) >= 2 else 0
        if not 0 < size <= len(options):
            return None
        if options[0] == _OPTION_TARGET:
            mac = options[2:8]
        options = options[size:]
    return _reply(ipaddress.IPv6Address(message[8:24]), mac)


def _reply(ip: IPAddress, mac: bytes) -> NeighbourReply | None:
    """The reply, or None for a group or null MAC address."""
    return None if mac[0] & 1 or mac == bytes(6) else NeighbourReply(ip, mac.hex(":"))


@dataclass(slots=True)
class Neighbour:
    """A host that needs its MAC address found and kept current."""

    hop: str
    ip: IPAddress
    port: int
    vlan: int
    tag: int
    """VLAN id of frames to it; 0 for untagged."""
    mac: str | None = None
    asked_at: float = -1e9
    answered_at: float = -1e9
    pause: float = REQUEST_PAUSE_S[0]


class Neighbours:
    """The hosts of one switch without a configured MAC address. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._all: dict[str, Neighbour] = {}

    def follow(self, switch: SwitchConfig) -> None:
        """Takes over the hosts of a configuration; knowledge about those that stay is kept."""
        wanted: dict[str, Neighbour] = {}
        for host in switch.hosts:
            if host.mac is None:
                name, vlan = hop_name(switch, host), switch.vlan_of(host)
                tag = 0 if vlan == switch.untagged_vlan(host.port) else vlan
                wanted[name] = self._all.get(name) or Neighbour(name, host.ip, host.port, vlan, tag)
                wanted[name].tag = tag
        self._all = wanted

    def found(self) -> dict[str, str]:
        """Known MAC addresses by next hop."""
        return {name: n.mac for name, n in self._all.items() if n.mac is not None}

    def recall(self, known: Mapping[str, int], now: float) -> None:
        """Takes MAC addresses by next hop that the switch holds from an earlier run of the
        controller.
        """
        for name, neighbour in self._all.items():
            if neighbour.mac is None and name in known:
                neighbour.mac, neighbour.answered_at = mac_text(known[name]), now

    def due_for_request(self, now: float) -> list[Neighbour]:
        """The hosts that need a request now; counts it as sent."""
        asked = []
        for neighbour in self._all.values():
            unanswered = neighbour.mac is None or neighbour.answered_at < neighbour.asked_at
            if now - neighbour.asked_at < (neighbour.pause if unanswered else REFRESH_S):
                continue
            neighbour.pause = min(neighbour.pause * 2, REQUEST_PAUSE_S[1]) if unanswered else REQUEST_PAUSE_S[0]
            neighbour.asked_at = now
            asked.append(neighbour)
        return asked

    def suspect(self, port: int, vlan: int) -> None:
        """Makes hosts behind a port due at once, since the switch saw a new source there."""
        for neighbour in self._all.values():
            if (neighbour.port, neighbour.vlan) == (port, vlan) and neighbour.mac is not None:
                neighbour.asked_at = -1e9

    def record_reply(self, reply: NeighbourReply, port: int, vlan: int, now: float) -> bool:
        """Takes a reply; True if it changes a MAC address. Ignores replies that were not requested,
        or came on another port or VLAN.
        """
        changed = False
        for neighbour in self._all.values():
            fits = (neighbour.ip, neighbour.port, neighbour.vlan) == (reply.ip, port, vlan)
            if fits and 0 <= now - neighbour.asked_at <= REPLY_WINDOW_S:
                changed |= neighbour.mac != reply.mac
                neighbour.mac, neighbour.answered_at, neighbour.pause = reply.mac, now, REQUEST_PAUSE_S[0]
        return changed

    def view(self, now: float) -> list[dict[str, object]]:
        """For the API: one dict for each host; `state` is found, stale or unknown."""
        return [
            {
                "ip": str(n.ip),
                "port": n.port,
                "vlan": n.vlan,
                "mac": n.mac,
                "state": "unknown" if n.mac is None else "stale" if now - n.answered_at > STALE_S else "found",
            }
            for n in self._all.values()
        ]


def source_address(addresses: Iterable[IPAddress], ip: IPAddress) -> IPAddress:
    """The source address for a request: the one with the longest prefix in common. Raises
    ValueError if none fits.
    """
    same = [address for address in addresses if address.version == ip.version]
    return max(same, key=lambda address: -(int(address) ^ int(ip)).bit_length())


__all__ = ["Neighbour", "NeighbourReply", "Neighbours", "parse_reply", "request_frame", "source_address"]
