"""Models of the rack's description. Each checks its own fields; references.py checks what spans
several of them.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from . import limits
from .limits import IPAddress
from .listen_config import Etcd, Listen, Tls
from .model import Model
from .service_tls_config import ServiceTls
from .values import (
    Endpoint,
    File,
    Form,
    HostAddress,
    Mac,
    Name,
    PortNumber,
    Rotation,
    Seconds,
    VlanId,
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

    id: VlanId = Field(description="VLAN identifier of the tag")
    untagged: tuple[PortNumber, ...] = Field(default=(), description="ports that carry it without a tag")
    tagged: tuple[PortNumber, ...] = Field(default=(), description="ports that carry it with a tag")


class Host(Model):
    """A neighbour of the ToR that is no replica."""

    ip: HostAddress = Field(description="its address")
    mac: Mac | None = Field(
        default=None, description="its Ethernet address; without it the controller asks by ARP or neighbour discovery"
    )
    port: PortNumber = Field(description="the ToR's port towards it")
    vlan: VlanId | None = Field(default=None, description="the VLAN in which it is; the port's untagged one by default")
    mtu: int = Field(default=1500, ge=576, le=9216, description="bytes of the largest IP packet to it")


class Route(Model):
    """A prefix reached through a neighbour."""

    prefix: Annotated[ipaddress.IPv4Network | ipaddress.IPv6Network, Form("IP prefix, in quotes")] = Field(
        description="destinations, such as 10.0.0.0/24 or fd00::/64"
    )
    via: HostAddress = Field(description="address of one of the switch's `hosts`")

    @field_validator("prefix", mode="before")
    @classmethod
    def _text(cls, value: Any) -> Any:
        """Refuses a number, which `ipaddress` would read as the first address of a prefix."""
        if not isinstance(value, str | ipaddress.IPv4Network | ipaddress.IPv6Network):
            raise ValueError(f"{str(value)[:80]!r} is not a prefix such as 10.0.0.0/24 or fd00::/64 (in quotes)")
        return value


PacketRate = Annotated[int, Field(ge=1, le=10_000_000), Form("packets a second")]


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
    own_udp: PacketRate | None = Field(default=50, description="other UDP to the ToR's addresses, for the controller")
    own_other: PacketRate | None = Field(
        default=50, description="anything else to the ToR's addresses, for the controller"
    )

    def of_classes(self) -> dict[str, int]:
        """The classes that have a limit, by the member of `own_class_t`."""
        rates: dict[str, int | None] = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: rate for name, rate in rates.items() if rate is not None}


class SwitchConfig(Model):
    """A ToR: its P4Runtime server, and the ports, hosts, routes and VLANs around it."""

    name: Name = Field(description="name in this file, in commands and metrics")
    address: Endpoint = Field(description="its P4Runtime server")
    device_id: int = Field(default=1, ge=0, lt=1 << 64, description="device id of P4Runtime")
    number: int = Field(ge=1, le=255, description="upper half of the ToR's id; different for each switch")
    mac: Mac = Field(description="Ethernet address of the gateway")
    addresses: tuple[HostAddress, ...] = Field(
        min_length=1, max_length=64, description="addresses of the gateway, one for each subnet"
    )
    ports: tuple[PortNumber, ...] = Field(min_length=1, description="ports in use")
    vlans: tuple[Vlan, ...] = Field(default=(), description="VLANs (IEEE 802.1Q); without one all frames are untagged")
    hosts: tuple[Host, ...] = Field(default=(), description="neighbours that are not replicas")
    routes: tuple[Route, ...] = Field(default=(), description="prefixes behind neighbours")
    take_over: bool = Field(default=False, description="replace a foreign program that the switch runs")
    tls: Tls | None = Field(default=None, description="of the P4Runtime session, since nonce keys cross it")
    own_meters: OwnMeters = Field(default=OwnMeters(), description="limits for packets to the ToR itself")
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
    """A server machine."""

    name: Name = Field(description="name in this file, in commands and metrics, and in its agent's certificate")
    switch: Name = Field(description="the ToR of its rack; other ToRs reach it by a tunnel")
    port: PortNumber = Field(description="the ToR's port towards it")
    vlan: VlanId | None = Field(default=None, description="the VLAN in which it is; the port's untagged one by default")
    mac: Mac | None = Field(default=None, description="its Ethernet address; without it the replica's agent reports it")
    ip: HostAddress = Field(description="its own address, not that of a service")
    mtu: int = Field(default=1500, ge=576, le=9216, description="bytes of the largest IP packet to it")
    weight: int = Field(default=1, ge=1, le=256, description="its share of requests and flows, beside other weights")
    maintenance: bool = Field(
        default=False, description="it gets no packets, and its plain connections break; `rivuletctl drain` is gentler"
    )
    kill_command: tuple[str, ...] = Field(default=(), description="ends it with SIGKILL; for labs only")
    tunnel: Literal["ip_in_ip", "gue"] = Field(
        default="ip_in_ip", description="encapsulation that switches of other racks use to reach it"
    )


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

    store: tuple[Annotated[str, BeforeValidator(_store_server), Form("`ADDRESS:PORT`")], ...] = Field(
        default=(),
        max_length=limits.STORES,
        description="memcached servers, tried in this order; at least one on a host that is no replica",
    )
    objects: str | None = Field(
        default=None,
        pattern=r"^/[!-~]{0,1023}$",
        description="URL path, at each web server, of the list of objects that timestamps may name, one path a line",
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

    key: CheckMode = Field(default="enforce", description="its epoch of nonce keys is known and usable")
    time: CheckMode = Field(default="enforce", description="its continuation is within the horizon")
    range: CheckMode = Field(default="enforce", description="the ranges of its proof are in order and reach its number")
    sum: CheckMode = Field(default="enforce", description="each range of its proof has the right sum of nonces")
    replay: CheckMode = Field(default="enforce", description="its response number was not used before")
    meter: CheckMode = Field(default="enforce", description="its class stays within `meters`")
    unjudged: Literal["pass", "drop"] = Field(
        default="pass",
        description="a request that the switch cannot check: forwarded with its mark cleared, or dropped",
    )


class Meters(Model):
    """Packets a second of each service at each switch, for requests with little or no proof; null:
    unlimited.

    The defaults add up to less than the 7,800 openings a second that a switch's sketch can check.
    """

    syn: PacketRate | None = Field(default=5000, description="SYNs, which open connections")
    timeout: PacketRate | None = Field(default=10_000, description="TIMEOUT with a proof")
    restart: PacketRate | None = Field(default=1000, description="RESTARTs, after which a connection goes on")
    unproved: PacketRate | None = Field(default=1000, description="TIMEOUT and CLOSE without one")
    ranges: PacketRate | None = Field(default=10_000, description="proofs of more than four ranges")
    uncookied: PacketRate | None = Field(
        default=50_000,
        description="segments to a stateless service without a cookie: SYNs, resets, and adopted connections",
    )
    icmp_error: PacketRate | None = Field(default=100, description="ICMP errors about packets of the service")

    def of_classes(self) -> dict[str, int]:
        """The limits by class of request, by the member of `service_meter_t`."""
        cells = ("syn", "timeout", "restart", "unproved", "ranges")
        rates: dict[str, int | None] = {cell: getattr(self, cell) for cell in cells}
        return {cell: rate for cell, rate in rates.items() if rate is not None}


class Service(Model):
    """Addresses and a port, and the replicas behind them."""

    name: Name = Field(description="name in this file, in commands and metrics; slots and keys follow from it")
    addresses: tuple[HostAddress, ...] = Field(
        min_length=1, max_length=limits.ADDRESSES, description="addresses of the service, IPv4 and IPv6"
    )
    port: int = Field(ge=1, le=65535, description="TCP port, and port of Rivulet's requests")
    replicas: tuple[Name, ...] = Field(min_length=1, max_length=MAX_MEMBERS, description="the replicas that serve it")
    pool: Name | None = Field(
        default=None,
        description="services of one pool have the same replicas and heartbeats; by default each is its own pool",
    )
    policy: Literal["block", "round_robin", "random", "least_loaded"] = Field(
        default="block", description="how the ToR spreads Rivulet's requests over live replicas"
    )
    slots: int = Field(
        default=128,
        ge=1,
        le=1024,
        description="a power of two: slots over which flows are spread; more make shares more even",
    )
    checks: Checks = Field(default=Checks(), description="which checks the ToR makes of requests")
    meters: Meters = Field(default=Meters(), description="limits for requests with little or no proof")
    heartbeat: Annotated[Seconds, within(*limits.HEARTBEAT_S)] = Field(
        default=0.002, description="time between two heartbeats of a replica"
    )
    liveness: Annotated[Seconds, within(limits.HEARTBEAT_S[0], limits.LIVENESS_S)] = Field(
        default=0.020,
        description="time without a heartbeat after which the ToR excludes a replica; at least two heartbeats",
    )
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
    trust_tor: bool = Field(
        default=True, description="replicas do not repeat the checks that the ToR made; false: they check every request"
    )

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

    seal_rotation: Rotation = Field(
        default=3600.0,
        description=f"age at which a seal key is replaced; at most {MAX_LIVE_SEAL_KEYS} keys within `resume`",
    )
    nonce_rotation: Rotation = Field(
        default=1800.0, description="age at which a nonce key is replaced; with twice `horizon` at most 1h"
    )
    tor_rotation: Seconds = Field(
        default=86400.0, ge=60.0, description="age at which keys shared by replicas and ToRs are replaced"
    )
    cookie_rotation: Seconds = Field(
        default=43200.0,
        ge=60.0,
        le=86400.0,
        description="age at which cookie keys of stateless TCP are replaced; each is valid for one to two rotations",
    )
    ticket_rotation: Seconds = Field(
        default=3600.0,
        ge=60.0,
        le=43200.0,
        description="age at which keys of TLS session tickets are replaced; a ticket is valid for one to two rotations",
    )
    horizon: Annotated[Seconds, within(*limits.HORIZON_S)] = Field(
        default=4.0,
        description="age up to which a continuation is fresh; replays are remembered for as long; at most 4s",
    )
    resume: Seconds = Field(
        default=86400.0,
        description="time for which a client may be silent and still resume; retired seal keys live so long",
    )

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
    it then (docs/control-plane.md).
    """

    after: Seconds = Field(default=5.0, ge=1.0, le=3600.0, description="time without any response from it")
    requests: int = Field(default=100, ge=10, le=1_000_000, description="requests in that time, at least")
    exclude: bool = Field(default=False, description="send no new requests to a mute replica, unless no other is live")


SKETCH_MBPS = 769
"""Link capacity for which the replay sketch suffices: 62,500 requests a second, each answered by a
full frame (1,538 bytes on the wire)."""


class Config(Model):
    """The whole rack's description."""

    switches: tuple[SwitchConfig, ...] = Field(min_length=1, description="the ToRs")
    replicas: tuple[Replica, ...] = Field(min_length=1, description="the server machines")
    services: tuple[Service, ...] = Field(min_length=1, description="what the replicas serve")
    keys: Keys = Field(default=Keys(), description="lifetimes of keys")
    mute: Mute = Field(default=Mute(), description="replicas that send heartbeats but no responses")
    checks: Literal["tor", "host"] = Field(
        default="tor", description="who checks requests: ToR and replicas, or replicas"
    )
    listen: Listen = Field(default=Listen(), description="where the controller listens")
    state: File = Field(
        default=Path("/var/lib/rivulet/controller.db"), description="file of the keys, decisions and numbers, mode 0600"
    )
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
