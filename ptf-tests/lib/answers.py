# SPDX-License-Identifier: Apache-2.0
"""The ToR's answers to heartbeats, kept apart from what tests wait for: they come whenever somebody beats."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

ETH_HEARTBEAT, ETH_IPV4, ETH_IPV6 = b"\x88\xb5", b"\x08\x00", b"\x86\xdd"
PORT = (34997).to_bytes(2, "big")


def is_answer(frame: bytes) -> bool:
    """An answer in the rack, or one by UDP from the ToR's port."""
    at = 16 if frame[12:14] == b"\x81\x00" else 12
    kind, at = frame[at : at + 2], at + 2
    if kind == ETH_HEARTBEAT:
        return True
    if kind == ETH_IPV4:
        l4 = at + (frame[at] & 15) * 4
        return frame[at + 9] == 17 and frame[l4 : l4 + 2] == PORT
    return kind == ETH_IPV6 and frame[at + 6] == 17 and frame[at + 40 : at + 42] == PORT


class WithoutAnswers:
    """PTF's dataplane, whose `poll` gives everything but answers; these are in `answers`, as (port, frame)."""

    def __init__(self, dataplane: Any) -> None:
        self._dataplane = dataplane
        self.answers: deque[tuple[int, bytes]] = deque(maxlen=4096)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataplane, name)

    def poll(self, device: int, port: int | None = None, timeout: float = 2.0) -> Any:
        deadline = time.monotonic() + timeout
        while True:
            result = self._dataplane.poll(device, port, timeout=max(deadline - time.monotonic(), 0.0))
            if not isinstance(result, self._dataplane.PollSuccess) or not is_answer(bytes(result.packet)):
                return result
            self.answers.append((result.port, bytes(result.packet)))

    def flush(self) -> None:
        self._dataplane.flush()
        self.answers.clear()
