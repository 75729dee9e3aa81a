"""Bars: bounds that a figure must keep. Each is printed with the measured value; a missed one fails the bench."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure and its bound, in the same unit."""

    what: str
    measured: float
    wanted: float
    at_most: bool = False
    """Whether the bound is an upper one."""

    @property
    def reached(self) -> bool:
        """Whether the figure keeps the bound; NaN (not measured) does not."""
        return self.measured <= self.wanted if self.at_most else self.measured >= self.wanted


def judge(bars: Sequence[Bar]) -> int:
    """Prints the bars; returns the bench's exit code: 1 if one is missed, or if there are none."""
    for bar in bars:
        bound = "at most" if bar.at_most else "at least"
        print(f"{'reached' if bar.reached else 'MISSED':8}{bar.what}: {bar.measured:.6g}, {bound} {bar.wanted:.6g}")
    missed = sum(not bar.reached for bar in bars)
    print(f"bars: {len(bars) - missed} reached, {missed} missed")
    return 1 if missed or not bars else 0
