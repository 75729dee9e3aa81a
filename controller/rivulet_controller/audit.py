"""The log of changes: on record before anything changes, or nothing does."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

log = logging.getLogger("rivulet.audit")


class AuditError(Exception):
    """The log cannot be written."""


class Audit:
    """A line of JSON each, in a file of the controller's user."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def note(self, who: str, what: str, **details: Any) -> None:
        """Writes one line; it is durable when this returns. Raises AuditError."""
        line = json.dumps({"time": round(time.time(), 3), "who": who, "what": what, **details})
        log.info("%s", line)
        if self._path is None:
            return
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(handle, line.encode() + b"\n")
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            raise AuditError(f"the audit log {self._path} cannot be written: {error}") from None
