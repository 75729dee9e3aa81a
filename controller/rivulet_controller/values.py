"""Scalar types of the rack's description, each with an error message that shows the value and the
allowed form.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from . import limits
from .limits import IPAddress

MAX_SECONDS = 366 * 86400.0
"""Longest duration accepted: a year."""

MIN_ROTATION_S = 0.1
"""Shortest rotation: each takes a round of the controller's loop, and an epoch has 16 bits."""


@dataclass(frozen=True, slots=True)
class Form:
    """How the rack's file writes a value, in words of the configuration reference
    (scripts/reference).
    """

    text: str


def _mac(value: Any) -> Any:
    if isinstance(value, int):
        raise ValueError("write a MAC address in quotes (YAML reads 02:00:… as a number in base 60)")
    if isinstance(value, str) and not re.fullmatch(r"([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}", value):
        raise ValueError(f"{value!r} is not a MAC address such as 02:00:00:00:00:01")
    if isinstance(value, str) and int(value[:2], 16) & 1:
        raise ValueError(f"{value!r} is a group address: the first byte of a machine's address is even")
    if isinstance(value, str) and not int(value.replace(":", ""), 16):
        raise ValueError(f"{value!r} is the null address, which no machine has")
    return value.lower() if isinstance(value, str) else value


_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def _seconds(value: Any) -> Any:
    """Parses a duration: a number of seconds, or a number with a unit (`2ms`, `20 min`)."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?|\.[0-9]{1,18})\s*([a-z]+)\s*", value)
        if match is None or match[2] not in _UNITS:
            raise ValueError(f"{value[:80]!r} is not a duration such as 20ms, 4s, 30min, 1h")
        return float(match[1]) * _UNITS[match[2]]
    if isinstance(value, bool):
        raise ValueError(f"{value} is not a duration such as 20ms, 4s, 30min, 1h")
    return value


def duration(seconds: float) -> str:
    """Formats seconds in the largest unit that leaves no fraction, in the form that the rack's file
    takes.
    """
    for unit, size in reversed(_UNITS.items()):
        if seconds >= size and abs(seconds / size - round(seconds / size)) < 1e-6:
            return f"{round(seconds / size)}{unit}"
    return f"{seconds:g}s"


@dataclass(frozen=True, slots=True)
class Within:
    """A validator of a duration from `low` to `high` seconds, compared in whole microseconds as
    switches and agents receive it.
    """

    low: float
    high: float

    def __call__(self, value: float) -> float:
        if not round(self.low * 1e6) <= round(value * 1e6) <= round(self.high * 1e6):
            raise ValueError(f"{duration(value)} is not within {duration(self.low)} to {duration(self.high)}")
        return value


def within(low: float, high: float) -> AfterValidator:
    """A duration from `low` to `high` seconds."""
    return AfterValidator(Within(low, high))


Mac = Annotated[str, BeforeValidator(_mac), Form("MAC address, in quotes")]
HostAddress = Annotated[IPAddress, BeforeValidator(limits.host_address), Form("IP address")]
Seconds = Annotated[
    float, BeforeValidator(_seconds), Field(gt=0, le=MAX_SECONDS, allow_inf_nan=False), Form("duration")
]
Rotation = Annotated[Seconds, within(MIN_ROTATION_S, MAX_SECONDS)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"), Form("name")]
PortNumber = Annotated[int, Field(ge=1, le=509)]
VlanId = Annotated[int, Field(ge=1, le=4094)]


ENDPOINT = r"^(unix:[^\x00]+|(\[[0-9a-fA-F:]+\]|[^:\s\x00]+):[0-9]{1,5})$"
MAX_ENDPOINT = 300
"""Longest endpoint: a DNS name has at most 253 characters, a Unix socket's path 107."""
MAX_PATH = 4095
"""Linux's PATH_MAX."""


def _path(value: Any) -> Any:
    if isinstance(value, str) and ("\0" in value or len(value) > MAX_PATH):
        raise ValueError(f"{value[:80]!r} is not a path")
    return value


File = Annotated[Path, BeforeValidator(_path), Form("path")]


def _replica_file(value: Any) -> Any:
    """An absolute path on another machine, kept as it is written."""
    if not isinstance(value, str):
        return value
    if not value.startswith("/") or "\0" in value or len(value.encode(errors="replace")) > limits.PATH_BYTES:
        raise ValueError(f"{value[:80]!r} is not an absolute path on the replicas such as /etc/rivulet/site.pem")
    return value


ReplicaFile = Annotated[str, BeforeValidator(_replica_file), Form("absolute path on each replica")]


def port_of(address: str) -> str:
    """Checks that HOST:PORT has a port below 65536; accepts `unix:PATH`."""
    if not address.startswith("unix:") and int(address.rpartition(":")[2]) > 65535:
        raise ValueError(f"{address!r}: the highest port is 65535")
    return address


Endpoint = Annotated[
    str, Field(pattern=ENDPOINT, max_length=MAX_ENDPOINT), AfterValidator(port_of), Form("`unix:PATH` or `HOST:PORT`")
]
