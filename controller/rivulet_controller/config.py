"""Models of the rack's description. Each checks its own fields; references.py checks what spans
several of them.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from . import limits
from .limits import IPAddress
from .model import Model
from .service_tls_config import ServiceTls
from .values import (
    ENDPOINT,
    MAX_ENDPOINT,
    File,
    HostAddress,
    Mac,
    Name,
    PortNumber,
    Rotation,
    Seconds,
    VlanId,
    port_of,
    within,
)

MAX_MEMBERS = 64
"""Members of a pool: the bitmap of excluded members has 64 bits (docs/dataplane.md)."""

MAX_SERVICES = 4095
"""Service ids are 12 bits and 0 is none (docs/dataplane.md)."""

MAX_POOLS = 1024
"""Pool ids have 10 bits (docs/dataplane.md)."""

MAX_NONCE_LIFE_S = 3600.0
"""A nonce key can be searched for offline, so none lives longer than an hour (docs/security.md)."""

MAX_LIVE_SEAL_KEYS = 60
"""Seal keys accepted at a time: every replica holds all of them, and an epoch has 16 bits."""


class ConfigError(Exception):
    """The rack's file is not valid; `problems` has a line for each mistake: `FILE:LINE: field: what
    to do`.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems

    def __reduce__(self) -> tuple[type[ConfigError], tuple[list[str]]]:
        return ConfigError, (self.problems,)


class Vlan(Model):
    """An IEEE 802.1Q VLAN: the ports that carry it untagged and those that carry it tagged.

    A port that carries no VLAN untagged has its untagged frames in VLAN 0.
    """

    id: VlanId
    untagged: tuple[PortNumber, ...] = ()
    tagged: tuple[PortNumber, ...] = ()


class Host(Model):
    """A neighbour of the ToR: its address and the ToR's port towards it. `mtu` counts bytes of the
    IP packet.

    Without `mac` the controller finds it by ARP or neighbour discovery; without `vlan` it is the
    port's untagged one.
    """

    ip: HostAddress
    mac: Mac | None = None
    port: PortNumber
    vlan: VlanId | None = None
    mtu: int = Field(default=1500, ge=576, le=9216)


class Route(Model):
    """A prefix reached through a neighbour: `via` is the address of one of the switch's hosts."""

    prefix: ipaddress.IPv4Network | ipaddress.IPv6Network
    via: HostAddress

    @field_validator("prefix", mode="before")
    @classmethod
    def _text(cls, value: Any) -> Any:
        """Refuses a number, which `ipaddress` would read as the first address of a prefix."""
        if not isinstance(value, str | ipaddress.IPv4Network | ipaddress.IPv6Network):
            raise ValueError(f"{str(value)[:80]!r} is not a prefix such as 10.0.0.0/24 or fd00::/64 (in quotes)")
        return value


class Tls(Model):
    """Files for mutual TLS: our certificate, its key, and the authority that signs the other side's
    certificate.
    """

    certificate: File
    key: File
    authority: File


class ServerTls(Model):
    """A listener's certificate and its key."""

    certificate: File
    key: File


PacketRate = Annotated[int, Field(ge=1, le=10_000_000)]


class OwnMeters(Model):
    """Packets a second that each port may send to the ToR itself or to the controller, by class;
    null: unlimited.

    A flood of one class leaves the other classes' share untouched.
    """

    punt: PacketRate | None = Field(default=100, description="EtherTypes that the controller wants to see")
    neighbour: PacketRate | None = Field(default=500, description="ARP replies and neighbour advertisements")
    arp: PacketRate | None = Field(default=1000, description="ARP requests, answered by the ToR")
    solicitation: PacketRate | None = Field(default=1000, description="neighbour solicitations, answered by the ToR")
    echo: PacketRate | None = Field(default=1000, description="answered by the ToR")
    own_icmp: PacketRate | None = Field(default=50, description="ICMP errors from routers about the ToR's tunnels")
    own_udp: PacketRate | None = 50
    own_other: PacketRate | None = 50

    def of_classes(self) -> dict[str, int]:
        """The classes that have a limit, by the member of `own_class_t`."""
        rates: dict[str, int | None] = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: rate for name, rate in rates.items() if rate is not None}


class SwitchConfig(Model):
    """A ToR: its P4Runtime server, and the ports, hosts, routes and VLANs around it."""

    name: Name
    address: Annotated[str, Field(pattern=ENDPOINT, max_length=MAX_ENDPOINT), AfterValidator(port_of)]
    device_id: int = Field(default=1, ge=0, lt=1 << 64, description="of P4Runtime, 64 bits")
    number: int = Field(ge=1, le=255, description="upper half of the ToR's id")
    mac: Mac
    addresses: tuple[HostAddress, ...] = Field(min_length=1, max_length=64)
    ports: tuple[PortNumber, ...] = Field(min_length=1)
    vlans: tuple[Vlan, ...] = ()
    hosts: tuple[Host, ...] = ()
    routes: tuple[Route, ...] = ()
    take_over: bool = Field(default=False, description="replace a foreign program that the switch runs")
    tls: Tls | None = Field(default=None, description="of the P4Runtime session, since nonce keys cross it")
    own_meters: OwnMeters = OwnMeters()
    plain_meter: PacketRate | None = Field(
        default=20_000, description="packets a second of one client's address to stateless services; null: unlimited"
    )
    link_mbps: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="capacity of all links to clients together; warns if it is too much for the replay sketch",
    )
    pipeline: File | None = Field(default=None, description="folder of rivulet.json and rivulet.p4info.txtpb")

    def untagged_vlan(self, port: int) -> int:
        """The VLAN of a port's untagged frames; 0 unless one is configured."""
        return next((vlan.id for vlan in self.vlans if port in vlan.untagged), 0)

    def carries(self, port: int, vlan: int) -> bool:
        """Whether a port carries a VLAN, tagged or untagged."""
        if vlan == self.untagged_vlan(port):
            return port in self.ports
        return any(port in known.tagged for known in self.vlans if known.id == vlan)

    def vlan_of(self, place: Host | Replica) -> int:
        """The VLAN in which a neighbour is reached; 0 is untagged."""
        return self.untagged_vlan(place.port) if place.vlan is None else place.vlan


class Replica(Model):
    """A server machine; `port` is the ToR's port towards it.

    Without `mac` the replica's agent reports it; without `vlan` it is the port's untagged one.
    """

    name: Name
    switch: Name
    port: PortNumber
    vlan: VlanId | None = None
    mac: Mac | None = None
    ip: HostAddress
    mtu: int = Field(default=1500, ge=576, le=9216)
    weight: int = Field(default=1, ge=1, le=256)
    maintenance: bool = False
    kill_command: tuple[str, ...] = Field(default=(), description="ends it with SIGKILL; for labs only")
    tunnel: Literal["ip_in_ip", "gue"] = Field(default="ip_in_ip", description="from switches of other racks")


PlainMode = Literal["none", "kernel", "stateless", "trods"]
Affinity = Literal["flow", "client"]


def store_place(server: str) -> tuple[IPAddress, int]:
    """Address and port of a memcached server of a store. Raises ValueError."""
    address, port = limits.endpoint(server)
    return limits.host_address(address), port


def _store_server(value: Any) -> Any:
    """A store's server in canonical form. A host name is refused: replicas would have to resolve it
    while others die.
    """
    if not isinstance(value, str):
        return value
    try:
        return limits.endpoint_text(store_place(value))
    except ValueError:
        raise ValueError(f"{value[:80]!r} is not ADDRESS:PORT such as 10.0.2.9:11211 or [fd00:2::9]:11211") from None


class Trods(Model):
    """Where replicas record connections of `plain: trods`, and how they recover them
    (docs/trods.md).
    """

    store: tuple[Annotated[str, BeforeValidator(_store_server)], ...] = Field(
        default=(),
        max_length=limits.STORES,
        description="memcached servers, tried in this order; at least one on a host that is no replica",
    )
    objects: str | None = Field(
        default=None,
        pattern=r"^/[!-~]{0,1023}$",
        description="path at each web server of the list of objects that timestamps may name, one path a line",
    )
    copies: Literal[1, 2] = Field(default=1, description="copies of each record, each on another server")
    failure: Literal["open", "closed"] = Field(
        default="open", description="while no store answers: serve unprotected (open), or release no response (closed)"
    )
    deterministic: bool = Field(
        default=False, description="every web server answers the same request with the same bytes at any time"
    )
    adopt_as: Literal["client", "server"] = Field(
        default="client", description="the source address that the web server sees on an adopted connection"
    )
    unknown: Literal["reset", "trust"] = Field(
        default="reset",
        description="a connection within an object that replicas never compared: reset it, or trust the bytes",
    )


CheckMode = Literal["off", "count", "enforce"]


class Checks(Model):
    """Mode of each check that the ToR makes of a request: off, count failures, or drop them
    (docs/dataplane.md).
    """

    key: CheckMode = "enforce"
    time: CheckMode = "enforce"
    range: CheckMode = "enforce"
    sum: CheckMode = "enforce"
    replay: CheckMode = "enforce"
    meter: CheckMode = "enforce"
    unjudged: Literal["pass", "drop"] = Field(
        default="pass",
        description="a request that the switch cannot check: forwarded with its mark cleared, or dropped",
    )


class Meters(Model):
    """Packets a second of each service at each switch, for requests with little or no proof; null:
    unlimited.

    The defaults add up to less than the 7,800 openings a second that a switch's sketch can check.
    """

    syn: PacketRate | None = 5000
    timeout: PacketRate | None = Field(default=10_000, description="TIMEOUT with a proof")
    restart: PacketRate | None = 1000
    unproved: PacketRate | None = Field(default=1000, description="TIMEOUT and CLOSE without one")
    ranges: PacketRate | None = Field(default=10_000, description="proofs of more than four ranges")
    uncookied: PacketRate | None = Field(
        default=50_000,
        description="segments to a stateless service without a cookie: SYNs, resets, and adopted connections",
    )
    icmp_error: PacketRate | None = 100

    def of_classes(self) -> dict[str, int]:
        """The limits by class of request, by the member of `service_meter_t`."""
        cells = ("syn", "timeout", "restart", "unproved", "ranges")
        rates: dict[str, int | None] = {cell: getattr(self, cell) for cell in cells}
        return {cell: rate for cell, rate in rates.items() if rate is not None}


class Service(Model):
    """Addresses and a port, and the replicas behind them."""

    name: Name
    addresses: tuple[HostAddress, ...] = Field(min_length=1, max_length=limits.ADDRESSES)
    port: int = Field(ge=1, le=65535)
    replicas: tuple[Name, ...] = Field(min_length=1, max_length=MAX_MEMBERS)
    pool: Name | None = Field(default=None, description="services of one pool share replicas and liveness")
    policy: Literal["block", "round_robin", "random", "least_loaded"] = "block"
    slots: int = Field(default=128, ge=1, le=1024)
    checks: Checks = Checks()
    meters: Meters = Meters()
    heartbeat: Annotated[Seconds, within(*limits.HEARTBEAT_S)] = 0.002
    liveness: Annotated[Seconds, within(limits.HEARTBEAT_S[0], limits.LIVENESS_S)] = 0.020
    plain: PlainMode = Field(
        default="kernel",
        description="clients of plain TCP: refused, served by the kernel, served without state (docs/plain.md), or"
        " served by the kernel with takeover by another replica (docs/trods.md)",
    )
    trods: Trods | None = Field(default=None, description="for `plain: trods`, and while its connections drain")
    tls: ServiceTls | None = Field(default=None, description="HTTPS, with `plain: trods` or `kernel`")
    plain_drain: Seconds = Field(
        default=60.0, le=86400.0, description="how long existing connections are served after `plain` changed"
    )
    affinity: Affinity = Field(
        default="flow",
        description="unit of plain TCP that stays on one replica: a flow, or all flows of a client's address"
        " (docs/control-plane.md)",
    )
    trust_tor: bool = True

    @property
    def pool_name(self) -> str:
        """The pool that the service names, else a pool named like the service."""
        return self.pool or self.name

    @model_validator(mode="after")
    def _sane(self) -> Service:
        if self.slots & (self.slots - 1):
            raise ValueError(f"slots: {self.slots} is not a power of two")
        if round(self.liveness * 1e6) < 2 * round(self.heartbeat * 1e6):
            raise ValueError("liveness: must be at least two heartbeats, or one lost frame excludes a replica")
        return self


class Keys(Model):
    """How keys rotate (docs/security.md)."""

    seal_rotation: Rotation = 3600.0
    nonce_rotation: Rotation = 1800.0
    tor_rotation: Seconds = Field(default=86400.0, ge=60.0, description="keys shared by replicas and ToRs")
    cookie_rotation: Seconds = Field(
        default=43200.0,
        ge=60.0,
        le=86400.0,
        description="cookie keys of stateless TCP; a cookie is valid for one to two rotations",
    )
    ticket_rotation: Seconds = Field(
        default=3600.0, ge=60.0, le=43200.0, description="keys of TLS session tickets, valid for one to two rotations"
    )
    horizon: Annotated[Seconds, within(*limits.HORIZON_S)] = 4.0
    resume: Seconds = 86400.0

    @model_validator(mode="after")
    def _sane(self) -> Keys:
        if self.nonce_rotation > MAX_NONCE_LIFE_S:
            raise ValueError("nonce_rotation: an hour at most, since a nonce key can be searched offline")
        if self.nonce_rotation + 2 * self.horizon > MAX_NONCE_LIFE_S:
            raise ValueError("nonce_rotation: with twice the horizon it must stay within an hour")
        if self.resume / self.seal_rotation > MAX_LIVE_SEAL_KEYS:
            raise ValueError(f"seal_rotation: more than {MAX_LIVE_SEAL_KEYS} keys would be live within the resume time")
        if self.horizon > 4:
            raise ValueError("horizon: 4 s at most, since the switch's replay sketch must hold it")
        return self


class Mute(Model):
    """When a replica that sends heartbeats but no responses counts as mute, and whether to exclude
    it then (mute.py).
    """

    after: Seconds = Field(default=5.0, ge=1.0, le=3600.0, description="time without any response from it")
    requests: int = Field(default=100, ge=10, le=1_000_000, description="requests in that time, at least")
    exclude: bool = Field(default=False, description="send no new requests to a mute replica, unless no other is live")


def is_local(address: str) -> bool:
    """Whether an address `unix:PATH` or HOST:PORT can be reached only from this machine."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


UserName = Annotated[str, Field(pattern=r"^([a-z_][a-z0-9_-]{0,31}|[0-9]{1,10})$")]
ListenAddress = Annotated[str, Field(pattern=ENDPOINT, max_length=MAX_ENDPOINT), AfterValidator(port_of)]


class Listen(Model):
    """Listeners, `unix:PATH` or HOST:PORT. TCP beyond loopback needs TLS, the API also tokens."""

    agents: ListenAddress = "unix:/run/rivulet/agents.sock"
    agents_group: str | None = Field(
        default=None,
        pattern=r"^[a-z_][a-z0-9_-]{0,31}$",
        description="group whose members may also open the agents' Unix socket",
    )
    agents_users: dict[UserName, tuple[Name, ...]] = Field(
        default_factory=dict,
        description="by user, the replicas as which its processes may register over the Unix socket; root and the"
        " controller's own user may register as any",
    )
    agents_tls: Tls | None = None
    api: ListenAddress = "127.0.0.1:8080"
    api_tls: ServerTls | None = None
    api_token_file: File | None = Field(
        default=None, description="tokens of the API's users, one NAME:ROLE:TOKEN a line"
    )
    control: str | None = Field(
        default=None,
        pattern=r"^unix:[^\x00]+$",
        max_length=MAX_ENDPOINT,
        description="the API for this machine's operators",
    )
    lab: bool = Field(default=False, description="allow the page to kill replicas by their `kill_command`")

    @model_validator(mode="after")
    def _guarded(self) -> Listen:
        if self.agents_group is not None and not self.agents.startswith("unix:"):
            raise ValueError("agents_group: only a Unix socket has a group; over TCP, agents_tls authenticates agents")
        if self.agents_users and self.agents_group is None:
            raise ValueError("agents_users: also set agents_group, the group whose members may open the socket")
        if self.agents_group is not None and not self.agents_users:
            raise ValueError(
                "agents_group: list in agents_users the replicas as which each user may register, as in"
                " `agents_users: {rivulet-replica: [r1]}`"
            )
        if not self.agents.startswith("unix:") and self.agents_tls is None:
            raise ValueError(
                "agents: an agent receives its replica's keys, so over TCP it needs agents_tls, on loopback too"
            )
        if not is_local(self.api) and self.api_token_file is None:
            raise ValueError("api: an address beyond loopback needs api_token_file")
        if not is_local(self.api) and self.api_tls is None:
            raise ValueError("api: an address beyond loopback needs api_tls, since tokens cross it")
        return self


class Etcd(Model):
    """The etcd cluster in which several controllers keep their state; the holder of the lease
    leads.
    """

    endpoints: tuple[Annotated[str, Field(pattern=r"^https?://[^\s/]+$")], ...] = Field(min_length=1)
    prefix: str = Field(default="/rivulet/", pattern=r"^/[a-z0-9/_-]*/$")
    lease: Seconds = Field(
        default=3.0, ge=1.0, le=60.0, description="time without renewal after which another controller may lead"
    )
    tls: Tls | None = None

    @model_validator(mode="after")
    def _guarded(self) -> Etcd:
        for endpoint in self.endpoints:
            scheme, _, place = endpoint.partition("://")
            if scheme == "http" and not is_local(place if ":" in place.rpartition("]")[2] else f"{place}:2379"):
                raise ValueError(f"endpoints: keys would cross {endpoint} in the clear: use https beyond loopback")
        return self


SKETCH_MBPS = 769
"""Link capacity for which the replay sketch suffices: 62,500 requests a second, each answered by a
full frame (1,538 bytes on the wire)."""


class Config(Model):
    """The whole rack's description."""

    switches: tuple[SwitchConfig, ...] = Field(min_length=1)
    replicas: tuple[Replica, ...] = Field(min_length=1)
    services: tuple[Service, ...] = Field(min_length=1)
    keys: Keys = Keys()
    mute: Mute = Mute()
    checks: Literal["tor", "host"] = Field(
        default="tor", description="who checks requests: ToR and replicas, or replicas"
    )
    listen: Listen = Listen()
    state: File = Path("/var/lib/rivulet/controller.db")
    etcd: Etcd | None = Field(default=None, description="instead of the state file, for several controllers")

    @model_validator(mode="after")
    def _sketches(self) -> Config:
        wide = self.wider_than_the_sketch()
        strict = next((s.name for s in self.services if s.checks.replay != "off" and s.checks.unjudged == "drop"), None)
        if wide and strict is not None:
            raise ValueError(
                f"link_mbps: the replay sketch suffices for {SKETCH_MBPS} Mb/s, {wide[0].name} has {wide[0].link_mbps},"
                f" so service {strict} with `unjudged: drop` would lose good requests: set `unjudged: pass`"
            )
        return self

    def wider_than_the_sketch(self) -> list[SwitchConfig]:
        """Switches with links that carry more requests than their replay sketch can check."""
        return [s for s in self.switches if self.checks == "tor" and (s.link_mbps or 0) > SKETCH_MBPS]

    def replica(self, name: str) -> Replica:
        """The replica of that name; KeyError if there is none, which validation excludes."""
        return next(r for r in self.replicas if r.name == name)
