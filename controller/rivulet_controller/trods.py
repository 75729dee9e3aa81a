"""The control plane of services under TRODS, where plain connections outlive their replica
(docs/trods.md).

Pure functions: checks of the configuration, settings for agents, entries for switches, and agents'
counts.
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
"""Most reasons for unprotected connections accepted from an agent; agents have fewer. More count as
`other`."""

_REASON = re.compile(r"[a-z0-9_]{1,32}")

CLOCKS_APART_S = 2.0
"""Difference of two hosts' clocks from which on no connection is adopted between them (docs/trods.md)."""

Mistake = tuple[tuple[str | int, ...], str]


def mistakes(config: Config) -> Iterator[Mistake]:
    """Yields mistakes in the configuration of TRODS, each with its path."""
    served = {address: service.name for service in config.services for address in service.addresses}
    own = {address: switch.name for switch in config.switches for address in switch.addresses}
    hosts = {replica.name: replica.ip for replica in config.replicas}
    for index, service in enumerate(config.services):
        where = ("services", index)
        if service.plain == "trods":
            if service.trods is None:
                yield (*where, "plain"), "trods: set the store of records: `trods: {store: [ADDRESS:PORT, ...]}`"
            if len(config.switches) > 1:
                yield (*where, "plain"), f"trods: works with one switch, and there are {len(config.switches)}"
        if service.trods is None:
            continue
        at = (*where, "trods", "store")
        servers = service.trods.store
        if service.trods.objects is not None:
            yield from _names(config, index)
            if not servers:
                continue
        if not servers:
            yield at, "no server: list the store's servers, or set `objects` for timestamps that name objects"
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
            yield (
                (*where, "trods", "copies"),
                f"{service.trods.copies} copies need at least that many servers in `store`",
            )
        for name in service.replicas:
            if name in hosts and all(store_place(server)[0] == hosts[name] for server in servers):
                yield (
                    at,
                    f"all servers are on the host of replica {name!r}, with which its records would be lost: add one",
                )


def clocks_apart(config: Config, ahead: Mapping[str, float | None]) -> list[str]:
    """Services with TRODS whose replicas' hosts have clocks too far apart, in words.

    `ahead`: seconds by which each replica's clock is ahead of this host's, None where that is not known.
    """
    found = []
    for service in config.services:
        known = [(seconds, name) for name in service.replicas if (seconds := ahead.get(name)) is not None]
        if service.trods is None or len(known) < 2:
            continue
        (first, slow), (last, fast) = min(known), max(known)
        if last - first >= CLOCKS_APART_S:
            found.append(
                f"service {service.name}: the clock of {fast} is {last - first:.1f} s ahead of the clock of {slow}:"
                f" connections are not adopted across {CLOCKS_APART_S:g} s; set both by NTP or chrony"
            )
    return found


def _names(config: Config, index: int) -> Iterator[Mistake]:
    """Checks a service with a list of objects: only one such service for each replica, and no
    settings of a store without one.
    """
    service, where = config.services[index], ("services", index, "trods")
    trods = service.trods
    if trods is None:
        return
    for setting in ("copies", "failure", "deterministic"):
        if setting in trods.model_fields_set and not trods.store:
            yield (*where, setting), "needs `store`, which is empty"
    for other in config.services[:index]:
        if is_named(other) and (both := sorted(set(other.replicas) & set(service.replicas))):
            yield (
                (*where, "objects"),
                f"replica {both[0]!r} already has the objects of service {other.name!r}: a replica can have one list",
            )


def is_named(service: Service) -> bool:
    """Whether timestamps name the objects that its connections carry. Other connections are
    recorded, if there is a store.
    """
    return service.trods is not None and service.trods.objects is not None


def plain_modes(service: Service, mode: Mode) -> tuple[PlainMode, PlainMode]:
    """The modes of plain TCP sent to agents: current and draining. `trods` becomes `kernel` if the
    configuration no longer has a store.
    """
    replicas: PlainMode = mode.replicas
    if replicas == "trods" and service.trods is None:
        replicas = "kernel"
    return replicas, replicas if mode.drains == "trods" and service.trods is None else mode.drains


def settings(
    config: Config, service: Service, indices: Mapping[str, int], incarnations: Mapping[str, int]
) -> agent_pb2.Trods:
    """The settings of TRODS for agents. `incarnations`: of each replica's records, as its agent
    last reported.
    """
    if service.trods is None:
        raise ValueError(f"service {service.name} has no `trods` settings")
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
    """Source addresses and ports of members (index, port, MAC address): the ToR drops such frames
    while the member is excluded.
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
    """Counts of connections since an agent started, as it reports them."""

    protected: int = 0
    """Connections with a stored record."""
    unprotected: Mapping[str, int] = field(default_factory=dict)
    """Connections served without a record, by reason."""
    adopted: int = 0
    """Connections adopted from another replica."""
    refused: int = 0
    """Connections of another replica that were reset instead of adopted."""
    refusals: Mapping[str, int] = field(default_factory=dict)
    """The connections of `refused`, by reason."""
    trusted: int = 0
    """Connections adopted within an object whose bytes were not compared between replicas."""
    outside: int = 0
    """Segments from clients' addresses outside of the server's receive window; they have no
    effect."""
    moved: int = 0
    """Own connections that moved to other replicas during a drain."""
    watched: int = 0
    """Connections under TRODS now; during a drain, those that have yet to move."""


def counts(report: agent_pb2.Report | None) -> TrodsCounts | None:
    """The counts in a report, or None. Malformed or excess reasons count as `other`, since reasons
    become metric labels.
    """
    if report is None or not report.HasField("trods"):
        return None
    status = report.trods
    return TrodsCounts(
        protected=status.protected,
        unprotected=by_reason(status.unprotected),
        adopted=status.adopted,
        refused=status.refused,
        refusals=by_reason(status.refusals),
        trusted=status.trusted,
        outside=status.outside,
        moved=status.moved,
        watched=status.watched,
    )


def by_reason(reported: Mapping[str, int]) -> dict[str, int]:
    """Counts by reason. Malformed or excess reasons count as `other`, since they become metric labels."""
    found: dict[str, int] = {}
    for reason, count in sorted(reported.items()):
        known = _REASON.fullmatch(reason) and len(found) < REASONS_MAX
        name = reason if known else "other"
        found[name] = found.get(name, 0) + count
    return found
