"""Models of the controller's own listeners, of their files, and of etcd, in the rack's
description.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated

from pydantic import Field, model_validator

from .model import Model
from .values import MAX_ENDPOINT, Endpoint, File, Form, Name, Seconds


class Tls(Model):
    """Files for mutual TLS: our certificate, its key, and the authority that signs the other side's
    certificate.
    """

    certificate: File = Field(description="PEM file of our certificate")
    key: File = Field(description="PEM file of its private key, which no other users may read")
    authority: File = Field(description="PEM file of the authority")


class ServerTls(Model):
    """A listener's certificate and its key."""

    certificate: File = Field(description="PEM file of the certificate")
    key: File = Field(description="PEM file of its private key, which no other users may read")


def is_local(address: str) -> bool:
    """Whether an address `unix:PATH` or HOST:PORT can be reached only from this machine."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


UserName = Annotated[str, Field(pattern=r"^([a-z_][a-z0-9_-]{0,31}|[0-9]{1,10})$"), Form("user")]


class Listen(Model):
    """Listeners, `unix:PATH` or HOST:PORT. TCP beyond loopback needs TLS, the API also tokens."""

    agents: Endpoint = Field(default="unix:/run/rivulet/agents.sock", description="the replicas' agents")
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
    agents_tls: Tls | None = Field(
        default=None, description="mutual TLS of the agents' listener; required unless it is a Unix socket"
    )
    api: Endpoint = Field(default="127.0.0.1:8080", description="the page, the metrics and the REST API")
    api_tls: ServerTls | None = Field(default=None, description="HTTPS of `api`; required beyond loopback")
    api_token_file: File | None = Field(
        default=None,
        description="tokens of the API's users, one NAME:ROLE:TOKEN a line; roles are read, operate, apply;"
        " required beyond loopback",
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

    endpoints: tuple[Annotated[str, Field(pattern=r"^https?://[^\s/]+$"), Form("URL")], ...] = Field(
        min_length=1, description="members of the cluster; https beyond loopback"
    )
    prefix: str = Field(
        default="/rivulet/", pattern=r"^/[a-z0-9/_-]*/$", description="what the names of all keys begin with"
    )
    lease: Seconds = Field(
        default=3.0, ge=1.0, le=60.0, description="time without renewal after which another controller may lead"
    )
    tls: Tls | None = Field(default=None, description="files of the connection to etcd")

    @model_validator(mode="after")
    def _guarded(self) -> Etcd:
        for endpoint in self.endpoints:
            scheme, _, place = endpoint.partition("://")
            if scheme == "http" and not is_local(place if ":" in place.rpartition("]")[2] else f"{place}:2379"):
                raise ValueError(f"endpoints: keys would cross {endpoint} in the clear: use https beyond loopback")
        return self
