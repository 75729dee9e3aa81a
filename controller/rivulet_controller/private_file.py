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
    Root's process refuses files of other users, except of the user that ran it by sudo.
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
    if stat.S_ISREG(status.st_mode) and os.geteuid() == 0 and status.st_uid not in (0, _caller()):
        # Its owner knows the content, and may have put it there for root to read.
        raise PermissionError(
            errno.EACCES,
            f"it holds secrets and is a file of user {status.st_uid}, who can change it: chown root {path}",
            str(path),
        )


def _caller() -> int:
    """Number of the user that ran this process by sudo, else of root."""
    try:
        return int(os.environ.get("SUDO_UID", "0"))
    except ValueError:
        return 0
