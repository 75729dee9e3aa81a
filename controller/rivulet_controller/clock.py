"""Clocks: the ToRs' common clock, with the offset of each from events that carry its time, and the controller's own.

Pure bookkeeping over samples. The first ToR with a valid clock is the reference, and its clock is never corrected: what
matters is that ToRs agree, and a step back would make established connections' continuations lie in the future. So
neither a jump of the wall clock, nor a late event, nor a restart of a switch breaks connections.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

CLOCK_BITS = 48
_MASK = (1 << CLOCK_BITS) - 1

TOLERANCE_US = 20_000
"""Error below which an offset is left alone; ToRs must agree within 100 ms (docs/wire-format.md)."""

WINDOW_S = 30.0
"""How long a sample counts: drift of two clocks stays far below the tolerance meanwhile."""

SAMPLES = 256

FIRST_SAMPLES = 5
FIRST_WAIT_S = 1.0
"""A first offset waits for so many samples, or so long: a single event may have been late."""


def signed(difference: int) -> int:
    """A difference of two 48-bit clocks as the nearest signed number."""
    difference &= _MASK
    return difference - (1 << CLOCK_BITS) if difference >> (CLOCK_BITS - 1) else difference


class SteadyClock:
    """Seconds that only go forward, at the pace of the monotonic clock: jumps of the wall clock do not reach keys.

    It goes on from `start`, the newest time on record; without one it starts at the wall clock's. So the time for which
    no controller ran does not count, and neither does what another machine's wall clock says.
    """

    def __init__(self, start: float | None = None) -> None:
        self._base = (time.time() if start is None else start) - time.monotonic()

    def now(self) -> float:
        """Seconds, to be compared with its own only."""
        return self._base + time.monotonic()


class RackClock:
    """The common clock against the controller's monotonic one, microseconds."""

    def __init__(self) -> None:
        self.reference = ""
        """The switch whose clock is the common one; empty before there is any."""
        self._base: int | None = None
        self._samples: deque[tuple[float, int]] = deque(maxlen=SAMPLES)

    def now(self, monotonic: float, wall: float) -> int:
        """The common time; the first call without a reference takes the wall clock for it."""
        if self._base is None:
            self._base = round((wall - monotonic) * 1e6)
        return (round(monotonic * 1e6) + self._base) & _MASK

    def observe(self, switch: str, monotonic: float, clock: int) -> None:
        """A valid clock's time in an event that arrived now. The least delayed event is nearest the truth."""
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
    """The offset of one ToR's local clock to the common clock, from samples of it."""

    _samples: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=SAMPLES))

    def reset(self) -> None:
        """Forgets everything: the switch or its pipeline started again."""
        self._samples.clear()

    def sample(self, monotonic: float, common: int, local: int) -> None:
        """One event: common time when it arrived, local clock when it was made."""
        while self._samples and monotonic - self._samples[0][0] > WINDOW_S:
            self._samples.popleft()
        self._samples.append((monotonic, (common - local) & _MASK))

    def wanted(self, current: int | None, monotonic: float) -> int | None:
        """The offset to set, or None if `current` is good enough. The least delayed sample is nearest the truth."""
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
