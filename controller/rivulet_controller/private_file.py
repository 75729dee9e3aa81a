"""Refuses files with keys or tokens that other users can read or change, as ssh does with private
keys.

host/private-file applies the same rule in Rust.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

GROUP_AND_OTHERS = 0o077
ALL_BUT_GROUP_READ = 0o037


def require_private(path: Path) -> None:
    """Raises OSError, with the file's name and what to do, if other users can read the file or it
    does not exist.

    A file of root's may be readable by its group unless this process is root: a service's user
    reads its keys that way.
    """
    status = path.stat()
    roots = status.st_uid == 0 and os.geteuid() != 0
    forbidden = ALL_BUT_GROUP_READ if roots else GROUP_AND_OTHERS
    # Pipes and devices have no content that others could read.
    if stat.S_ISREG(status.st_mode) and status.st_mode & forbidden:
        mode = stat.S_IMODE(status.st_mode)
        raise PermissionError(
            errno.EACCES, f"it holds secrets and others can read it (mode {mode:04o}): chmod 600 {path}", str(path)
        )
