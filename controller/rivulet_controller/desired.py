"""The entries that a switch should hold, as pure functions of configuration, keys, numbers and
slots (docs/dataplane.md).

They come in named fragments (tuples of entries), so that a change of one service affects one
fragment. A fragment with unchanged inputs is the same object as before (`lru_cache`), which lets
the writer skip it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from .config import Config, Keys, PlainMode, Replica, Service, SwitchConfig
from .entry import Digest, Item, Meter, Multicast, default, entry
from .keys import RACK_RING, KeyRing, Kind, State, TorKeys, derived, words
from .l2 import Hop, LearnedSource, address_int, hop_name, l2, mac_int, next_hops, routes
from .modes import Mode
from .names import Names
from .numbers import Numbers, Tor
from .slots import drained, round_robin
from .state import Pairs
from .trods import plain_sources

ORDER = (
    "tor", "vlan_members", "ports", "punts", "known_sources", "bridges", "floods", "port_vlans",
    "next_hops", "neighbours", "routes",
    "pools", "replicas", "encapsulations", "heartbeat_keys", "heartbeat_sources", "second_chances",
    "plain_sources", "slots",
    "nonce_keys", "cookie_keys", "service_checks", "service_config", "services", "addresses",
)  # fmt: skip
"""Tables in the order of insertion; deletion is in reverse. A service comes last, so it is never
live before its keys."""

COPIES_GROUPS = 1024
"""Multicast group `COPIES_GROUPS + pool` copies to all members of a pool; lower groups flood VLANs
(l2.py)."""

SKETCH_MASK = 262143
REPLAY_LIMIT = 262144
OPENINGS_LIMIT = 32768
"""Parameters of the ToR's sketches (docs/dataplane.md): words of a row minus one, and the keys that
each sketch accepts in 4.19 s, an eighth of its cells."""

EVENT_RATE = 100
"""Digests a second for each kind of event that packets alone can cause."""

TOO_BIG_RATE = 100
"""ICMP "too big" answers a second for each port."""

PLAIN_CELLS = 4096
"""Cells of `plain_meter`; the hash of a client's address picks one."""

SETTLE_HEARTBEATS = 3
"""Heartbeat intervals, beside the liveness bound, for which a ToR with a new pool waits before it
excludes members."""

MTU_MIN = 576
"""MTU of a pool without members, in bytes."""

TUNNEL_OVERHEAD = {("ip_in_ip", 4): 20, ("ip_in_ip", 6): 40, ("gue", 4): 32, ("gue", 6): 52}
"""Bytes that a tunnel adds, by kind and by IP version of the outer header."""

Fragment = tuple[Item, ...]


def _switch(names: Names, switch: SwitchConfig, tor: Tor) -> Iterator[Item]:
    v4 = next((a for a in switch.addresses if a.version == 4), None)
    v6 = next((a for a in switch.addresses if a.version == 6), None)
    yield default(
        "tor",
        "set_tor",
        {
            "clock_offset": tor.clock_offset,
            "time_valid": int(tor.time_valid),
            "tor_id": tor.tor_id,
            "mac": mac_int(switch.mac),
            "ipv4": int(v4) if v4 else 0,
            "ipv6": int(v6) if v6 else 0,
            "sketch_key0": tor.sketch_keys[0],
            "sketch_key1": tor.sketch_keys[1],
            "sketch_mask": SKETCH_MASK,
            "replay_limit": REPLAY_LIMIT,
            "openings_limit": OPENINGS_LIMIT,
        },
    )
    for kind in ("CHECK_FAILED", "UNKNOWN_SOURCE", "UNJUDGED", "NO_REPLICA"):
        yield _rate("event_meter", names.value("event_kind_t", kind), EVENT_RATE)
    for port in switch.ports:
        yield _rate("too_big_meter", port, TOO_BIG_RATE)
        for kind, rate in switch.own_meters.of_classes().items():
            yield _rate("own_meter", port * 8 + names.value("own_class_t", kind.upper()), rate)
    yield Digest(names.digest)


def _rate(meter: str, index: int, rate: int) -> Meter:
    """Limits a cell to `rate` packets a second, with a burst of a tenth of a second but at least
    ten packets.
    """
    burst = max(rate // 10, 10)
    return Meter(meter, index, rate, burst, rate, burst)


@lru_cache(maxsize=64)
def _plain_meters(rate: int) -> Fragment:
    """One cell's limit, the same for all cells of `plain_meter`."""
    return tuple(_rate("plain_meter", cell, rate) for cell in range(PLAIN_CELLS))


def _addresses(config: Config, switch: SwitchConfig, live: frozenset[str]) -> Iterator[Item]:
    own = {address_int(address) for address in switch.addresses}
    for value in sorted(own):
        yield entry("addresses", {"address": value}, "own_address")
    served = {address_int(a) for service in config.services if service.name in live for a in service.addresses}
    for value in sorted(served - own):
        yield entry("addresses", {"address": value}, "service_address")


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a pool, as one switch reaches it."""

    index: int
    replica: Replica
    hop: int
    port: int
    mac: str
    """MAC address within the rack; empty for a remote replica."""
    remote: bool
    keys: tuple[TorKeys, ...]
    path_mtu: int
    """MTU of the tunnel's path as routers reported it, in bytes; 0 if none did."""
    mtu: int
    """Longest IP packet of a client that reaches the replica unfragmented, in bytes."""


@lru_cache(maxsize=4096)
def _pool(
    number: int,
    members: tuple[Member, ...],
    bound_us: int,
    settle_us: int,
    readmitted: tuple[int, ...],
    without_heartbeat: frozenset[int],
    switch: SwitchConfig,
) -> Fragment:
    items: list[Item] = []
    group = COPIES_GROUPS + number
    items.append(Multicast(group, tuple((m.port, m.index) for m in sorted(members, key=lambda m: (m.port, m.index)))))
    bitmap = sum(1 << m.index for m in members if m.index not in without_heartbeat)
    items.append(
        entry(
            "pools",
            {"pool": number},
            "set_pool",
            {"members": bitmap, "bound": bound_us, "settle": min(settle_us, 0xFFFF_FFFF), "copies_group": group},
        )
    )
    for member, again in zip(members, readmitted, strict=True):
        replica = member.replica
        key = {"pool": number, "replica": member.index}
        if member.remote:
            overhead = TUNNEL_OVERHEAD[replica.tunnel, replica.ip.version]
            usable = next((k for k in member.keys if k.usable), None)
            block_key0, block_key1 = words(usable.block) if usable else (0, 0)
            tunnel = {"next_hop": member.hop, "overhead": overhead, "path_mtu": member.path_mtu}
            tag = {
                "key_epoch": _wire_epoch(usable.epoch) if usable else 0,
                "block_key0": block_key0,
                "block_key1": block_key1,
            }
            items.append(entry("replicas", key, "remote", tunnel | tag))
            source = next(a for a in switch.addresses if a.version == replica.ip.version)
            items.append(
                entry(
                    "encapsulations",
                    key,
                    f"{replica.tunnel}_v{replica.ip.version}",
                    {"next_hop": member.hop, "src": int(source), "dst": int(replica.ip)},
                )
            )
        else:
            items.append(entry("replicas", key, "rack", {"next_hop": member.hop}))
            items.append(entry("encapsulations", key, "to_rack", {"next_hop": member.hop}))
            source_key = {"pool": number, "ingress_port": member.port, "mac": mac_int(member.mac)}
            items.append(entry("second_chances", source_key, "handed_on_by", {"replica": member.index}))
        # Of two epochs with the same low byte (256 apart), the newer one is kept.
        for tor_key in {_wire_epoch(k.epoch): k for k in member.keys}.values():
            k0, k1 = words(tor_key.heartbeat)
            items.append(
                entry(
                    "heartbeat_keys",
                    {**key, "key_epoch": _wire_epoch(tor_key.epoch)},
                    "set_heartbeat_key",
                    {"k0": k0, "k1": k1, "newest": int(tor_key.newest)},
                )
            )
        source_value = address_int(replica.ip) if member.remote else mac_int(member.mac)
        items.append(
            entry(
                "heartbeat_sources",
                {**key, "ingress_port": member.port, "remote": int(member.remote), "source": source_value},
                "admit_heartbeat",
                {"readmitted": again},
            )
        )
    return tuple(items)


def _wire_epoch(epoch: int) -> int:
    """The low byte of an epoch of the keys shared with ToRs, as heartbeats carry it."""
    return epoch & 0xFF


def _members(
    config: Config,
    switch: SwitchConfig,
    service: Service,
    numbers: Numbers,
    hops: Mapping[str, Hop],
    ring: KeyRing,
    path_mtus: Mapping[str, int],
) -> tuple[Member, ...]:
    """The members of a service's pool, as this switch reaches them.

    Leaves out replicas in maintenance, and local ones without a known MAC address.
    """
    by_name = {replica.name: replica for replica in config.replicas}
    members = []
    for name, index in sorted(numbers.replicas[service.pool_name].items(), key=lambda item: item[1]):
        replica = by_name[name]
        if replica.maintenance:
            continue
        keys = ring.tor_keys(service.pool_name, name)
        if replica.switch == switch.name:
            hop = hop_name(switch, replica)
            mac = hops[hop].mac
            if mac is not None:
                number = numbers.next_hops[switch.name][hop]
                members.append(Member(index, replica, number, replica.port, mac, False, keys, 0, hops[hop].mtu))
        else:
            route = max((r for r in switch.routes if replica.ip in r.prefix), key=lambda r: r.prefix.prefixlen)
            host = next(h for h in switch.hosts if h.ip == route.via)
            hop = hop_name(switch, host)
            number = numbers.next_hops[switch.name][hop]
            path_mtu = path_mtus.get(str(replica.ip), 0)
            mtu = min(path_mtu or hops[hop].mtu, hops[hop].mtu) - TUNNEL_OVERHEAD[replica.tunnel, replica.ip.version]
            members.append(Member(index, replica, number, host.port, "", True, keys, path_mtu, mtu))
    return tuple(members)


@lru_cache(maxsize=16384)
def _slot_set(number: int, pairs: Pairs) -> Fragment:
    return tuple(
        entry("slots", {"slot_set": number, "slot": slot}, "set_slot", {"first": first, "second": second})
        for slot, (first, second) in enumerate(pairs)
    )


def flow_slots(
    config: Config,
    service: Service,
    numbers: Numbers,
    slots: Mapping[str, Pairs],
    weights: Mapping[str, int],
    away: frozenset[str],
) -> Pairs:
    """A service's slots for flows, with `away` replicas moved to second place; switches and agents
    get the same slots.
    """
    indices = numbers.replicas[service.pool_name]
    there = {indices[r.name]: weights[r.name] for r in config.replicas if r.name in indices and not r.maintenance}
    gone = frozenset(indices[name] for name in away if indices.get(name) in there)
    return drained(slots.get(service.name, ()), gone, there)


@lru_cache(maxsize=4096)
def _round_robin(size: int, weights: tuple[tuple[int, int], ...]) -> Pairs:
    return round_robin(size, dict(weights))


def slot_key(numbers: Numbers, service: Service) -> bytes:
    """The key that hashes flows to a service's slots; the same at every switch for the life of the
    service.
    """
    return derived(numbers.secret, "slots", service.name)


def flow_set(service: int) -> int:
    """Number of the slot set for flows of a service."""
    return 2 * service


def spray_set(service: Service, number: int) -> int:
    """Number of the slot set for requests of a service; only round robin has a set besides the one
    for flows.
    """
    return 2 * number + 1 if service.policy == "round_robin" else flow_set(number)


def _plain(plain: PlainMode, number: int, ring: KeyRing, mtu: int, items: list[Item], at_tor: bool) -> str:
    """The mode of a service's plain TCP, by the member of `plain_t`; adds the cookie keys of a
    stateless service to `items` where the ToR checks cookies.

    Without a usable cookie key the mode is KERNEL, which keeps a flow on one replica: no replica
    can answer without state yet.
    """
    keys = ring.cookies() if plain == "stateless" else None
    if keys is None:
        return "KERNEL" if plain == "stateless" else plain.upper()
    (current0, current1), (other0, other1) = (words(key.secret) for key in keys)
    row = {"current0": current0, "current1": current1, "other0": other0, "other1": other1, "mtu": mtu}
    if at_tor:
        items.append(entry("cookie_keys", {"service": number}, "set_cookie_keys", row))
    return "STATELESS"


@lru_cache(maxsize=16384)
def _service(
    service: Service,
    number: int,
    pool: int,
    ring: KeyRing,
    keys: Keys,
    names: Names,
    slot_key: bytes,
    mtu: int,
    plain: PlainMode,
) -> Fragment:
    items: list[Item] = []
    at_tor = names.checks == "tor"
    for key in ring.of(Kind.NONCE) if at_tor else ():
        items.append(
            entry(
                "nonce_keys",
                {"service": number, "nonce_epoch": key.epoch},
                "set_nonce_keys",
                {
                    **dict(zip(("k0", "k1", "k0_prime", "k1_prime"), words(key.k) + words(key.k_prime), strict=True)),
                    "usable": int(key.state is not State.WITHDRAWN),
                },
            )
        )
    seal, nonce = ring.usable(Kind.SEAL), ring.usable(Kind.NONCE)
    checks = service.checks
    modes = {
        f"{check}_mode": names.value("check_mode_t", getattr(checks, check).upper() if at_tor else "OFF")
        for check in ("key", "time", "range", "sum", "replay", "meter")
    }
    items.append(
        entry(
            "service_checks",
            {"service": number},
            "set_checks",
            {
                **modes,
                "drop_unjudged": int(at_tor and checks.unjudged == "drop"),
                "horizon": round(keys.horizon * 1e6),
                "seal_epoch": seal.epoch if seal else 0,
                "nonce_epoch": nonce.epoch if nonce else 0,
            },
        )
    )
    served = _plain(plain, number, ring, mtu, items, at_tor)
    mask = service.slots - 1
    slot_key0, slot_key1 = words(slot_key)
    items.append(
        entry(
            "service_config",
            {"service": number},
            "configure",
            {
                "pool": pool,
                "policy": names.value("policy_t", service.policy.upper()),
                "spray_set": spray_set(service, number),
                "spray_mask": mask,
                "flow_set": flow_set(number),
                "flow_mask": mask,
                "plain": names.value("plain_t", served),
                "affinity": names.value("affinity_t", service.affinity.upper()),
                "slot_key0": slot_key0,
                "slot_key1": slot_key1,
            },
        )
    )
    for address in service.addresses:
        match = {"address": address_int(address), "port": service.port}
        items.append(entry("services", match, "set_service", {"service": number}))
    for cell, rate in service.meters.of_classes().items() if at_tor else ():
        items.append(_rate("service_meters", number * 8 + names.value("service_meter_t", cell.upper()), rate))
    if service.meters.icmp_error is not None:
        items.append(_rate("icmp_error_meter", number, service.meters.icmp_error))
    if at_tor and service.meters.uncookied is not None and plain == "stateless":
        items.append(_rate("uncookied_meter", number, service.meters.uncookied))
    return tuple(items)


def desired(
    names: Names,
    config: Config,
    switch: SwitchConfig,
    tor: Tor,
    numbers: Numbers,
    rings: Mapping[str, KeyRing],
    slots: Mapping[str, Pairs],
    weights: Mapping[str, int],
    draining: frozenset[str],
    readmitted: Mapping[tuple[int, int], int],
    learned: frozenset[LearnedSource] = frozenset(),
    found: Mapping[str, str] = MappingProxyType({}),
    path_mtus: Mapping[str, int] = MappingProxyType({}),
    modes: Mapping[str, Mode] = MappingProxyType({}),
    mismatched: Mapping[str, frozenset[str]] = MappingProxyType({}),
    without_heartbeat: frozenset[tuple[int, int]] = frozenset(),
) -> dict[str, Fragment]:
    """All entries that one switch should hold, by fragment.

    `weights`: the replicas' weights in force. `readmitted`: by (pool, replica) numbers, the count
    of exclusions up to which a replica takes plain TCP again. `learned`: sources reported by
    events. `found`: MAC addresses, by next hop, that the configuration does not give. `path_mtus`:
    path MTUs of tunnels, by replica's address. `modes`: by service, the mode of plain TCP during a
    change. `mismatched`: by service, replicas that get none of its new clients because their
    content differs. `without_heartbeat`: members by (pool, replica) numbers that get no traffic
    before their first heartbeat. A service without a nonce key is left out: it is not live before
    its keys.
    """
    hops = next_hops(config, switch, found)
    live = frozenset(s.name for s in config.services if rings.get(s.name, KeyRing()).of(Kind.NONCE))
    fragments: dict[str, Fragment] = {
        "switch": tuple(_switch(names, switch, tor)),
        "routes": tuple(routes(config, switch, hops, numbers.next_hops[switch.name])),
        "addresses": tuple(_addresses(config, switch, live)),
    }
    plains = {s.name: modes[s.name].tors if s.name in modes else s.plain for s in config.services}
    guarded: set[int] = set()
    if switch.plain_meter is not None and "stateless" in plains.values():
        fragments["plain meters"] = _plain_meters(switch.plain_meter)
    in_rack: dict[str, list[tuple[int, int, str]]] = {}
    indices: dict[str, dict[int, int]] = {}
    mtus: dict[str, int] = {}
    leaving: dict[str, frozenset[int]] = {}
    for service in config.services:
        pool, number = numbers.pools[service.pool_name], numbers.services[service.name]
        if service.pool_name not in indices:
            ring = rings.get(RACK_RING, KeyRing())
            members = _members(config, switch, service, numbers, hops, ring, path_mtus)
            again = tuple(readmitted.get((pool, m.index), 0) for m in members)
            bound = round(service.liveness * 1e6)
            settle = bound + round(SETTLE_HEARTBEATS * service.heartbeat * 1e6)
            new = frozenset(index for at, index in without_heartbeat if at == pool)
            fragments[f"pool {service.pool_name}"] = _pool(pool, members, bound, settle, again, new, switch)
            mtus[service.pool_name] = min((m.mtu for m in members), default=MTU_MIN)
            indices[service.pool_name] = {m.index: weights[m.replica.name] for m in members}
            leaving[service.pool_name] = frozenset(m.index for m in members if m.replica.name in draining)
            in_rack[service.pool_name] = [(m.index, m.port, m.mac) for m in members if not m.remote]
        if plains[service.name] == "trods":
            sources = in_rack[service.pool_name]
            fragments[f"sources {service.name}"] = plain_sources(service, pool, sources)
            guarded.update(port for _, port, _ in sources)
        by_index, away = indices[service.pool_name], leaving[service.pool_name]
        known = numbers.replicas[service.pool_name]
        other_content = mismatched.get(service.name, frozenset())
        away |= {known[name] for name in other_content} & by_index.keys()
        flows = flow_slots(config, service, numbers, slots, weights, draining | other_content)
        fragments[f"slots {service.name}"] = _slot_set(flow_set(number), flows)
        if service.policy == "round_robin":
            stay = {index: weight for index, weight in by_index.items() if index not in away}
            spray = _round_robin(service.slots, tuple((stay or by_index).items()))
            fragments[f"spray {service.name}"] = _slot_set(spray_set(service, number), spray)
        if service.name in live:
            fragments[f"service {service.name}"] = _service(
                service, number, pool, rings[service.name], config.keys, names, slot_key(numbers, service),
                mtus[service.pool_name], plains[service.name],
            )  # fmt: skip
    fragments["l2"] = tuple(l2(switch, hops, tor.time_valid, learned, frozenset(guarded)))
    return fragments
