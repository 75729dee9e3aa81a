"""Notes when the bytes of a download reached its application.

Each read is an in-order piece, so a gap between reads is a stall that a user would see. Times are
`time.monotonic()`, which all processes of one machine share.
"""

from __future__ import annotations

import hashlib
import itertools
import statistics
from dataclasses import dataclass, field

BIN_S = 0.001
"""Reads within one bin are one sample: a stall is measured to a millisecond, a 200 MB file stays small."""


@dataclass(slots=True)
class Meter:
    """Samples of a download."""

    count: int = 0
    samples: list[tuple[float, int]] = field(default_factory=list)
    gap_s: float = 0.0
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)

    def take(self, data: bytes, now: float) -> None:
        """Notes a piece that came at `now`."""
        self.count += len(data)
        self.digest.update(data)
        if self.samples and now - self.samples[-1][0] < BIN_S:
            self.samples[-1] = (self.samples[-1][0], self.count)
        else:
            if self.samples:
                self.gap_s = max(self.gap_s, now - self.samples[-1][0])
            self.samples.append((now, self.count))


def longest_gap(samples: list[tuple[float, int]], start: float, end: float) -> float:
    """Longest time without a new byte that overlaps [start, end), seconds. A gap is what lies between samples."""
    times = [time_ for time_, _ in samples]
    gaps = [b - a for a, b in itertools.pairwise(times) if b > start and a < end]
    return max(gaps, default=0.0)


def goodput_mbps(samples: list[tuple[float, int]], start: float, end: float) -> float:
    """Megabits a second of new bytes in [start, end)."""
    before = next((count for at, count in reversed(samples) if at < start), 0)
    after = next((count for at, count in reversed(samples) if at < end), before)
    return (after - before) * 8 / (end - start) / 1e6 if end > start else 0.0


def typical_mbps(samples: list[tuple[float, int]], start: float, end: float, parts: int = 10) -> float:
    """The median goodput of so many parts of [start, end): what it was most of the time.

    An attack goes on all the while; what holds a busy machine up for a moment does not.
    """
    edges = [start + (end - start) * part / parts for part in range(parts + 1)]
    return statistics.median(goodput_mbps(samples, a, b) for a, b in itertools.pairwise(edges))


def recovered_after(samples: list[tuple[float, int]], kill: float, before: float, span: float) -> float | None:
    """Seconds from a kill until goodput is back: the first `span` of it with 90 % of that of the `before` seconds.

    None if that does not come before the samples end.
    """
    usual = goodput_mbps(samples, kill - before, kill)
    last = samples[-1][0] if samples else kill
    for at, _ in samples:
        if at < kill:
            continue
        if at + span > last:
            return None
        if goodput_mbps(samples, at, at + span) >= 0.9 * usual:
            return at - kill
    return None
