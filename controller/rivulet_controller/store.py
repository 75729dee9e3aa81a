"""What the controller remembers across its own restarts: key rings and operators' decisions.

`Store` is the seam; `SqliteStore` is the embedded default. The file is readable by its owner only, since it
holds keys.
"""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .keys import Key, KeyRing, Kind, State


@dataclass(frozen=True, slots=True)
class Decision:
    """What an operator decided about a replica; None where the configuration's value holds."""

    draining: bool = False
    weight: int | None = None


class Store(Protocol):
    """Durable state. Every call is short; errors are OSError or sqlite3.Error."""

    def key_ring(self, service: str) -> KeyRing:
        """The keys of a service, empty if there are none yet."""

    def save_key_ring(self, service: str, ring: KeyRing) -> None:
        """Replaces the keys of a service, all or nothing."""

    def decisions(self) -> dict[str, Decision]:
        """Operators' decisions by replica."""

    def save_decision(self, replica: str, decision: Decision) -> None:
        """Replaces the decision about one replica."""

    def next_counter(self, name: str) -> int:
        """A durable counter, incremented and returned (ToR incarnations, election ids)."""

    def close(self) -> None:
        """Releases the store."""


_SCHEMA = """
CREATE TABLE IF NOT EXISTS keys (
    service TEXT NOT NULL, kind TEXT NOT NULL, position INTEGER NOT NULL, epoch INTEGER NOT NULL,
    secret BLOB NOT NULL, created REAL NOT NULL, state TEXT NOT NULL, since REAL NOT NULL,
    PRIMARY KEY (service, kind, position)) STRICT;
CREATE TABLE IF NOT EXISTS decisions (
    replica TEXT PRIMARY KEY, draining INTEGER NOT NULL, weight INTEGER) STRICT;
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
"""


class SqliteStore:
    """The embedded store: one SQLite file, mode 0600."""

    def __init__(self, path: str | Path) -> None:
        """Opens or makes the file. Raises OSError or sqlite3.Error if it cannot be used."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        os.chmod(path, 0o600)
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.executescript(_SCHEMA)

    def key_ring(self, service: str) -> KeyRing:
        """The keys of a service, empty if there are none yet."""
        rows = self._db.execute(
            "SELECT kind, epoch, secret, created, state, since FROM keys WHERE service = ? ORDER BY kind, position",
            (service,),
        )
        return KeyRing(tuple(Key(Kind(r[0]), r[1], r[2], r[3], State(r[4]), r[5]) for r in rows))

    def save_key_ring(self, service: str, ring: KeyRing) -> None:
        """Replaces the keys of a service in one transaction."""
        rows = [
            (service, kind.value, position, key.epoch, key.secret, key.created, key.state.value, key.since)
            for kind in Kind
            for position, key in enumerate(ring.of(kind))
        ]
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.execute("DELETE FROM keys WHERE service = ?", (service,))
            self._db.executemany("INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise

    def decisions(self) -> dict[str, Decision]:
        """Operators' decisions by replica."""
        rows = self._db.execute("SELECT replica, draining, weight FROM decisions")
        return {row[0]: Decision(bool(row[1]), row[2]) for row in rows}

    def save_decision(self, replica: str, decision: Decision) -> None:
        """Replaces the decision about one replica."""
        self._db.execute(
            "INSERT OR REPLACE INTO decisions VALUES (?, ?, ?)",
            (replica, int(decision.draining), decision.weight),
        )

    def next_counter(self, name: str) -> int:
        """Increments a counter and gives its new value; the first is 1."""
        row = self._db.execute(
            "INSERT INTO counters VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET value = value + 1 RETURNING value",
            (name,),
        ).fetchone()
        return int(row[0])

    def close(self) -> None:
        """Closes the file."""
        self._db.close()
