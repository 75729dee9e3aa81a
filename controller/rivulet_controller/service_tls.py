"""The control plane of services with HTTPS, whose TLS `rivulet tls` ends on each replica
(docs/tls.md).

Pure functions: checks of the configuration, settings for agents, and the agents' status.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from . import limits
from .config import Config, Service
from .keys import SERVICE_KINDS, TLS_KINDS, KeyRing, Kind
from .pb.rivulet.agent.v1 import agent_pb2
from .service_tls_config import Forwarded
from .trods import by_reason

FORWARDED: Mapping[Forwarded, agent_pb2.Forwarded] = {
    "headers": agent_pb2.FORWARDED_HEADERS,
    "proxy": agent_pb2.FORWARDED_PROXY,
    "none": agent_pb2.FORWARDED_NONE,
}
"""Ways of passing on the client's address, in the agents' protocol."""

KEYS_GIVEN = 8
"""Newest ticket keys that a replica gets. With rotation by time there are three at most; operators
can rotate more often."""

Mistake = tuple[tuple[str | int, ...], str]


def mistakes(config: Config) -> Iterator[Mistake]:
    """Yields mistakes in the configuration of TLS, each with its path."""
    for index, service in enumerate(config.services):
        if service.tls is None:
            continue
        where = ("services", index, "tls")
        if service.plain not in ("trods", "kernel"):
            yield where, f"TLS needs `plain: trods` (or `kernel`, without protection), not `{service.plain}`"
        address, port = limits.endpoint(service.tls.server)
        if address in service.addresses and port == service.port:
            yield (
                (*where, "server"),
                f"{service.tls.server} is the service itself: set the address where plain HTTP is served",
            )


def kinds_of(service: Service) -> tuple[Kind, ...]:
    """The kinds of keys in a service's ring."""
    return SERVICE_KINDS if service.tls is None else TLS_KINDS


def settings(service: Service, ring: KeyRing) -> agent_pb2.Tls | None:
    """The settings of TLS for agents, with the ticket keys; None for a service without TLS."""
    if service.tls is None:
        return None
    usable = ring.usable(Kind.TICKET)
    return agent_pb2.Tls(
        certificates=[agent_pb2.Certificate(certificate=c.certificate, key=c.key) for c in service.tls.certificates],
        server=service.tls.server,
        forwarded=FORWARDED[service.tls.forwarded],
        client_ca=service.tls.client_ca or "",
        ticket_keys=[
            agent_pb2.TicketKey(epoch=k.epoch, key=k.secret) for k in ring.accepted(Kind.TICKET)[-KEYS_GIVEN:]
        ],
        usable_ticket_epoch=usable.epoch if usable else 0,
    )


@dataclass(frozen=True, slots=True)
class TlsCounts:
    """Status of a service's TLS on one replica. Counts are since its terminator started."""

    serving: bool = False
    """Whether clients are served."""
    error: str = ""
    """Why not, or why with former files."""
    in_handshake: int = 0
    """Connections now in their handshake."""
    protected: int = 0
    """Connections with a stored state."""
    unprotected: Mapping[str, int] = field(default_factory=dict)
    """Connections without one, by reason."""
    adopted: int = 0
    """Connections adopted from other replicas."""
    handshakes: int = 0
    resumed: int = 0
    """The handshakes with a session ticket."""
    ticket_epoch: int = 0
    """Epoch of the ticket key that seals there; 0: none."""


def counts(report: agent_pb2.Report | None, names: Mapping[int, str]) -> dict[str, TlsCounts]:
    """The status of TLS in a report, by service. `names`: of services by their numbers."""
    if report is None:
        return {}
    return {
        names[status.service]: TlsCounts(
            serving=status.serving,
            error=status.error,
            in_handshake=status.in_handshake,
            protected=status.protected,
            unprotected=by_reason(status.unprotected),
            adopted=status.adopted,
            handshakes=status.handshakes,
            resumed=status.resumed,
            ticket_epoch=status.ticket_epoch,
        )
        for status in report.tls
        if status.service in names
    }


def problems(statuses: Mapping[str, Mapping[str, TlsCounts]]) -> Iterator[str]:
    """Yields the errors of TLS in words. `statuses`: by replica and service."""
    for replica, services in sorted(statuses.items()):
        for service, status in sorted(services.items()):
            if status.error:
                yield f"replica {replica}, service {service}: TLS: {status.error}"
