"""Clocks: the common clock of the ToRs, estimated from their events, and the controller's own
clock.

Bookkeeping over samples only. The first ToR with a valid clock is the reference and is never
corrected: ToRs only need to agree, and a step back would put existing continuations into the
future. So jumps of the wall clock, late events and restarts of switches break no connections.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

CLOCK_BITS = 48
_MASK = (1 << CLOCK_BITS) - 1

TOLERANCE_US = 20_000
"""Error up to which an offset is kept; ToRs must agree within 100 ms (docs/wire-format.md)."""

WINDOW_S = 30.0
"""How long a sample counts; meanwhile two clocks drift apart by far less than the tolerance."""

SAMPLES = 256

FIRST_SAMPLES = 5
FIRST_WAIT_S = 1.0
"""A first offset waits for this many samples or this long, since a single event may be late."""


def signed(difference: int) -> int:
    """The difference of two 48-bit clocks as a signed number."""
    difference &= _MASK
    return difference - (1 << CLOCK_BITS) if difference >> (CLOCK_BITS - 1) else difference


class SteadyClock:
    """Seconds that never go back, at the pace of the monotonic clock, so that jumps of the wall
    clock do not affect keys.

    Starts at `start`, the newest time on record, or at the wall clock's time without a record. So
    neither time without a controller nor another machine's wall clock counts.
    """

    def __init__(self, start: float | None = None) -> None:
        self._base = (time.time() if start is None else start) - time.monotonic()

    def now(self) -> float:
        """Seconds; comparable only with this clock's own."""
        return self._base + time.monotonic()


class RackClock:
    """The ToRs' common clock relative to the controller's monotonic clock, in microseconds."""

    def __init__(self) -> None:
        self.reference = ""
        """The switch with the common clock; empty before the first."""
        self._base: int | None = None
        self._samples: deque[tuple[float, int]] = deque(maxlen=SAMPLES)

    def now(self, monotonic: float, wall: float) -> int:
        """The common time. The first call without a reference sets it by the wall clock."""
        if self._base is None:
            self._base = round((wall - monotonic) * 1e6)
        return (round(monotonic * 1e6) + self._base) & _MASK

    def observe(self, switch: str, monotonic: float, clock: int) -> None:
        """Takes the time of a valid clock from an event that just arrived. The least delayed event
        is the most accurate.
        """
        if not self.reference:
            self.reference = switch
        if switch != self.reference:
            return
        while self._samples and monotonic - self._samples[0][0] > WINDOW_S:
            self._samples.popleft()
        newest = (clock - round(monotonic * 1e6)) & _MASK
        self._samples.append((monotonic, newest))
        self._base = max((base for _, base in self._samples), key=lambda base: signed(base - newest))


@dataclass(slots=True)
class OffsetEstimate:
    """Estimates the offset from one ToR's local clock to the common clock."""

    _samples: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=SAMPLES))

    def reset(self) -> None:
        """Drops all samples: the switch or its pipeline restarted."""
        self._samples.clear()

    def sample(self, monotonic: float, common: int, local: int) -> None:
        """Takes an event: the common time of its arrival, and the local clock when it was made."""
        while self._samples and monotonic - self._samples[0][0] > WINDOW_S:
            self._samples.popleft()
        self._samples.append((monotonic, (common - local) & _MASK))

    def wanted(self, current: int | None, monotonic: float) -> int | None:
        """The offset to set; None if `current` is accurate enough. The least delayed sample is the
        most accurate.
        """
        if not self._samples:
            return None
        waited = monotonic - self._samples[0][0]
        if current is None and len(self._samples) < FIRST_SAMPLES and waited < FIRST_WAIT_S:
            return None
        newest = self._samples[-1][1]
        best = min((offset for _, offset in self._samples), key=lambda offset: signed(offset - newest))
        if current is not None and abs(signed(best - current)) <= TOLERANCE_US:
            return None
        return best
