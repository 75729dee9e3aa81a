"""The rack's state in memory, and the table entries that follow from it for each switch; used by
workers too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from .config import Config, SwitchConfig
from .desired import Fragment, desired
from .l2 import LearnedSource, hop_name
from .names import Names
from .numbers import Numbers, Tor
from .placement import weights
from .state import State


@dataclass(slots=True)
class Rack:
    """The configuration and state in force. The controller changes it, the fleet reads it."""

    config: Config
    state: State
    numbers: Numbers
    draining: frozenset[str] = frozenset()
    """Replicas that get no new requests or connections: drained by an operator, excluded as mute,
    or returning."""
    returning: frozenset[str] = frozenset()
    """The subset of `draining` that only waits to return (returning.py)."""
    mismatched: dict[str, frozenset[str]] = field(default_factory=dict)
    """By service, replicas that get none of its new clients because their content is not the one in
    force."""
    refused: dict[str, frozenset[str]] = field(default_factory=dict)
    """By service, replicas that get none of its new clients because their agents refused the
    service."""

    def excluded_by_service(self) -> dict[str, frozenset[str]]:
        """By service, the union of `mismatched` and `refused`."""
        none: frozenset[str] = frozenset()
        names = {*self.mismatched, *self.refused}
        return {name: self.mismatched.get(name, none) | self.refused.get(name, none) for name in names}

    def copy(self) -> Rack:
        """A copy that later changes to this rack leave unchanged."""
        return replace(self, state=self.state.copy(), mismatched=dict(self.mismatched), refused=dict(self.refused))


@dataclass(frozen=True, slots=True)
class SwitchFacts:
    """Facts about one switch that its configuration does not contain."""

    tor: Tor
    readmitted: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """By (pool, replica) numbers: the count of exclusions up to which plain TCP is allowed
    again."""
    learned: frozenset[LearnedSource] = frozenset()
    neighbours: Mapping[str, str] = field(default_factory=dict)
    """MAC addresses by next hop, learned by ARP or neighbour discovery."""
    mtus: Mapping[str, int] = field(default_factory=dict)
    """Path MTUs of tunnels in bytes, by the replica's address."""
    without_heartbeat: frozenset[tuple[int, int]] = frozenset()
    """Members, by (pool, replica) numbers, that get no traffic before their first heartbeat."""


NO_FACTS = SwitchFacts(Tor(tor_id=0))
"""For a switch that had no session yet."""


def fragments_of(names: Names, rack: Rack, place: SwitchConfig, known: SwitchFacts) -> dict[str, Fragment]:
    """The entries that a switch should hold, by fragment."""
    found = dict(known.neighbours)
    for replica in rack.config.replicas:
        # A replica's agent reports the MAC address where the configuration gives none.
        if replica.switch == place.name and replica.mac is None and replica.name in rack.state.macs:
            found[hop_name(place, replica)] = rack.state.macs[replica.name]
    return desired(
        names,
        rack.config,
        place,
        known.tor,
        rack.numbers,
        rack.state.rings,
        rack.state.slots,
        weights(rack.config, rack.state.decisions),
        rack.draining,
        known.readmitted,
        known.learned,
        found,
        known.mtus,
        MappingProxyType(rack.state.modes),
        rack.excluded_by_service(),
        known.without_heartbeat,
    )
