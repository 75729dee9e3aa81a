"""The audit log: a change is recorded durably before it is made, or it is not made."""

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
"""Newest records kept in memory for the API."""

LINE_MAX = 4096
"""Longest line in bytes, so that a client cannot fill the disk with one request."""


class AuditError(Exception):
    """The log cannot be written."""


class Audit:
    """The log: one JSON object a line, in a file that belongs to the controller's user."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.recent: deque[dict[str, Any]] = deque(self._last(), maxlen=RECENT)
        """The newest records, oldest first, including those of an earlier run."""

    def note(self, who: str, what: str, **details: Any) -> None:
        """Appends a record; durable on return. Raises AuditError, and then the file is unchanged."""
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
                # On a nearly full disk a write may be short without an error.
                if os.write(handle, line) != len(line):
                    raise OSError("the disk has room for only a part of the line")
                os.fsync(handle)
            except OSError:
                # A partial line would corrupt the next one.
                with suppress(OSError):
                    os.ftruncate(handle, before)
                raise
        finally:
            os.close(handle)

    def _last(self) -> list[dict[str, Any]]:
        """The file's last records; lines that are not records are skipped."""
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
