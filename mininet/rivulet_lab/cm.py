"""The Congestion Manager beside a lab: where it is pinned, and its command."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .binaries import binary


@contextmanager
def bpf_fs(folder: Path) -> Iterator[Path]:
    """A BPF file system in this folder until the end of the block."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "bpf", "bpf", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def cm_command(name: str, folder: Path, *words: str) -> list[str]:
    """`rivulet cm` with a congestion control of this name, pinned in a BPF file system's folder."""
    return [binary("rivulet"), "cm", "--name", name, "--state", str(folder / "cm"), *words]
