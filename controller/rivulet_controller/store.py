"""Storage of the controller's durable state: a few thousand small values under readable keys.

`SqliteStore` is the embedded default; `EtcdStore` (etcd.py) serves several controllers. state.py
defines the values.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol


class StoreError(Exception):
    """The store cannot be read or written; the text has its name and the reason."""


class Store(Protocol):
    """Durable values. Calls block and come from one thread at a time. Errors are StoreError."""

    def load(self) -> dict[str, bytes]:
        """All values."""

    def save(self, changes: Mapping[str, bytes | None]) -> None:
        """Writes values and removes those that are None; durable on return."""

    def close(self) -> None:
        """Releases the store."""


class SqliteStore:
    """A SQLite file of mode 0600, since it holds keys. A save is atomic."""

    def __init__(self, path: str | Path) -> None:
        """Opens or creates the file. Raises StoreError if it cannot be used."""
        path = Path(path)
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Created before SQLite opens it, so that neither it nor its log ever has wider
            # permissions.
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            os.chmod(path, 0o600)
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("CREATE TABLE IF NOT EXISTS state (key TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT")
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"state file {path}: {error}") from None
        self._path = path

    def load(self) -> dict[str, bytes]:
        """All values."""
        with self._lock:
            try:
                return dict(self._db.execute("SELECT key, value FROM state"))
            except sqlite3.Error as error:
                raise StoreError(f"state file {self._path}: {error}") from None

    def save(self, changes: Mapping[str, bytes | None]) -> None:
        """Writes and removes in one transaction."""
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    self._db.executemany(
                        "DELETE FROM state WHERE key = ?", [(k,) for k, v in changes.items() if v is None]
                    )
                    self._db.executemany(
                        "INSERT OR REPLACE INTO state VALUES (?, ?)",
                        [(k, v) for k, v in changes.items() if v is not None],
                    )
                    self._db.execute("COMMIT")
                except BaseException:
                    # SQLite itself rolls back when the disk is full.
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise StoreError(f"state file {self._path}: {error}") from None

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._db.close()
