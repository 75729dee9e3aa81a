"""CPU time of the demo's processes."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Reading:
    """CPU seconds of a process so far, with the time of the reading: on a busy machine a round of them takes long."""

    name: str
    spent_s: float
    at: float


def readings(root: int) -> dict[int, Reading]:
    """CPU time of a process and its running descendants, by process id."""
    parents: dict[int, int] = {}
    found: dict[int, Reading] = {}
    tick = os.sysconf("SC_CLK_TCK")
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            head, _, rest = (folder / "stat").read_text().rpartition(")")
        except OSError:
            continue
        fields = rest.split()
        pid, parents[int(folder.name)] = int(folder.name), int(fields[1])
        found[pid] = Reading(head.partition("(")[2], sum(int(one) for one in fields[11:13]) / tick, time.monotonic())

    def inside(pid: int) -> bool:
        while pid not in (0, root):
            pid = parents.get(pid, 0)
        return pid == root

    return {pid: one for pid, one in found.items() if inside(pid)}


class CpuMeter:
    """CPU time of this process and its descendants since a moment."""

    def __init__(self) -> None:
        self.before = readings(os.getpid())
        self.at = time.monotonic()

    def cores(self) -> tuple[float, float, str]:
        """CPU seconds per second: of all processes, and of the process that used most, with its name."""
        used = []
        for pid, now in readings(os.getpid()).items():
            then = self.before.get(pid, Reading(now.name, 0.0, self.at))
            if now.at > then.at:
                used.append(((now.spent_s - then.spent_s) / (now.at - then.at), now.name))
        most, name = max(used)
        return sum(one for one, _ in used), most, name
