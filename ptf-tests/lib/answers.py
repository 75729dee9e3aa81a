# SPDX-License-Identifier: Apache-2.0
"""Separates the ToR's answers to heartbeats from the frames that tests wait for.

An answer arrives after every heartbeat, also after those that a test's threads send in the background.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

ETH_HEARTBEAT, ETH_IPV4, ETH_IPV6 = b"\x88\xb5", b"\x08\x00", b"\x86\xdd"
PORT = (34997).to_bytes(2, "big")


def answer_body(frame: bytes) -> bytes | None:
    """The payload of an answer, sent in the rack or by UDP from the ToR's port; None for any other frame."""
    at = 16 if frame[12:14] == b"\x81\x00" else 12
    kind, at = frame[at : at + 2], at + 2
    if kind == ETH_HEARTBEAT:
        return frame[at:]
    if kind == ETH_IPV4:
        l4 = at + (frame[at] & 15) * 4
        return frame[l4 + 8 :] if frame[at + 9] == 17 and frame[l4 : l4 + 2] == PORT else None
    if kind == ETH_IPV6 and frame[at + 6] == 17 and frame[at + 40 : at + 42] == PORT:
        return frame[at + 48 :]
    return None


def heartbeat_id(body: bytes) -> bytes:
    """Pool, replica, key epoch, incarnation and sequence: equal in a heartbeat and in the answer to it."""
    return body[2:6] + body[8:16]


class WithoutAnswers:
    """PTF's dataplane. `poll` returns every frame except answers, which it appends to `answers` as (port, frame)."""

    def __init__(self, dataplane: Any) -> None:
        self._dataplane = dataplane
        self.answers: deque[tuple[int, bytes]] = deque(maxlen=4096)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataplane, name)

    def poll(self, device: int, port: int | None = None, timeout: float = 2.0) -> Any:
        deadline = time.monotonic() + timeout
        while True:
            result = self._dataplane.poll(device, port, timeout=max(deadline - time.monotonic(), 0.0))
            if not isinstance(result, self._dataplane.PollSuccess) or answer_body(bytes(result.packet)) is None:
                return result
            self.answers.append((result.port, bytes(result.packet)))

    def answers_of_pool(self, pool: int) -> list[tuple[int, bytes]]:
        """The answers received so far to heartbeats of one pool; those of earlier tests have other pools."""
        return [
            (port, frame) for port, frame in self.answers if (answer_body(frame) or b"")[2:4] == pool.to_bytes(2, "big")
        ]

    def take_answer(self, beat: bytes) -> tuple[int, bytes] | None:
        """Removes and returns the answer to this heartbeat as (port, frame); None if it has not arrived yet."""
        for place, (port, frame) in enumerate(self.answers):
            if heartbeat_id(answer_body(frame) or b"") == heartbeat_id(beat):
                del self.answers[place]
                return port, frame
        return None

    def flush(self) -> None:
        self._dataplane.flush()
        self.answers.clear()
