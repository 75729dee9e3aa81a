"""What the control plane does for services whose plain connections outlive their replica
(docs/trods.md).

Pure functions: what a description may not say, what agents are told, from where members speak, and
what agents report.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from .config import Config, PlainMode, Service, store_place
from .entry import Entry, entry
from .l2 import address_int, mac_int
from .modes import Mode
from .pb.rivulet.agent.v1 import agent_pb2

REASONS_MAX = 32
"""Reasons of one agent for which connections went on unprotected; it says no more, and none is
believed to."""

_REASON = re.compile(r"[a-z0-9_]{1,32}")

Mistake = tuple[tuple[str | int, ...], str]


def mistakes(config: Config) -> Iterator[Mistake]:
    """What a description may not say of TRODS, with its place in the file."""
    served = {address: service.name for service in config.services for address in service.addresses}
    own = {address: switch.name for switch in config.switches for address in switch.addresses}
    hosts = {replica.name: replica.ip for replica in config.replicas}
    for index, service in enumerate(config.services):
        where = ("services", index)
        if service.plain == "trods":
            if service.trods is None:
                yield (*where, "plain"), "trods: say where records are kept: `trods: {store: [ADDRESS:PORT, ...]}`"
            if len(config.switches) > 1:
                yield (*where, "plain"), f"trods: is for one rack, and there are {len(config.switches)} switches"
        if service.trods is None:
            continue
        at = (*where, "trods", "store")
        servers = service.trods.store
        if service.trods.objects is not None:
            yield from _names(config, index)
            if not servers:
                continue
        if not servers:
            yield at, "no server: say where records are kept, or by `objects` what timestamps name"
            continue
        for place, server in enumerate(servers):
            address, _ = store_place(server)
            if server in servers[:place]:
                yield (*at, place), f"{server} appears twice"
            if address in served:
                yield (*at, place), f"{address} is an address of service {served[address]!r}"
            elif address in own:
                yield (*at, place), f"{address} is an address of switch {own[address]!r}"
        if service.trods.copies > len(servers):
            yield (*where, "trods", "copies"), f"{service.trods.copies} copies need as many servers in `store`"
        for name in service.replicas:
            if name in hosts and all(store_place(server)[0] == hosts[name] for server in servers):
                yield (
                    at,
                    f"all of it is on the host of replica {name!r}, with which its records would be gone: add another",
                )


def _names(config: Config, index: int) -> Iterator[Mistake]:
    """What a service with a list may not have: replicas of another such service; without a store,
    settings of one.
    """
    service, where = config.services[index], ("services", index, "trods")
    trods = service.trods
    if trods is None:
        return
    for setting in ("copies", "failure", "deterministic"):
        if setting in trods.model_fields_set and not trods.store:
            yield (*where, setting), "is for a store, and there is none"
    for other in config.services[:index]:
        if is_named(other) and (both := sorted(set(other.replicas) & set(service.replicas))):
            yield (*where, "objects"), f"replica {both[0]!r} has those of service {other.name!r}: one of them a replica"


def is_named(service: Service) -> bool:
    """Whether timestamps name what its connections carry; what they cannot is recorded, if there is
    a store.
    """
    return service.trods is not None and service.trods.objects is not None


def told(service: Service, mode: Mode) -> tuple[PlainMode, PlainMode]:
    """Who serves a service's plain TCP, and who did while that drains, as agents are told: TRODS
    only where the description says where its records are.
    """
    replicas: PlainMode = mode.replicas
    if replicas == "trods" and service.trods is None:
        replicas = "kernel"
    return replicas, replicas if mode.drains == "trods" and service.trods is None else mode.drains


def settings(
    config: Config, service: Service, indices: Mapping[str, int], incarnations: Mapping[str, int]
) -> agent_pb2.Trods:
    """What agents need for TRODS. `incarnations`: of each replica's records, as its agent reported
    last.
    """
    if service.trods is None:
        raise ValueError(f"service {service.name} has no settings of TRODS")
    message = agent_pb2.Trods(
        store=service.trods.store,
        copies=service.trods.copies,
        closed=service.trods.failure == "closed",
        deterministic=service.trods.deterministic,
        objects=service.trods.objects or "",
        as_server=service.trods.adopt_as == "server",
        trust_unknown=service.trods.unknown == "trust",
    )
    for name, index in sorted(indices.items(), key=lambda item: item[1]):
        address = config.replica(name).ip.packed
        message.members.add(replica=index, name=name, address=address, incarnation=incarnations.get(name, 0))
    return message


def plain_sources(service: Service, pool: int, members: Iterable[tuple[int, int, str]]) -> tuple[Entry, ...]:
    """From where members (index, port, MAC address) speak for a service: dropped while they are
    excluded.
    """
    return tuple(
        entry(
            "plain_sources",
            {"ingress_port": port, "mac": mac_int(mac), "address": address_int(address), "port": service.port},
            "speaks_for",
            {"pool": pool, "replica": index},
        )
        for index, port, mac in members
        for address in service.addresses
    )


@dataclass(frozen=True, slots=True)
class TrodsCounts:
    """What became of connections since an agent began, as it reports."""

    protected: int = 0
    """A record was stored of them."""
    unprotected: Mapping[str, int] = field(default_factory=dict)
    """They went on without, by reason."""
    adopted: int = 0
    """Another replica's, which go on there."""
    refused: int = 0
    """Another replica's, which were reset there."""
    refusals: Mapping[str, int] = field(default_factory=dict)
    """Why they were, by reason."""
    trusted: int = 0
    """Another replica's, which go on there in the middle of an object of which nobody had compared
    the bytes."""
    outside: int = 0
    """Segments from clients' addresses that the server's window does not accept: they changed
    nothing."""
    moved: int = 0
    """Its own, which it left to other replicas while it drained."""
    watched: int = 0
    """Those that are there now: of a replica that drains, those that are still to move."""


def counts(report: agent_pb2.Report | None) -> TrodsCounts | None:
    """What a report says of TRODS, if anything. What is no reason is counted under `other`: reasons
    become labels.
    """
    if report is None or not report.HasField("trods"):
        return None
    status = report.trods
    return TrodsCounts(
        protected=status.protected,
        unprotected=_by_reason(status.unprotected),
        adopted=status.adopted,
        refused=status.refused,
        refusals=_by_reason(status.refusals),
        trusted=status.trusted,
        outside=status.outside,
        moved=status.moved,
        watched=status.watched,
    )


def _by_reason(reported: Mapping[str, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for reason, count in sorted(reported.items()):
        known = _REASON.fullmatch(reason) and len(found) < REASONS_MAX
        name = reason if known else "other"
        found[name] = found.get(name, 0) + count
    return found
