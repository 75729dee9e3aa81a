"""Ports, VLANs, bridging, neighbours and routes of a switch: pure functions (docs/dataplane.md).

IEEE 802.1Q with one tag. VLAN 0 stands for "untagged and in no VLAN": a port that is untagged in no configured VLAN has
its untagged frames there.
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
"""Multicast groups that flood: one for VLAN 0, `FLOOD_GROUPS + id` for a configured VLAN."""


@dataclass(frozen=True, slots=True)
class Hop:
    """A next hop: a neighbour by its port, VLAN (0: untagged) and MAC address; `mtu` in bytes of IP packet."""

    port: int
    vlan: int
    mac: str | None
    """None while it is not known."""
    mtu: int


@dataclass(frozen=True, slots=True)
class Learned:
    """A source that an event told of."""

    vlan: int
    mac: int
    port: int
    doubted: bool = False
    """It was not heard of for long: the switch shall tell when it is seen again."""


def address_int(address: IPAddress) -> int:
    """An address as the 128 bits of the tables; IPv4 as ::ffff:a.b.c.d."""
    return int(address) | (0xFFFF << 32 if address.version == 4 else 0)


def mac_int(mac: str) -> int:
    """A MAC address as an integer."""
    return int(mac.replace(":", ""), 16)


def mac_text(mac: int) -> str:
    """A MAC address as people write it."""
    return mac.to_bytes(6, "big").hex(":")


def hop_name(switch: SwitchConfig, place: Host | Replica) -> str:
    """What a next hop is called: addresses behind one port, VLAN and MAC share it.

    One whose MAC is to be found is called by its address, so that another MAC is one changed row.
    """
    vlan = switch.vlan_of(place)
    return f"{place.port}/{place.mac or place.ip}" + (f"/{vlan}" if vlan else "")


def next_hops(config: Config, switch: SwitchConfig, found: Mapping[str, str] = MappingProxyType({})) -> dict[str, Hop]:
    """The switch's next hops by name. `found`: MAC addresses, by hop name, that the configuration does not give."""
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
    learned: frozenset[Learned],
    guarded: frozenset[int] = frozenset(),
) -> Iterator[Item]:
    """VLANs of the ports, and who is behind which. `guarded`: ports of members of pools with TRODS (trods.py)."""
    for port in switch.ports:
        # What is tagged for a VLAN that the port does not carry stays outside (IEEE 802.1Q ingress filtering).
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
        # What is not VLAN 0 leaves tagged unless a row says otherwise.
        for port in sorted(vlan.untagged):
            yield entry("port_vlans", {"egress_port": port, "vlan": vlan.id}, "send_untagged")
    fixed = {(hop.vlan, mac_int(hop.mac)): hop.port for hop in hops.values() if hop.mac is not None}
    doubted = {(source.vlan, source.mac) for source in learned if source.doubted}
    heard = {(s.vlan, s.mac): s.port for s in sorted(learned, key=lambda s: (s.vlan, s.mac))}
    for (number, mac), port in {**heard, **fixed}.items():
        yield entry("bridges", {"vlan": number, "mac": mac}, "bridge_to", {"port": port})
        # Until the switch's clock is known, every frame may raise an event, since events tell the clock.
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
        # The default route matches anything, which P4Runtime writes as no match at all.
        match: dict[str, int | tuple[int, int]] = {"destination": (value, length)} if length else {}
        yield entry("routes", match, "route_to", {"next_hop": number})
