"""The Congestion Manager of a lab: its BPF file system and its command."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .binaries import binary


@contextmanager
def bpf_fs(folder: Path) -> Iterator[Path]:
    """Mounts a BPF file system in this folder until the end of the block."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "bpf", "bpf", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def cm_command(name: str, folder: Path, *words: str) -> list[str]:
    """`rivulet cm` with a congestion control of this name, pinned in the BPF file system of `folder`."""
    return [binary("rivulet"), "cm", "--name", name, "--state", str(folder / "cm"), *words]
