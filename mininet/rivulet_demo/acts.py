"""Waits inside a scenario's story; each yields, so that `Standing.run` stays in control."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

ASK_S = 0.2
"""Interval between two queries to the controller, seconds."""


def pause(seconds: float) -> Iterator[None]:
    """Waits for this many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield


def until(condition: Callable[[], bool]) -> Iterator[None]:
    """Waits until the condition holds."""
    while not condition():
        yield from pause(ASK_S)
