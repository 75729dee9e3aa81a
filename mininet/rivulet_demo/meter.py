"""Records the times at which bytes of a download reach its application.

Each read is an in-order piece, so a gap between two reads is a stall for the user. Times are `time.monotonic()`, which
all processes of a machine share.
"""

from __future__ import annotations

import hashlib
import itertools
import statistics
from dataclasses import dataclass, field

BIN_S = 0.001
"""Seconds. Reads within one bin are one sample: it resolves stalls to a millisecond and keeps the file small."""


@dataclass(slots=True)
class Meter:
    """Samples of a download."""

    count: int = 0
    samples: list[tuple[float, int]] = field(default_factory=list)
    gap_s: float = 0.0
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)

    def take(self, data: bytes, now: float) -> None:
        """Records a piece that arrived at `now`."""
        self.count += len(data)
        self.digest.update(data)
        if self.samples and now - self.samples[-1][0] < BIN_S:
            self.samples[-1] = (self.samples[-1][0], self.count)
        else:
            if self.samples:
                self.gap_s = max(self.gap_s, now - self.samples[-1][0])
            self.samples.append((now, self.count))


def longest_gap(samples: list[tuple[float, int]], start: float, end: float) -> float:
    """Longest gap between two samples that overlaps [start, end), seconds."""
    times = [time_ for time_, _ in samples]
    gaps = [b - a for a, b in itertools.pairwise(times) if b > start and a < end]
    return max(gaps, default=0.0)


def goodput_mbps(samples: list[tuple[float, int]], start: float, end: float) -> float:
    """Megabits a second of new bytes in [start, end)."""
    before = next((count for at, count in reversed(samples) if at < start), 0)
    after = next((count for at, count in reversed(samples) if at < end), before)
    return (after - before) * 8 / (end - start) / 1e6 if end > start else 0.0


def typical_mbps(samples: list[tuple[float, int]], start: float, end: float, parts: int = 10) -> float:
    """Median goodput of `parts` equal parts of [start, end), Mb/s.

    An attack affects most parts; a stall of a busy machine affects few.
    """
    edges = [start + (end - start) * part / parts for part in range(parts + 1)]
    return statistics.median(goodput_mbps(samples, a, b) for a, b in itertools.pairwise(edges))


def recovered_after(samples: list[tuple[float, int]], kill: float, before: float, span: float) -> float | None:
    """Seconds from a kill to the first `span` seconds with 90 % of the goodput of the `before` seconds.

    None if there are none before the samples end.
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
