"""Files that hold keys or tokens: refused when other users can read or change them, as ssh refuses private keys.

host/private-file has the same rule for the programs in Rust.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

GROUP_AND_OTHERS = 0o077
ALL_BUT_GROUP_READ = 0o037


def require_private(path: Path) -> None:
    """Raises OSError, naming the file and what to do, for one that other users can read, or that is not there.

    The group may read a file of root's where this process is not root: a service's user has no other way to its keys.
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
