"""What a rack is now, as values, and what each switch should hold by them: for this process and for workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from .config import Config, SwitchConfig
from .desired import Fragment, Numbers, Tor, desired
from .l2 import Learned, hop_name
from .names import Names
from .placing import weights
from .state import State


@dataclass(slots=True)
class Rack:
    """What is in force: shared by the controller, which changes it, and the fleet, which reads it."""

    config: Config
    state: State
    numbers: Numbers
    draining: frozenset[str] = frozenset()
    """Replicas that get nothing new: an operator drains them, they are mute and left out, or they return."""
    returning: frozenset[str] = frozenset()
    """Those of these that get nothing new for a moment (returning.py)."""
    strangers: dict[str, frozenset[str]] = field(default_factory=dict)
    """By service, replicas that get nothing new of it: they have other content than the one in force."""
    refused: dict[str, frozenset[str]] = field(default_factory=dict)
    """By service, replicas that get nothing new of it: their agents refuse it."""

    def apart(self) -> dict[str, frozenset[str]]:
        """By service, replicas that get nothing new of it, for either reason."""
        none: frozenset[str] = frozenset()
        names = {*self.strangers, *self.refused}
        return {name: self.strangers.get(name, none) | self.refused.get(name, none) for name in names}

    def copy(self) -> Rack:
        """The same values, which later changes leave as they are."""
        return replace(self, state=self.state.copy(), strangers=dict(self.strangers), refused=dict(self.refused))


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one switch beside its configuration."""

    tor: Tor
    readmitted: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """By pool and replica, the exclusions after which plain TCP is allowed again."""
    learned: frozenset[Learned] = frozenset()
    neighbours: Mapping[str, str] = field(default_factory=dict)
    """MAC addresses by next hop."""
    mtus: Mapping[str, int] = field(default_factory=dict)
    """What tunnels take, by the replica's address."""
    unheard: frozenset[tuple[int, int]] = frozenset()
    """Members, by pool and replica numbers, that get nothing before their first heartbeat."""


UNKNOWN = Known(Tor(tor_id=0))
"""Of a switch that had no session yet."""


def fragments_of(names: Names, rack: Rack, place: SwitchConfig, known: Known) -> dict[str, Fragment]:
    """What a switch should hold."""
    found = dict(known.neighbours)
    for replica in rack.config.replicas:
        # Replicas' MAC addresses that the configuration does not give come from their agents.
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
        rack.apart(),
        known.unheard,
    )
