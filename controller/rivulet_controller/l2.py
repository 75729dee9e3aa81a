"""Ports, VLANs, bridging, neighbours and routes of a switch: pure functions (docs/dataplane.md).

IEEE 802.1Q with one tag. VLAN 0 stands for "untagged and in no VLAN": it carries the untagged
frames of ports that are untagged in no configured VLAN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from .config import Config, Host, Replica, SwitchConfig
from .entry import Item, Multicast, entry
from .limits import IPAddress

FLOOD_GROUP = 1
FLOOD_GROUPS = 4096
"""Multicast groups that flood: `FLOOD_GROUP` for VLAN 0, `FLOOD_GROUPS + id` for a configured
VLAN."""


@dataclass(frozen=True, slots=True)
class Hop:
    """A next hop: a neighbour by its port, VLAN (0: untagged) and MAC address; `mtu` in bytes of IP
    packet.
    """

    port: int
    vlan: int
    mac: str | None
    """MAC address; None while it is unknown."""
    mtu: int


@dataclass(frozen=True, slots=True)
class LearnedSource:
    """A source (MAC address, VLAN, port) that a switch reported in an event."""

    vlan: int
    mac: int
    port: int
    doubted: bool = False
    """The source has not been seen for long: the switch reports its next frame."""


def address_int(address: IPAddress) -> int:
    """An address as the 128 bits of the tables; IPv4 as ::ffff:a.b.c.d."""
    return int(address) | (0xFFFF << 32 if address.version == 4 else 0)


def mac_int(mac: str) -> int:
    """A MAC address as an integer."""
    return int(mac.replace(":", ""), 16)


def mac_text(mac: int) -> str:
    """A MAC address in colon notation."""
    return mac.to_bytes(6, "big").hex(":")


def hop_name(switch: SwitchConfig, place: Host | Replica) -> str:
    """Name of a next hop; addresses behind one port, VLAN and MAC address share it.

    A hop whose MAC address is to be found is named by its IP address, so that a new MAC address
    changes one row.
    """
    vlan = switch.vlan_of(place)
    return f"{place.port}/{place.mac or place.ip}" + (f"/{vlan}" if vlan else "")


def next_hops(config: Config, switch: SwitchConfig, found: Mapping[str, str] = MappingProxyType({})) -> dict[str, Hop]:
    """A switch's next hops by name. `found`: by hop name, MAC addresses that the configuration does
    not give.
    """
    hops: dict[str, Hop] = {}
    places: list[Host | Replica] = [*switch.hosts]
    places += [r for r in config.replicas if r.switch == switch.name]
    for place in places:
        name = hop_name(switch, place)
        hops.setdefault(name, Hop(place.port, switch.vlan_of(place), place.mac or found.get(name), place.mtu))
    return hops


def l2(
    switch: SwitchConfig,
    hops: Mapping[str, Hop],
    clock_known: bool,
    learned: frozenset[LearnedSource],
    guarded: frozenset[int] = frozenset(),
) -> Iterator[Item]:
    """VLANs of the ports, and known MAC addresses. `guarded`: ports of members of pools with TRODS
    (trods.py).
    """
    for port in switch.ports:
        # Drops frames tagged for a VLAN that the port does not carry (IEEE 802.1Q ingress
        # filtering).
        params = {"pvid": switch.untagged_vlan(port), "guarded": int(port in guarded)}
        yield entry("ports", {"ingress_port": port}, "set_filtered_port", params)
    plain = tuple((port, 0) for port in sorted(switch.ports) if switch.untagged_vlan(port) == 0)
    yield Multicast(FLOOD_GROUP, plain)
    yield entry("floods", {"vlan": 0}, "flood", {"group": FLOOD_GROUP})
    for vlan in switch.vlans:
        yield Multicast(FLOOD_GROUPS + vlan.id, tuple((p, 0) for p in sorted({*vlan.untagged, *vlan.tagged})))
        yield entry("floods", {"vlan": vlan.id}, "flood", {"group": FLOOD_GROUPS + vlan.id})
        for port in sorted(vlan.tagged):
            yield entry("vlan_members", {"ingress_port": port, "vlan": vlan.id}, "member")
        # Frames of a VLAN leave tagged unless a row of `port_vlans` exists.
        for port in sorted(vlan.untagged):
            yield entry("port_vlans", {"egress_port": port, "vlan": vlan.id}, "send_untagged")
    fixed = {(hop.vlan, mac_int(hop.mac)): hop.port for hop in hops.values() if hop.mac is not None}
    doubted = {(source.vlan, source.mac) for source in learned if source.doubted}
    learned_ports = {(s.vlan, s.mac): s.port for s in sorted(learned, key=lambda s: (s.vlan, s.mac))}
    for (number, mac), port in {**learned_ports, **fixed}.items():
        yield entry("bridges", {"vlan": number, "mac": mac}, "bridge_to", {"port": port})
        # Until the switch's clock is known, any frame may raise an event: the controller reads the
        # clock from events.
        if clock_known and ((number, mac) in fixed or (number, mac) not in doubted):
            match = {"vlan": number, "mac": mac, "ingress_port": port}
            yield entry("known_sources", match, "source_known")


def routes(config: Config, switch: SwitchConfig, hops: Mapping[str, Hop], numbers: Mapping[str, int]) -> Iterator[Item]:
    """Next hops, their neighbours' MAC addresses where known, and the routes to them."""
    for name, hop in hops.items():
        number = numbers[name]
        yield entry("next_hops", {"next_hop": number}, "set_next_hop", {"port": hop.port, "mtu": hop.mtu})
        if hop.mac is not None:
            yield entry(
                "neighbours",
                {"next_hop": number},
                "set_neighbour",
                {"src_mac": mac_int(switch.mac), "dst_mac": mac_int(hop.mac), "vlan": hop.vlan},
            )
    where: dict[tuple[int, int], int] = {}
    for host in switch.hosts:
        where[address_int(host.ip), 128] = numbers[hop_name(switch, host)]
    for replica in config.replicas:
        if replica.switch == switch.name:
            where.setdefault((address_int(replica.ip), 128), numbers[hop_name(switch, replica)])
    for route in switch.routes:
        length = route.prefix.prefixlen + (96 if route.prefix.version == 4 else 0)
        via = next(host for host in switch.hosts if host.ip == route.via)
        where.setdefault((address_int(route.prefix.network_address), length), numbers[hop_name(switch, via)])
    for (value, length), number in where.items():
        # The default route matches everything; P4Runtime expresses that by leaving the match out.
        match: dict[str, int | tuple[int, int]] = {"destination": (value, length)} if length else {}
        yield entry("routes", match, "route_to", {"next_hop": number})
