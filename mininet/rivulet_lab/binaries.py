"""Where binaries are, and how they are run where time matters."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


class RackError(Exception):
    """The rack could not be built or does not do what it should; the text says what and where to look."""


def folders() -> list[Path]:
    """Where binaries of ours are looked for: in RIVULET_BIN, if that is set, else where cargo puts them."""
    if "RIVULET_BIN" in os.environ:
        return [Path(os.environ["RIVULET_BIN"])]
    target = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
    return [target / "release", target / "ci"]


def binary(name: str) -> str:
    """Path of a binary of ours. RackError if it is not there."""
    found = next((folder / name for folder in folders() if (folder / name).exists()), None)
    if found is None:
        raise RackError(f"{folders()[0] / name} is not there: run `make build` first")
    return str(found)


def built(*names: str) -> bool:
    """Whether these binaries of ours are there."""
    try:
        return all(binary(name) for name in names)
    except RackError:
        return False


@functools.cache
def prompt(priority: int = 5) -> tuple[str, ...]:
    """What runs a command so that it is scheduled at once, as links, switches and the kernel's TCP are.

    The packet path of a rack is hardware and kernels; here it is processes, which wait for their turn on a busy
    machine, so that heartbeats come late and replicas that are well are excluded. Those of one priority take turns of
    100 ms; a higher one is for what would have a machine of its own and must answer sooner. Empty where it is not
    allowed.
    """
    command = ("chrt", "--rr", str(priority))
    try:
        allowed = subprocess.run([*command, "true"], capture_output=True, timeout=5, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        allowed = False
    return command if allowed else ()
