"""The numbers of a rack's services, pools and replicas, and a ToR's identity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Tor:
    """Parameters of one run of one switch's pipeline."""

    tor_id: int
    clock_offset: int = 0
    time_valid: bool = False
    sketch_keys: tuple[int, int] = field(default=(0, 0), repr=False)


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers that stand for names in the switch's tables."""

    services: Mapping[str, int]
    pools: Mapping[str, int]
    replicas: Mapping[str, Mapping[str, int]]
    """Numbers of replicas, by pool, then by replica."""
    next_hops: Mapping[str, Mapping[str, int]]
    """Numbers of next hops, by switch, then by name (l2.py)."""
    secret: bytes = field(repr=False)
    """Secret from which the keys of slots are derived."""


def tor_of(items: Mapping[str, int]) -> Tor | None:
    """The `Tor` of a running switch, from the parameters of its `tor` default action; None if that
    is not set.
    """
    if not items.get("tor_id"):
        return None
    return Tor(
        tor_id=items["tor_id"],
        clock_offset=items["clock_offset"],
        time_valid=bool(items["time_valid"]),
        sketch_keys=(items["sketch_key0"], items["sketch_key1"]),
    )
