"""What a scenario's story waits for: it gives control back meanwhile (Standing.run)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

ASK_S = 0.2
"""Between two questions to the controller."""


def pause(seconds: float) -> Iterator[None]:
    """So long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield


def until(condition: Callable[[], bool]) -> Iterator[None]:
    """Until it holds."""
    while not condition():
        yield from pause(ASK_S)
