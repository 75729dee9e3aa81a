"""The rack of the demos as data: hosts, addresses, links."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["client", "replica", "store"]

TOR_MAC = "02:00:00:00:00:fe"
SERVICE_V4 = "10.9.0.1"
SERVICE_V6 = "fd00:9::1"
SERVICE_PORT = 80
STATELESS_PORT = 81
BOTH_SERVICES = (("files", SERVICE_PORT, "kernel"), ("files-stateless", STATELESS_PORT, "stateless"))
"""Ports: Rivulet with the kernel's TCP, and the same files over stateless TCP."""
STORE_PORT = 11211
"""Port of memcached on a store."""


QUANTUM_US = 250
"""Microseconds of frames that share a wake-up of a wire. A demo has six wires on few cores: a wake-up for each frame
would cost more than everything else together."""


@dataclass(frozen=True, slots=True)
class Link:
    """Settings of `rivulet-wire` for a link, in each direction."""

    rate_mbit: float | None = 100.0
    delay_ms: float = 0.0
    loss_percent: float = 0.0
    queue_packets: int = 200

    def arguments(self) -> list[str]:
        """Flags of rivulet-wire."""
        flags = ["--delay", f"{self.delay_ms:g}ms", "--queue", str(self.queue_packets), "--quantum", str(QUANTUM_US)]
        if self.rate_mbit is not None:
            flags += ["--rate", f"{self.rate_mbit:g}mbit"]
        if self.loss_percent:
            flags += ["--loss", f"{self.loss_percent:g}%"]
        return flags


@dataclass(frozen=True, slots=True)
class Host:
    """A machine of the rack, in its own network namespace."""

    name: str
    role: Role
    port: int
    ip: str
    ip6: str
    mac: str
    link: Link | None
    """None: the host is connected to the ToR's port without a wire, at the machine's speed."""

    @property
    def gateway(self) -> str:
        """The ToR's address in this host's subnet."""
        return self.ip.rsplit(".", 1)[0] + ".254"

    @property
    def gateway6(self) -> str:
        """The ToR's IPv6 address in this host's subnet."""
        return self.ip6.rsplit("::", 1)[0] + "::fe"


@dataclass(frozen=True, slots=True)
class RackSpec:
    """The whole rack."""

    hosts: tuple[Host, ...]
    policy: str = "block"
    heartbeat_ms: float = 2.0
    liveness_ms: float = 20.0
    slots: int = 128
    weights: dict[str, int] = field(default_factory=dict)
    services: tuple[tuple[str, int, str], ...] = (("files", SERVICE_PORT, "kernel"),)
    """Name, port, and server of plain TCP."""
    tls: dict[str, dict[str, Any]] = field(default_factory=dict)
    """TLS of `rivulet tls` by service, as in the controller's configuration."""
    meters: dict[str, int] = field(default_factory=dict)
    """Limits of requests without a proof at the ToR, packets a second by kind (none: unlimited)."""

    checks: str = "tor"
    """Where requests are checked: at the ToR and by replicas, or by replicas alone."""

    def of(self, role: Role) -> tuple[Host, ...]:
        """The hosts of one role, in order."""
        return tuple(host for host in self.hosts if host.role == role)

    def host(self, name: str) -> Host:
        """The host with this name."""
        return next(host for host in self.hosts if host.name == name)

    def stores(self) -> list[str]:
        """Addresses of the stores with records of plain connections, ADDRESS:PORT."""
        return [f"{host.ip}:{STORE_PORT}" for host in self.of("store")]

    def controller_config(self, switch_address: str, agents: str, api: str, state: str) -> dict[str, Any]:
        """The controller's configuration for this rack, as YAML would contain it."""
        gateways = sorted({host.gateway for host in self.hosts} | {host.gateway6 for host in self.hosts})
        return {
            "switches": [
                {
                    "name": "tor1",
                    "address": switch_address,
                    "number": 1,
                    "mac": TOR_MAC,
                    "addresses": gateways,
                    "ports": [host.port for host in self.hosts],
                    "hosts": [
                        {"ip": ip, "mac": host.mac, "port": host.port}
                        for host in self.hosts
                        for ip in (host.ip, host.ip6)
                    ],
                }
            ],
            "replicas": [
                {
                    "name": host.name,
                    "switch": "tor1",
                    "port": host.port,
                    "mac": host.mac,
                    "ip": host.ip,
                    "weight": self.weights.get(host.name, 1),
                }
                for host in self.of("replica")
            ],
            "services": [
                {
                    "name": name,
                    "addresses": [SERVICE_V4, SERVICE_V6],
                    "port": port,
                    "plain": plain,
                    "replicas": [host.name for host in self.of("replica")],
                    "policy": self.policy,
                    "slots": self.slots,
                    "heartbeat": f"{self.heartbeat_ms:g}ms",
                    "liveness": f"{self.liveness_ms:g}ms",
                    "meters": self.meters,
                    # All replicas serve the same bytes, and some files are requested just before a kill.
                    **({"trods": {"store": self.stores(), "unknown": "trust"}} if plain == "trods" else {}),
                    **({"tls": self.tls[name]} if name in self.tls else {}),
                }
                for name, port, plain in self.services
            ],
            "checks": self.checks,
            "listen": {"agents": agents, "api": api},
            "state": state,
        }


def rack(
    clients: int = 2,
    replicas: int = 3,
    rate_mbit: float = 100.0,
    rtt_ms: float = 10.0,
    client_loss_percent: float = 0.0,
    direct: bool = False,
    stores: int = 0,
    **settings: Any,
) -> RackSpec:
    """Describes a rack. The clients' links have the rate and the delay.

    A replica's link has the rate of all clients together, because the last live replica must serve them all;
    otherwise a kill would show the other clients' traffic and not its own effect. `direct`: no link has a rate or a
    delay; a store's never has.
    """
    queue = max(50, int(rate_mbit * 1e6 / 8 / 1500 * rtt_ms / 1e3))
    hosts = [
        Host(
            name=f"c{n}",
            role="client",
            port=n,
            ip=f"10.0.1.{n}",
            ip6=f"fd00:1::{n}",
            mac=f"02:00:00:00:01:{n:02x}",
            link=None if direct else Link(rate_mbit, rtt_ms / 2, client_loss_percent, queue),
        )
        for n in range(1, clients + 1)
    ]
    hosts += [
        Host(
            name=f"r{n}",
            role="replica",
            port=100 + n,
            ip=f"10.0.2.{n}",
            ip6=f"fd00:2::{n}",
            mac=f"02:00:00:00:02:{n:02x}",
            link=None if direct else Link(rate_mbit * clients, 0.0, 0.0, queue * clients),
        )
        for n in range(1, replicas + 1)
    ]
    hosts += [
        Host(
            name=f"s{n}",
            role="store",
            port=200 + n,
            ip=f"10.0.3.{n}",
            ip6=f"fd00:3::{n}",
            mac=f"02:00:00:00:03:{n:02x}",
            link=None,
        )
        for n in range(1, stores + 1)
    ]
    return RackSpec(hosts=tuple(hosts), **settings)
