"""The update sent to an agent: all that its replica has to serve, as a pure function."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from . import service_tls, trods
from .config import Affinity, Config, PlainMode
from .content import Content
from .desired import flow_slots, slot_key
from .keys import RACK_RING, KeyRing, Kind
from .l2 import mac_int
from .modes import Mode, settled
from .numbers import Numbers
from .pb.rivulet.agent.v1 import agent_pb2
from .state import Pairs

PLAIN: Mapping[PlainMode, agent_pb2.Plain] = {
    "none": agent_pb2.PLAIN_NONE,
    "kernel": agent_pb2.PLAIN_KERNEL,
    "stateless": agent_pb2.PLAIN_STATELESS,
    "trods": agent_pb2.PLAIN_TRODS,
}
"""Modes of plain TCP in the agents' protocol."""

AFFINITY: Mapping[Affinity, agent_pb2.Affinity] = {
    "flow": agent_pb2.AFFINITY_FLOW,
    "client": agent_pb2.AFFINITY_CLIENT,
}
"""Affinities in the agents' protocol."""

COOKIES_GIVEN = 8
"""Newest cookie keys that a replica gets. It uses at most six; there may be more, since each change
of content adds one (content.py)."""


def update(
    config: Config,
    replica: str,
    numbers: Numbers,
    rings: Mapping[str, KeyRing],
    slots: Mapping[str, Pairs],
    weights: Mapping[str, int],
    draining: frozenset[str],
    modes: Mapping[str, Mode] = MappingProxyType({}),
    incarnations: Mapping[str, int] = MappingProxyType({}),
    contents: Mapping[str, Content] = MappingProxyType({}),
    mismatched: Mapping[str, frozenset[str]] = MappingProxyType({}),
) -> agent_pb2.Update:
    """The update for one replica, without a version. Raises KeyError if the configuration lacks it.

    `weights`: the replicas' weights in force. `modes`: by service, the mode of plain TCP during a
    change. `incarnations`: of each replica's records, as its agent last reported (TRODS).
    `contents`: by service, the content in force. `mismatched`: by service, replicas that have other
    content.
    """
    place = next((r for r in config.replicas if r.name == replica), None)
    if place is None:
        raise KeyError(replica)
    tor = next(s for s in config.switches if s.name == place.switch)
    # desired.py uses the same addresses for the switches' tunnels.
    others = [
        next(address for address in switch.addresses if address.version == place.ip.version)
        for switch in config.switches
        if switch.name != place.switch
    ]
    message = agent_pb2.Update()
    for service in config.services:
        if replica not in service.replicas or place.maintenance:
            continue
        ring = rings.get(service.name, KeyRing())
        seal, nonce, cookie = (ring.usable(kind) for kind in (Kind.SEAL, Kind.NONCE, Kind.COOKIE))
        plain, drains = trods.plain_modes(service, modes.get(service.name) or settled(service.plain))
        indices = numbers.replicas[service.pool_name]
        records = trods.settings(config, service, indices, incarnations) if "trods" in (plain, drains) else None
        tor_keys = rings.get(RACK_RING, KeyRing()).tor_keys(service.pool_name, replica)
        away = draining | mismatched.get(service.name, frozenset())
        flows = flow_slots(config, service, numbers, slots, weights, away)
        message.services.add(
            id=numbers.services[service.name],
            name=service.name,
            addresses=[address.packed for address in service.addresses],
            port=service.port,
            pool=numbers.pools[service.pool_name],
            replica=indices[replica],
            tor_mac=mac_int(tor.mac).to_bytes(6, "big"),
            heartbeat_interval_us=round(service.heartbeat * 1e6),
            liveness_bound_us=round(service.liveness * 1e6),
            trust_tor=service.trust_tor,
            plain=PLAIN[plain],
            plain_drains=PLAIN[drains] if drains != plain else agent_pb2.PLAIN_NONE,
            seal_keys=[agent_pb2.SealKey(epoch=k.epoch, master=k.secret) for k in ring.accepted(Kind.SEAL)],
            nonce_keys=[
                agent_pb2.NonceKey(epoch=k.epoch, k=k.k, k_prime=k.k_prime, opening=k.opening)
                for k in ring.accepted(Kind.NONCE)
            ],
            usable_seal_epoch=seal.epoch if seal else 0,
            usable_nonce_epoch=nonce.epoch if nonce else 0,
            horizon_us=round(config.keys.horizon * 1e6),
            tunnels=[agent_pb2.Tunnel(local=place.ip.packed, tor=other.packed) for other in others],
            tor_keys=[agent_pb2.TorKey(epoch=k.epoch, heartbeat=k.heartbeat, block=k.block) for k in tor_keys],
            usable_tor_epoch=next((k.epoch for k in tor_keys if k.usable), 0),
            cookie_keys=[
                agent_pb2.CookieKey(epoch=k.epoch, key=k.secret) for k in ring.accepted(Kind.COOKIE)[-COOKIES_GIVEN:]
            ],
            usable_cookie_epoch=cookie.epoch if cookie else 0,
            slot_key=slot_key(numbers, service),
            slots=bytes(index for pair in flows for index in pair),
            affinity=AFFINITY[service.affinity],
            slot_hash=agent_pb2.SLOT_HASH_CRC32 if config.checks == "host" else agent_pb2.SLOT_HASH_HALF_SIP_HASH,
            trods=records,
            tls=service_tls.settings(service, ring) if {"kernel", "trods"} & {plain, drains} else None,
        )
        if service.name in contents:
            message.services[-1].content = contents[service.name].version
            message.services[-1].content_epoch = contents[service.name].epoch
    return message
