"""What agents accept, read from limits.toml, which the agents' Rust reads too
(host/server/src/limits.rs).
"""

from __future__ import annotations

import ipaddress
import tomllib
from pathlib import Path

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_FILE = tomllib.loads((Path(__file__).parent / "limits.toml").read_text(encoding="utf-8"))

SERVICES: int = _FILE["services"]
ADDRESSES: int = _FILE["addresses"]
TUNNELS: int = _FILE["tunnels"]
STORES: int = _FILE["stores"]
CERTIFICATES: int = _FILE["certificates"]
PATH_BYTES: int = _FILE["path_bytes"]
HEARTBEATS_PER_SECOND: int = _FILE["heartbeats_per_second"]
HEARTBEAT_S: tuple[float, float] = (_FILE["heartbeat_min_us"] / 1e6, _FILE["heartbeat_max_us"] / 1e6)
LIVENESS_S: float = _FILE["liveness_max_us"] / 1e6
HORIZON_S: tuple[float, float] = (_FILE["horizon_min_us"] / 1e6, _FILE["horizon_max_us"] / 1e6)

NO_HOST = tuple(ipaddress.ip_network(text) for text in _FILE["no_host"])
"""Networks with addresses that no host can have, or that routers do not forward to one host."""


LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))


def host_address(text: object) -> IPAddress:
    """Parses an address that a single host can have. Raises ValueError with a message that shows
    the text.
    """
    if isinstance(text, ipaddress.IPv4Address | ipaddress.IPv6Address):
        text = str(text)
    if not isinstance(text, str):
        raise ValueError(f"{str(text)[:80]!r} is not an IP address such as 10.0.2.1 or fd00:2::1 (in quotes)")
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(f"{text[:80]!r} is not an IP address such as 10.0.2.1 or fd00:2::1") from None
    if "%" in text:
        raise ValueError(
            f"{text[:80]!r} has a zone, which means nothing on other machines: write the address without `%`"
        )
    for network in NO_HOST:
        if address.version == network.version and address in network:
            raise ValueError(f"{text} is in {network}: no host can be reached at such an address")
    return address


def endpoint(text: str) -> tuple[IPAddress, int]:
    """Address and port of a server on loopback or on a host. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    address = ipaddress.ip_address(host[1:-1] if bracketed else host)
    # Not `is_loopback`, which depends on Python's version for IPv4-mapped addresses.
    if not any(address.version == network.version and address in network for network in LOOPBACK):
        address = host_address(str(address))
    known = colon and bracketed == (address.version == 6) and port.isascii() and port.isdigit() and len(port) < 6
    if not known or not 1 <= int(port) <= 65535 or "%" in host:
        raise ValueError(f"{text!r} is not ADDRESS:PORT")
    return address, int(port)


def endpoint_text(endpoint: tuple[IPAddress, int]) -> str:
    """ADDRESS:PORT, with an IPv6 address in brackets."""
    address, port = endpoint
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
