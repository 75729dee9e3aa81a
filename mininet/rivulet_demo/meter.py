"""Reads a download from standard input and notes when its bytes came.

    curl -sN URL | python -m rivulet_demo.meter --out meter.json

Each read is an in-order piece that has reached an application, so a gap between reads is a stall that a
user would see. Times are `time.monotonic()`, which all processes of one machine share.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

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


def main() -> int:
    """Reads to the end, then writes bytes, sha256, longest gap and samples as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where the samples go, as JSON")
    parser.add_argument("--live", type=Path, help="a file that always holds the bytes so far, for a live view")
    options = parser.parse_args()
    meter = Meter()
    shown = 0.0
    while data := os.read(sys.stdin.fileno(), 1 << 16):
        now = time.monotonic()
        meter.take(data, now)
        if options.live is not None and now - shown > 0.1:
            shown = now
            options.live.write_text(str(meter.count))
    options.out.write_text(
        json.dumps(
            {
                "bytes": meter.count,
                "sha256": meter.digest.hexdigest(),
                "longest_gap_ms": round(meter.gap_s * 1e3, 3),
                "ended": time.monotonic(),
                "samples": meter.samples,
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
