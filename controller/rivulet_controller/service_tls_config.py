"""The model of a service's `tls` in the rack's description."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from . import limits
from .model import Model
from .values import Form, ReplicaFile


def _local_server(value: Any) -> Any:
    """The server behind TLS in canonical form: loopback, or an address that a host can have."""
    if not isinstance(value, str):
        return value
    try:
        end = limits.endpoint(value)
    except ValueError:
        raise ValueError(f"{value[:80]!r} is not ADDRESS:PORT such as 127.0.0.1:80 or [::1]:80") from None
    return limits.endpoint_text(end)


class Certificate(Model):
    """PEM files on each replica: a certificate with its intermediate ones, and its private key."""

    certificate: ReplicaFile = Field(description="the certificate and the intermediate ones, in this order")
    key: ReplicaFile = Field(description="its private key, which no other users may read")


Forwarded = Literal["headers", "proxy", "none"]


class ServiceTls(Model):
    """HTTPS of a service: `rivulet tls` on each replica ends TLS before a server of plain HTTP
    (docs/tls.md).
    """

    certificates: tuple[Certificate, ...] = Field(
        min_length=1,
        max_length=limits.CERTIFICATES,
        description="chosen by the name that a client asks for; the first is for other clients",
    )
    server: Annotated[str, BeforeValidator(_local_server), Form("`ADDRESS:PORT`")] = Field(
        default="127.0.0.1:80", description="the server of plain HTTP on each replica"
    )
    forwarded: Forwarded = Field(
        default="headers",
        description="how the server learns the client's address: fields X-Forwarded-*, the PROXY protocol, or not",
    )
    client_ca: ReplicaFile | None = Field(
        default=None, description="PEM file on each replica: clients must have a certificate of one of its authorities"
    )
