"""Checks across entries of the rack's description: references to names, and conflicting addresses,
ports and numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

from . import limits, service_tls, trods
from .config import MAX_POOLS, MAX_SERVICES, Config, Host, Replica, Service, SwitchConfig

Mistake = tuple[tuple[str | int, ...], str]
"""Path in the file, and what to do about it."""


def references(config: Config) -> Iterator[Mistake]:
    """Yields each dangling reference and each conflict between entries, with its path."""
    switches = {s.name: s for s in config.switches}
    named = {
        "switches": [s.name for s in config.switches],
        "replicas": [r.name for r in config.replicas],
        "services": [s.name for s in config.services],
    }
    for kind, all_names in named.items():
        first = {name: index for index, name in reversed(list(enumerate(all_names)))}
        for index, name in enumerate(all_names):
            if first[name] != index:
                yield (kind, index, "name"), f"{name!r} appears twice: names are unique"
    names = {r.name for r in config.replicas}
    places: dict[tuple[str, str], str] = {}
    for index, replica in enumerate(config.replicas):
        switch = switches.get(replica.switch)
        if switch is None:
            yield ("replicas", index, "switch"), f"there is no switch {replica.switch!r}"
        elif replica.port not in switch.ports:
            yield (
                ("replicas", index, "port"),
                f"switch {switch.name!r} has no port {replica.port} (it has {list(switch.ports)})",
            )
        else:
            yield from _vlan(switch, replica, ("replicas", index, "vlan"))
        other = places.setdefault((replica.switch, str(replica.ip)), replica.name)
        if other != replica.name:
            yield ("replicas", index, "ip"), f"{replica.ip} is already the address of replica {other!r}"
    yield from _switch_references(config)
    yield from _address_conflicts(config)
    yield from _agent_limits(config)
    yield from trods.mistakes(config)
    if config.checks == "host":
        yield from _host_checks(config)
    yield from service_tls.mistakes(config)
    for user, replicas in config.listen.agents_users.items():
        for place, name in enumerate(replicas):
            if name not in names:
                yield ("listen", "agents_users", user, place), f"there is no replica {name!r}"
    if len(config.services) > MAX_SERVICES:
        yield ("services",), f"{MAX_SERVICES} at most"
    if len({service.pool_name for service in config.services}) > MAX_POOLS:
        yield ("services",), f"{MAX_POOLS} pools at most; let some services share one"
    owners: dict[tuple[str, int], str] = {}
    pools: dict[str, Service] = {}
    for index, service in enumerate(config.services):
        if service.affinity == "client" and service.plain == "none":
            yield ("services", index, "affinity"), "client: is for plain TCP, which `plain: none` refuses"
        for place, name in enumerate(service.replicas):
            if name not in names:
                yield ("services", index, "replicas", place), f"there is no replica {name!r}"
            if name in service.replicas[:place]:
                yield ("services", index, "replicas", place), f"{name!r} appears twice"
        for place, address in enumerate(service.addresses):
            owner = owners.setdefault((str(address), service.port), service.name)
            if owner != service.name or address in service.addresses[:place]:
                yield (
                    ("services", index, "addresses", place),
                    f"{address} port {service.port} is already served by {owner!r}",
                )
        pool = pools.setdefault(service.pool_name, service)
        if set(pool.replicas) != set(service.replicas) or pool.liveness != service.liveness:
            yield (
                ("services", index, "pool"),
                f"services {pool.name!r} and {service.name!r} share a pool: give them the same replicas and liveness",
            )
        if len(service.replicas) > service.slots:
            yield (
                ("services", index, "slots"),
                f"{len(service.replicas)} replicas need at least that many slots",
            )


def _host_checks(config: Config) -> Iterator[Mistake]:
    """Settings that have no effect, or no protection, where the ToR makes no checks."""
    for index, switch in enumerate(config.switches[1:], 1):
        yield (
            ("switches", index, "name"),
            f"{switch.name!r}: with `checks: host` all replicas are behind one ToR, since the ToR block for a replica"
            " of another rack needs a tag, which this program does not compute",
        )
    for index, service in enumerate(config.services):
        if service.checks.model_fields_set:
            yield (
                ("services", index, "checks"),
                "the ToR makes none of these checks with `checks: host`: leave them out",
            )
        for name in sorted(service.meters.model_fields_set - {"icmp_error"}):
            yield (
                ("services", index, "meters", name),
                "the ToR does not meter classes of requests with `checks: host`: leave it out",
            )


def _switch_references(config: Config) -> Iterator[Mistake]:
    """Checks ports, numbers, hosts and routes of the switches."""
    numbers: dict[int, str] = {}
    for index, switch in enumerate(config.switches):
        other = numbers.setdefault(switch.number, switch.name)
        if other != switch.name:
            yield ("switches", index, "number"), f"{switch.number} is already the number of switch {other!r}"
        for place, port in enumerate(switch.ports):
            if port in switch.ports[:place]:
                yield ("switches", index, "ports", place), f"port {port} appears twice"
        yield from _vlans(switch, index)
        neighbours: dict[str, str | None] = {}
        for place, host in enumerate(switch.hosts):
            if host.port not in switch.ports:
                yield (
                    ("switches", index, "hosts", place, "port"),
                    f"switch {switch.name!r} has no port {host.port} (it has {list(switch.ports)})",
                )
            if neighbours.setdefault(str(host.ip), host.mac) != host.mac:
                yield ("switches", index, "hosts", place, "ip"), f"{host.ip} has two MAC addresses"
            elif host.mac is None and not any(a.version == host.ip.version for a in switch.addresses):
                yield (
                    ("switches", index, "hosts", place, "ip"),
                    f"to ask for its MAC, switch {switch.name!r} needs an IPv{host.ip.version} address (or give `mac`)",
                )
            yield from _vlan(switch, host, ("switches", index, "hosts", place, "vlan"))
        hops: dict[str, str] = {}
        for place, route in enumerate(switch.routes):
            if str(route.via) not in neighbours:
                yield (
                    ("switches", index, "routes", place, "via"),
                    f"{route.via} is not one of the hosts of switch {switch.name!r}",
                )
            other_hop = hops.setdefault(str(route.prefix), str(route.via))
            if other_hop != str(route.via):
                yield (
                    ("switches", index, "routes", place, "prefix"),
                    f"{route.prefix} already has the next hop {other_hop}: give a prefix one next hop",
                )
            if route.prefix.num_addresses == 1 and route.prefix.network_address in switch.addresses:
                yield (
                    ("switches", index, "routes", place, "prefix"),
                    f"{route.prefix} is an address of switch {switch.name!r} itself: remove the route",
                )
            if route.prefix.version != route.via.version:
                yield (
                    ("switches", index, "routes", place, "via"),
                    f"{route.via} cannot be the next hop of {route.prefix}: both must be IPv4, or both IPv6",
                )
        for replica in config.replicas:
            here = replica.switch == switch.name
            if here:
                continue
            if not any(replica.ip in route.prefix for route in switch.routes):
                yield (
                    ("switches", index),
                    f"switch {switch.name!r} has no route to replica {replica.name!r} ({replica.ip}) of another switch",
                )
            if not any(address.version == replica.ip.version for address in switch.addresses):
                yield (
                    ("switches", index, "addresses"),
                    f"the tunnel to replica {replica.name!r} needs an IPv{replica.ip.version} address"
                    f" of switch {switch.name!r}",
                )


def _agent_limits(config: Config) -> Iterator[Mistake]:
    """Checks the limits that a replica's agent enforces over all of its services (limits.toml)."""
    if len(config.switches) - 1 > limits.TUNNELS:
        yield ("switches",), f"a replica accepts tunnels from {limits.TUNNELS} switches of other racks at most"
    count: dict[str, int] = {}
    beats: dict[str, dict[str, int]] = {}
    for index, service in enumerate(config.services):
        for name in service.replicas:
            count[name] = count.get(name, 0) + 1
            if count[name] == limits.SERVICES + 1:
                yield ("services", index, "replicas"), f"replica {name!r} has more than {limits.SERVICES} services"
            pools = beats.setdefault(name, {})
            before = sum(pools.values())
            # A replica sends one heartbeat for each pool, at the interval of the pool's first
            # service.
            pools.setdefault(service.pool_name, 1_000_000 // round(service.heartbeat * 1e6))
            if before <= limits.HEARTBEATS_PER_SECOND < sum(pools.values()):
                yield (
                    ("services", index, "heartbeat"),
                    f"replica {name!r} would send more than {limits.HEARTBEATS_PER_SECOND} heartbeats a second: let"
                    " services of the same replicas share a `pool`, or set a longer `heartbeat`",
                )


def _address_conflicts(config: Config) -> Iterator[Mistake]:
    """Checks for addresses with two owners, two entries for one switch, and a MAC address behind
    two ports.
    """
    served = {address: service.name for service in config.services for address in service.addresses}
    servers: dict[tuple[str, int], str] = {}
    for index, switch in enumerate(config.switches):
        other = servers.setdefault((switch.address, switch.device_id), switch.name)
        if other != switch.name:
            yield (
                ("switches", index, "address"),
                f"device {switch.device_id} at {switch.address} is already switch {other!r}",
            )
        for place, address in enumerate(switch.addresses):
            if address in served:
                yield (
                    ("switches", index, "addresses", place),
                    f"{address} is an address of service {served[address]!r}: the switch needs one of its own",
                )
        neighbours: list[tuple[Host | Replica, tuple[str | int, ...]]] = []
        neighbours += [(h, ("switches", index, "hosts", place)) for place, h in enumerate(switch.hosts)]
        neighbours += [(r, ("replicas", at)) for at, r in enumerate(config.replicas) if r.switch == switch.name]
        ports: dict[tuple[int, str], int] = {}
        for neighbour, path in neighbours:
            if neighbour.ip in served:
                yield (*path, "ip"), f"{neighbour.ip} is an address of service {served[neighbour.ip]!r}"
            elif neighbour.ip in switch.addresses:
                yield (*path, "ip"), f"{neighbour.ip} is an address of switch {switch.name!r} itself"
            if neighbour.mac is None:
                continue
            port = ports.setdefault((switch.vlan_of(neighbour), neighbour.mac), neighbour.port)
            if port != neighbour.port:
                yield (*path, "mac"), f"{neighbour.mac} is already behind port {port}"
            if neighbour.mac == switch.mac:
                yield (*path, "mac"), f"{neighbour.mac} is the MAC address of switch {switch.name!r} itself"


def _vlans(switch: SwitchConfig, index: int) -> Iterator[Mistake]:
    """Checks that each VLAN is listed once, with existing ports, and each port is untagged in at
    most one VLAN.
    """
    seen: set[int] = set()
    untagged: dict[int, int] = {}
    for place, vlan in enumerate(switch.vlans):
        where = ("switches", index, "vlans", place)
        if vlan.id in seen:
            yield (*where, "id"), f"VLAN {vlan.id} appears twice"
        seen.add(vlan.id)
        for kind, ports in (("untagged", vlan.untagged), ("tagged", vlan.tagged)):
            for position, port in enumerate(ports):
                if port not in switch.ports:
                    yield (
                        (*where, kind, position),
                        f"switch {switch.name!r} has no port {port} (it has {list(switch.ports)})",
                    )
                if port in ports[:position]:
                    yield (*where, kind, position), f"port {port} appears twice"
        for position, port in enumerate(vlan.untagged):
            if port in vlan.tagged:
                yield (*where, "tagged"), f"port {port} cannot carry VLAN {vlan.id} both tagged and untagged"
            other = untagged.setdefault(port, vlan.id)
            if other != vlan.id:
                yield (*where, "untagged", position), f"port {port} is already untagged in VLAN {other}"


def _vlan(switch: SwitchConfig, place: Host | Replica, path: tuple[str | int, ...]) -> Iterator[Mistake]:
    if place.vlan is not None and not switch.carries(place.port, place.vlan):
        yield path, f"port {place.port} of switch {switch.name!r} does not carry VLAN {place.vlan}: add it to `vlans`"
