"""Sources (MAC addresses) that a switch's bridge learned, and how they age.

A P4 switch has no ageing. So a source that was not seen for long becomes doubted: its
`known_sources` row is deleted, while frames to it are still bridged. Its next frame raises an
event, which restores the row; without one it is forgotten. Bookkeeping only; times are monotonic
seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .config import SwitchConfig
from .l2 import LearnedSource

AGE_S = 300.0
"""Time without an event after which a source is doubted (the default of IEEE 802.1Q bridges)."""

DOUBT_S = 60.0
"""How long a doubted source is kept without a frame."""

LEARNED_MAX = 4096
"""Sources kept for a switch; more are flooded to until others age."""

DOUBTED_AT_ONCE = 50
"""Most sources doubted at a time: each may raise an event, and events are metered."""


@dataclass(slots=True)
class _Source:
    port: int
    seen_at: float
    doubted_at: float | None = None


class Sources:
    """The learned sources of one switch."""

    def __init__(self) -> None:
        self._all: dict[tuple[int, int], _Source] = {}

    def learned(self) -> frozenset[LearnedSource]:
        """All learned sources."""
        return frozenset(LearnedSource(v, m, s.port, s.doubted_at is not None) for (v, m), s in self._all.items())

    def learn(self, switch: SwitchConfig, vlan: int, mac: int, port: int, now: float) -> bool:
        """Takes a source reported by the switch; True if that changes an entry.

        Ignores group addresses, unknown ports, and VLANs that the port does not carry.
        """
        if mac >> 40 & 1 or mac == 0 or not switch.carries(port, vlan):
            return False
        known = self._all.get((vlan, mac))
        if known is None and len(self._all) >= LEARNED_MAX:
            return False
        self._all[vlan, mac] = _Source(port, now)
        return known is None or known.port != port or known.doubted_at is not None

    def recall(self, switch: SwitchConfig, rows: Iterable[tuple[int, int, int]], now: float) -> None:
        """Takes rows (VLAN, MAC address, port) that the switch has from before this controller
        started.
        """
        for vlan, mac, port in rows:
            self.learn(switch, vlan, mac, port, now)

    def age(self, now: float) -> bool:
        """Doubts sources without a recent event, and drops those doubted for long; True if anything
        changed.
        """
        gone = [k for k, s in self._all.items() if s.doubted_at is not None and now - s.doubted_at >= DOUBT_S]
        for key in gone:
            del self._all[key]
        old = [s for s in self._all.values() if s.doubted_at is None and now - s.seen_at >= AGE_S]
        for source in sorted(old, key=lambda s: s.seen_at)[:DOUBTED_AT_ONCE]:
            source.doubted_at = now
        return bool(gone or old)

    def keep(self, switch: SwitchConfig) -> None:
        """Drops sources that no longer fit the configuration."""
        for key in [k for k, s in self._all.items() if not switch.carries(s.port, k[0])]:
            del self._all[key]
