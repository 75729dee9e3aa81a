"""One switch over P4Runtime: keeps a session, pushes the pipeline when it differs, writes differences.

`SwitchLink.run` lives as long as the controller. After each (re)connection it reads what the switch has, so
that nothing is flushed to be rewritten: `apply` computes the difference to that mirror and writes only it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import finsy as fy
import grpc

from .config import SwitchConfig
from .entry import Difference, Digest, Entry, Item, Meter, Multicast, difference, from_entity

log = logging.getLogger("rivulet.switch")

BATCH = 500
"""Updates in one WriteRequest: well under gRPC's 4 MiB message, large enough to amortise the round trip."""

RECONNECT_S = (0.1, 2.0)
"""First and longest pause between attempts to reach a switch."""


class SwitchError(Exception):
    """A switch refused something, or is not there; the text says which entry and why."""


class SwitchLink:
    """The session with one switch. `ready` is called after each (re)connection as primary."""

    def __init__(
        self,
        config: SwitchConfig,
        artifacts: Path,
        election_id: int,
        ready: Callable[[SwitchLink, bool], Awaitable[None]],
        event: Callable[[SwitchLink, Any], None],
    ) -> None:
        self.config = config
        self.connected = False
        self.problem = "not connected yet"
        self._ready = ready
        self._event = event
        self._options = fy.SwitchOptions(
            p4info=artifacts / "rivulet.p4info.txtpb",
            p4blob=artifacts / "rivulet.json",
            device_id=config.device_id,
            initial_election_id=election_id,
        )
        self._switch: fy.Switch | None = None
        self._actual: dict[tuple[Any, ...], Item] = {}
        self._writing = asyncio.Lock()

    async def run(self) -> None:
        """Connects, serves the session until it breaks, connects again; ends only when cancelled."""
        pause = RECONNECT_S[0]
        while True:
            try:
                async with self._session() as switch:
                    pause = RECONNECT_S[0]
                    await self._serve(switch)
                self.problem = "the session ended"
            except (fy.P4ClientError, SwitchError, OSError, grpc.RpcError, ValueError) as error:
                self.problem = f"cannot be reached at {self.config.address}: {error}"
                log.warning("switch %s %s", self.config.name, self.problem)
            except BaseExceptionGroup as group:
                self.problem = f"session failed: {group.exceptions[0]}"
                log.warning("switch %s %s", self.config.name, self.problem)
            await asyncio.sleep(pause)
            pause = min(pause * 2, RECONNECT_S[1])

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[fy.Switch]:
        switch = fy.Switch(self.config.name, self.config.address, self._options)
        async with switch:
            if not switch.is_primary:
                raise SwitchError("another controller is primary")
            self._switch = switch
            try:
                yield switch
            finally:
                self._switch = None
                self.connected = False

    async def _serve(self, switch: fy.Switch) -> None:
        await self._read()
        # An empty switch has just been given its pipeline: its ToR clock starts again.
        fresh = not any(isinstance(item, Entry) and not item.default for item in self._actual.values())
        self.connected = True
        self.problem = ""
        log.info("switch %s: primary, %d items there", self.config.name, len(self._actual))
        down = switch.ee.event_future(fy.SwitchEvent.CHANNEL_DOWN)
        demoted = switch.ee.event_future(fy.SwitchEvent.BECOME_BACKUP)
        digests = asyncio.create_task(self._digests(switch))
        try:
            await self._ready(self, fresh)
            await asyncio.wait({down, demoted, digests}, return_when=asyncio.FIRST_COMPLETED)
            if digests.done() and not digests.cancelled() and digests.exception() is not None:
                raise SwitchError(f"digest stream: {digests.exception()}")
        finally:
            digests.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await digests

    async def _digests(self, switch: fy.Switch) -> None:
        # finsy annotates its async generators as coroutines that give one.
        async for digest in switch.read_digests("event"):
            for event in digest:
                self._event(self, event)
            await switch.write([digest.ack()])

    async def _read(self) -> None:
        """Reads everything the controller manages into the mirror."""
        switch = self._require()
        schema = switch.p4info
        wanted: list[Any] = [fy.P4TableEntry(), fy.P4MulticastGroupEntry()]
        wanted += [fy.P4TableEntry(table.alias, is_default_action=True) for table in schema.tables]
        wanted += [fy.P4MeterEntry(meter.alias) for meter in schema.meters]
        wanted += [fy.P4DigestEntry(digest.alias) for digest in schema.digests]
        actual: dict[tuple[Any, ...], Item] = {}
        for request in wanted:
            try:
                async for entity in switch.read(request):  # type: ignore[attr-defined]
                    item = from_entity(entity)
                    if item is not None:
                        actual[item.key] = item
            except fy.P4ClientError as error:
                # BMv2 answers a read of a digest or meter that was never set with an error, not with nothing.
                if isinstance(request, fy.P4TableEntry) and not request.is_default_action:
                    raise
                log.debug("switch %s: %s: %s", self.config.name, request, error)
        self._actual = actual

    def items(self) -> list[Item]:
        """What the switch has, as last read and written."""
        return list(self._actual.values())

    def plan(self, desired: Iterable[Item], order: Sequence[str]) -> Difference:
        """What `apply` would write."""
        return difference(desired, self._actual.values(), order)

    async def apply(self, desired: Iterable[Item], order: Sequence[str]) -> Difference:
        """Writes the difference, in order. On a refusal the mirror is read anew and SwitchError raised."""
        async with self._writing:
            todo = self.plan(desired, order)
            switch = self._require()
            writes: list[tuple[str, Item]] = [("+", item) for item in todo.insert]
            writes += [("~", item) for item in todo.modify]
            writes += [("-", item) for item in todo.delete]
            for start in range(0, len(writes), BATCH):
                await self._write(switch, writes[start : start + BATCH])
            return todo

    async def _write(self, switch: fy.Switch, writes: list[tuple[str, Item]]) -> None:
        updates = []
        for sign, item in writes:
            entity = item.entity()
            match sign:
                case "+":
                    updates.append(+entity)  # type: ignore[operator]
                case "~":
                    updates.append(~entity)
                case _:
                    updates.append(-entity)  # type: ignore[operator]
        try:
            await switch.write(updates)
        except fy.P4ClientError as error:
            lines = [
                f"{writes[index][0]} {writes[index][1]}: {detail.message or detail.canonical_code.name}"
                for index, detail in list(error.details.items())[:10]
                if index < len(writes)
            ]
            await self._read()
            raise SwitchError(
                f"switch {self.config.name} refused {len(error.details) or len(writes)}"
                f" of {len(writes)} writes: " + ("; ".join(lines) if lines else f"{error.code.name}: {error.message}")
            ) from None
        for sign, item in writes:
            if sign == "-":
                self._actual.pop(item.key, None)
            else:
                self._actual[item.key] = item

    async def counters(self, name: str) -> dict[int, tuple[int, int]]:
        """All cells of an indirect counter that are not zero: index to (packets, bytes)."""
        found: dict[int, tuple[int, int]] = {}
        async for cell in self._require().read(fy.P4CounterEntry(name)):  # type: ignore[attr-defined]
            if cell.packet_count or cell.byte_count:
                found[int(cell.index or 0)] = (cell.packet_count, cell.byte_count)
        return found

    @property
    def schema(self) -> fy.P4Schema:
        """The P4Info in force."""
        return self._require().p4info

    def _require(self) -> fy.Switch:
        if self._switch is None:
            raise SwitchError(f"switch {self.config.name} {self.problem}")
        return self._switch


__all__ = ["Digest", "Meter", "Multicast", "SwitchError", "SwitchLink"]
