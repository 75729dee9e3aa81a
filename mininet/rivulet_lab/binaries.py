"""Paths of binaries, and their scheduling priority."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


class RackError(Exception):
    """The rack could not be built or does not work; the message gives the reason and where to look."""


def folders() -> list[Path]:
    """Folders to search for Rivulet's binaries: RIVULET_BIN if it is set, else cargo's."""
    if "RIVULET_BIN" in os.environ:
        return [Path(os.environ["RIVULET_BIN"])]
    target = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
    return [target / "release", target / "ci"]


def binary(name: str) -> str:
    """Path of one of Rivulet's binaries; RackError if it does not exist."""
    found = next((folder / name for folder in folders() if (folder / name).exists()), None)
    if found is None:
        raise RackError(f"{folders()[0] / name} does not exist: run `make build` first")
    return str(found)


def built(*names: str) -> bool:
    """Whether these binaries exist."""
    try:
        return all(binary(name) for name in names)
    except RackError:
        return False


@functools.cache
def prompt(priority: int = 5) -> tuple[str, ...]:
    """Command prefix that gives a process real-time priority, as links, switches and kernels have it.

    The packet path of a rack is hardware and kernels; here it is processes. On a busy machine they would wait for the
    processor, so that heartbeats come late and live replicas are excluded. Processes of one priority alternate every
    100 ms; a higher one is for processes that must answer sooner. Empty if the kernel does not permit it.
    """
    command = ("chrt", "--rr", str(priority))
    try:
        allowed = subprocess.run([*command, "true"], capture_output=True, timeout=5, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        allowed = False
    return command if allowed else ()
