"""Saves the state of a rack."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from .rack import Rack
from .store import Store, StoreError

log = logging.getLogger("rivulet.controller")

ELECTION_BITS = 16
"""Bits of an election id below the Unix time in seconds: 65,536 sessions a second get distinct
ids."""


class Saver:
    """Saves what changed in the state of a rack."""

    def __init__(self, store: Store, rack: Rack, wake: Callable[[], None]) -> None:
        self._store = store
        self._rack = rack
        self._wake = wake
        self._saving = asyncio.Lock()

    async def next_election(self) -> int:
        """An election id for a session, above all earlier ones: of this controller, of others that
        share its state, and, thanks to the wall clock, of controllers whose state is lost. Saved
        before use. Raises StoreError.
        """
        number = self._rack.state.next_counter("election", int(time.time()) << ELECTION_BITS)
        await self.note()
        return number

    async def note(self) -> None:
        """Saves counters. A controller that shares no state continues without them, for example
        when the disk is full: a switch that restarts must not wait. Raises StoreError with etcd,
        where the counters keep controllers apart.
        """
        try:
            await self.save()
        except StoreError as error:
            if self._rack.config.etcd is not None:
                raise
            log.error("%s; continuing, the save will be repeated", error)
            self._wake()

    async def save(self) -> None:
        """Saves what changed, one save at a time, in order. Raises StoreError."""
        async with self._saving:
            changes = self._rack.state.changes()
            if not changes:
                return
            try:
                await asyncio.to_thread(self._store.save, changes)
            except BaseException:
                # A cancelled save may have been written or not; writing it twice does no harm.
                self._rack.state.retry(changes)
                raise
