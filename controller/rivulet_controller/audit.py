"""The log of changes: on record before anything changes, or nothing does."""

from __future__ import annotations

import json
import logging
import os
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

log = logging.getLogger("rivulet.audit")

RECENT = 100
"""Newest lines that are kept in memory, for those who look."""

LINE_MAX = 4096
"""Longest line, bytes: what somebody sends must not fill the disk."""


class AuditError(Exception):
    """The log cannot be written."""


class Audit:
    """A line of JSON each, in a file of the controller's user."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.recent: deque[dict[str, Any]] = deque(self._last(), maxlen=RECENT)
        """The newest lines, oldest first; those of the controller before this one too."""

    def note(self, who: str, what: str, **details: Any) -> None:
        """Writes one line; it is durable when this returns. Raises AuditError, and then no part of it is there."""
        record = {"time": round(time.time(), 3), "who": who, "what": what, **details}
        line = json.dumps(record)
        while len(line) > LINE_MAX:
            longest = max((key for key in details if isinstance(record[key], str)), key=lambda key: len(record[key]))
            record[longest] = record[longest][: len(record[longest]) // 2]
            line = json.dumps(record)
        log.info("%s", line)
        if self._path is not None:
            try:
                self._append(self._path, line.encode() + b"\n")
            except OSError as error:
                raise AuditError(f"the audit log {self._path} cannot be written: {error}") from None
        self.recent.append(record)

    @staticmethod
    def _append(path: Path, line: bytes) -> None:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            before = os.fstat(handle).st_size
            try:
                # A disk that is nearly full takes the first part, and says so by the count alone.
                if os.write(handle, line) != len(line):
                    raise OSError("there was room for a part of the line only")
                os.fsync(handle)
            except OSError:
                # Half a line would spoil the next one.
                with suppress(OSError):
                    os.ftruncate(handle, before)
                raise
        finally:
            os.close(handle)

    def _last(self) -> list[dict[str, Any]]:
        """The last lines of the file; what is no record of ours is left out."""
        if self._path is None:
            return []
        try:
            with self._path.open("rb") as file:
                file.seek(max(file.seek(0, os.SEEK_END) - RECENT * 256, 0))
                lines = file.read().splitlines()[-RECENT:]
        except OSError:
            return []
        found = []
        for line in lines:
            with suppress(ValueError):
                record = json.loads(line)
                if (
                    isinstance(record, dict)
                    and isinstance(record.get("time"), float)
                    and {"who", "what"} <= record.keys()
                ):
                    found.append(record)
        return found
