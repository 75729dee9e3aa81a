"""Sources that a switch's bridge learned from events, and how they are forgotten.

A P4 switch has no ageing. So a source that was not heard of for long is doubted: its
`known_sources` row is taken away, while it is still bridged. If it speaks, the switch tells it
again and the row comes back; if it stays silent it is forgotten. Pure bookkeeping; times are
monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .config import SwitchConfig
from .l2 import LearnedSource

AGE_S = 300.0
"""After how long a source is doubted (the default of IEEE 802.1Q bridges)."""

DOUBT_S = 60.0
"""How long a doubted source has to speak."""

LEARNED_MAX = 4096
"""Sources kept a switch; further ones are reached by flooding until others are forgotten."""

DOUBTED_AT_ONCE = 50
"""Most sources doubted in one look: each that speaks is an event, and events are metered."""


@dataclass(slots=True)
class _Source:
    port: int
    heard_at: float
    doubted_at: float | None = None


class Sources:
    """The learned sources of one switch."""

    def __init__(self) -> None:
        self._all: dict[tuple[int, int], _Source] = {}

    def learned(self) -> frozenset[LearnedSource]:
        """All of them."""
        return frozenset(LearnedSource(v, m, s.port, s.doubted_at is not None) for (v, m), s in self._all.items())

    def learn(self, switch: SwitchConfig, vlan: int, mac: int, port: int, now: float) -> bool:
        """A source that the switch does not know; whether that changes anything.

        Group addresses, foreign ports and VLANs that the port does not carry are nobody's.
        """
        if mac >> 40 & 1 or mac == 0 or not switch.carries(port, vlan):
            return False
        known = self._all.get((vlan, mac))
        if known is None and len(self._all) >= LEARNED_MAX:
            return False
        self._all[vlan, mac] = _Source(port, now)
        return known is None or known.port != port or known.doubted_at is not None

    def recall(self, switch: SwitchConfig, rows: Iterable[tuple[int, int, int]], now: float) -> None:
        """Rows (VLAN, MAC, port) that the switch has from before this controller started."""
        for vlan, mac, port in rows:
            self.learn(switch, vlan, mac, port, now)

    def age(self, now: float) -> bool:
        """Doubts who was silent for long, forgets who stayed so; whether anything changed."""
        gone = [k for k, s in self._all.items() if s.doubted_at is not None and now - s.doubted_at >= DOUBT_S]
        for key in gone:
            del self._all[key]
        old = [s for s in self._all.values() if s.doubted_at is None and now - s.heard_at >= AGE_S]
        for source in sorted(old, key=lambda s: s.heard_at)[:DOUBTED_AT_ONCE]:
            source.doubted_at = now
        return bool(gone or old)

    def keep(self, switch: SwitchConfig) -> None:
        """Forgets what no longer fits the configuration."""
        for key in [k for k, s in self._all.items() if not switch.carries(s.port, k[0])]:
            del self._all[key]
