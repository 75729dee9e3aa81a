"""The P4Runtime session with one switch: loads the pipeline if it differs, and writes differences
of entries.

`SwitchLink.run` lasts as long as the controller. After each (re)connection it reads the switch's
entries into a mirror, so that `apply` writes only differences and never flushes a table.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import finsy as fy
from finsy.p4client import P4Client
from finsy.p4schema import P4ConfigResponseType
from finsy.proto import p4r

from . import channel
from .config import SwitchConfig
from .desired import ORDER, Fragment
from .entry import Difference, Entry, Item, Meter, difference, from_entity
from .names import Names
from .private_file import require_private
from .supervise import SessionBroken, unbroken

channel.install()

log = logging.getLogger("rivulet.switch")

BATCH = 500
"""Updates in a WriteRequest: stays well below gRPC's 4 MiB limit, and is enough to amortise the
round trip."""

RECONNECT_S = (0.02, 0.25)
"""First and longest pause between attempts to connect."""

CONNECT_S = 2.0
"""Longest time for a TCP connection."""

HANDSHAKE_S = 45.0
"""Longest time to connect, arbitrate and load the pipeline, which a busy machine does slowly."""

DIGEST_QUEUE = 1000
"""Digests waiting to be handled; more are dropped, which shows as a gap in their sequence
numbers."""

PACKET_QUEUE = 200
"""Packets from a switch waiting to be handled; more are dropped, and the controller repeats its
request."""

OUR_TABLES = frozenset({"tor", "service_config", "slots"})
"""A program with these tables is a version of ours, and may be replaced."""


class SwitchError(Exception):
    """A switch refused a write or is unreachable; the text has the entry, the reason, and what to
    do.
    """


class WriteRefused(SwitchError):
    """The switch refused a write; it may accept another configuration."""


class SwitchLink:
    """The session with one switch.

    Calls `ready` after each (re)connection as primary, `event` with each digest's fields, `packet`
    with each packet-in and its metadata, and `guard` before each batch; `guard` raises SwitchError
    when this controller must not write any more (a lost lease).
    """

    def __init__(
        self,
        config: SwitchConfig,
        names: Names,
        election_id: Callable[[], Awaitable[int]],
        ready: Callable[[SwitchLink], Awaitable[None]],
        event: Callable[[SwitchLink, dict[str, int]], None],
        guard: Callable[[], None] = lambda: None,
        packet: Callable[[SwitchLink, bytes, dict[str, int]], None] = lambda link, frame, metadata: None,
    ) -> None:
        self.config = config
        self.names = names
        self.connected = False
        self.problem = "not connected yet"
        self.writes = 0
        """Updates written since this link was created."""
        self._election_id = election_id
        self._ready = ready
        self._event = event
        self._guard = guard
        self._packet = packet
        self._switch: fy.Switch | None = None
        self._actual: dict[tuple[Any, ...], Item] = {}
        self._applied: dict[str, Fragment] = {}
        self._needs_full_diff = True
        self._not_deleted: tuple[Item, ...] = ()
        self._writing = asyncio.Lock()

    # The session

    async def run(self) -> None:
        """Connects, serves the session until it breaks, and reconnects; ends only when cancelled."""
        pause = RECONNECT_S[0]
        while True:
            try:
                # When a task of finsy's fails, finsy cancels its tasks and ours that wait for them.
                with unbroken():
                    async with self._session() as switch:
                        pause = RECONNECT_S[0]
                        await self._serve(switch)
                problem = "the session ended"
            except SwitchError as error:
                problem = str(error)
            except TimeoutError:
                problem = f"no reply from {self.config.address} within {HANDSHAKE_S:g} s"
            except fy.P4ClientError as error:
                problem = f"no P4Runtime at {self.config.address}: {error.message or error.code.name}"
            except Exception as error:
                # finsy raises RuntimeError, ValueError and AssertionError on a broken stream:
                # reconnect after all of them.
                problem = f"session failed: {type(error).__name__}: {error}"
            if problem != self.problem:
                log.warning("switch %s: %s", self.config.name, problem)
            self.problem = problem
            await asyncio.sleep(pause)
            pause = min(pause * 2, RECONNECT_S[1])

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[fy.Switch]:
        self._guard()
        await self._check_listening()
        async with asyncio.timeout(HANDSHAKE_S):
            differs = await self._inspect()
        election = await self._election_id()
        options = fy.SwitchOptions(
            device_id=self.config.device_id,
            initial_election_id=election,
            channel_credentials=self._credentials(),
        )
        switch = fy.Switch(self.config.name, self.config.address, options)
        # A schema without the program keeps finsy from pushing it in a separate task, where a
        # refusal would be lost. Given paths, finsy would read the P4Info again for each session,
        # and pick up a later compilation.
        switch._p4schema = self.names.session_schema()
        async with asyncio.timeout(HANDSHAKE_S):
            await switch.__aenter__()
        try:
            if not switch.is_primary:
                raise SwitchError(
                    f"another controller (election id {switch.primary_id}, above our {election}) is primary: stop it,"
                    " or correct its machine's clock if that is ahead"
                )
            if differs:
                await self._push(switch)
            self._switch = switch
            yield switch
        finally:
            self._switch = None
            self.connected = False
            await switch.__aexit__(None, None, None)

    def _credentials(self) -> fy.GRPCCredentialsTLS | None:
        """Reads the certificate for each session, so that a renewed one needs no restart. Raises
        SwitchError.
        """
        tls = self.config.tls
        if tls is None:
            return None
        try:
            require_private(tls.key)
            return fy.GRPCCredentialsTLS(
                cacert=tls.authority.read_bytes(), cert=tls.certificate.read_bytes(), private_key=tls.key.read_bytes()
            )
        except OSError as error:
            raise SwitchError(f"the certificates for {self.config.address} cannot be read: {error}") from None

    async def _check_listening(self) -> None:
        """Tries to connect. gRPC itself would back off for a second and more after a refused
        connection.
        """
        address = self.config.address
        try:
            async with asyncio.timeout(CONNECT_S):
                if address.startswith("unix:"):
                    _, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
                else:
                    host, _, port = address.rpartition(":")
                    _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            writer.close()
        except (OSError, TimeoutError) as error:
            raise SwitchError(f"no server listens at {address}: {error or 'no reply'}") from None

    async def _push(self, switch: fy.Switch) -> None:
        """Loads our program into the switch. Raises SwitchError if the switch refuses it."""
        try:
            await switch._set_pipeline_config_request(config=self.names.schema.get_pipeline_config())
        except fy.P4ClientError as error:
            raise SwitchError(
                f"does not accept the program {self.names.program_path}: {error.message or error.code.name}"
                " (does it match this controller's version? `make p4` compiles it)"
            ) from None

    async def _inspect(self) -> bool:
        """Whether the switch needs our program. Raises SwitchError for a foreign program unless
        `take_over` is set.
        """
        client = P4Client(self.config.address, self._credentials(), wait_for_ready=False)
        await client.open()
        try:
            reply = await client.request(
                p4r.GetForwardingPipelineConfigRequest(
                    device_id=self.config.device_id, response_type=P4ConfigResponseType.P4INFO_AND_COOKIE.vt()
                )
            )
        except fy.P4ClientError as error:
            if not error.is_pipeline_missing:
                raise
            return True
        finally:
            await client.close()
        info = reply.config.p4info
        if info.tables and reply.config.cookie.cookie == self.names.schema.p4cookie:
            return False
        tables = {table.preamble.alias for table in info.tables}
        if tables and not tables >= OUR_TABLES and not self.config.take_over:
            raise SwitchError(
                f"device {self.config.device_id} at {self.config.address} runs another program (tables"
                f" {', '.join(sorted(tables)[:4])}, …): check address and device_id, or set `take_over: true`"
            )
        if tables:
            log.info("switch %s: its program differs from ours: replacing it", self.config.name)
        return True

    async def _serve(self, switch: fy.Switch) -> None:
        await self._read()
        self.connected = True
        self.problem = ""
        log.info("switch %s: primary, %d items present", self.config.name, len(self._actual))
        down = switch.ee.event_future(fy.SwitchEvent.CHANNEL_DOWN)
        demoted = switch.ee.event_future(fy.SwitchEvent.BECOME_BACKUP)
        streams = [asyncio.create_task(self._digests(switch)), asyncio.create_task(self._packets(switch))]
        try:
            await self._ready(self)
            await asyncio.wait({down, demoted, *streams}, return_when=asyncio.FIRST_COMPLETED)
            for stream in streams:
                if stream.done() and not stream.cancelled() and stream.exception() is not None:
                    raise SwitchError(f"digest or packet stream: {stream.exception()}")
            if demoted.done():
                raise SwitchError("another controller became primary")
        finally:
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)

    async def _digests(self, switch: fy.Switch) -> None:
        async for digest in switch.read_digests(self.names.digest, queue_size=DIGEST_QUEUE):
            for event in digest:
                self._event(self, dict(event))
            await switch.write([digest.ack()])

    async def _packets(self, switch: fy.Switch) -> None:
        async for packet in switch.read_packets(queue_size=PACKET_QUEUE):
            self._packet(self, packet.payload, dict(packet.metadata))

    async def send_packet(self, frame: bytes, port: int) -> None:
        """Sends a frame out of a port. Raises SwitchError without a session."""
        switch = self._require()
        self._guard()
        with _of_session(self):
            await switch.write([fy.P4PacketOut(frame, egress_port=port)])

    async def _read(self) -> None:
        """Reads all managed entries into the mirror. Meters are read when `apply` first needs them."""
        switch = self._require()
        actual: dict[tuple[Any, ...], Item] = {}
        there = {table.alias for table in switch.p4info.tables}
        wanted: list[Any] = [fy.P4TableEntry(table) for table in ORDER if table in there and table != "tor"]
        wanted.append(fy.P4MulticastGroupEntry())
        optional = [fy.P4TableEntry("tor", is_default_action=True), fy.P4DigestEntry(self.names.digest)]
        for request in wanted + optional:
            try:
                async for entity in switch.read(request):  # type: ignore[attr-defined]
                    item = from_entity(entity)
                    if item is not None:
                        actual[item.key] = item
            except fy.P4ClientError as error:
                # BMv2 answers a read of an unset entity with an error instead of an empty result.
                if request not in optional:
                    raise
                log.debug("switch %s: %s: %s", self.config.name, request, error)
        self._actual = actual
        self._needs_full_diff = True

    # Actual and desired entries

    def items(self) -> list[Item]:
        """The switch's entries according to the mirror."""
        return list(self._actual.values())

    def has_key(self, key: tuple[Any, ...]) -> bool:
        """Whether the switch has an item with this key."""
        return key in self._actual

    def parameters(self, key: tuple[Any, ...]) -> dict[str, int] | None:
        """Parameters of the action of an entry; None if the switch lacks the entry."""
        item = self._actual.get(key)
        return dict(item.params) if isinstance(item, Entry) else None

    def tor_parameters(self) -> dict[str, int]:
        """Parameters of the `tor` table's default action; empty if unset."""
        for item in self._actual.values():
            if isinstance(item, Entry) and item.table == "tor" and item.default:
                return dict(item.params)
        return {}

    def plan(self, fragments: Mapping[str, Fragment]) -> Difference:
        """What `apply` would write. Fragments that are the same objects as at the last call cost
        nothing.
        """
        if self._needs_full_diff:
            return difference((item for f in fragments.values() for item in f), self._actual.values(), ORDER)
        changed = [name for name, f in fragments.items() if self._applied.get(name) is not f]
        gone = [name for name in self._applied if name not in fragments]
        want = [item for name in changed for item in fragments[name]]
        keys = {item.key for item in want}
        keys |= {item.key for name in (*changed, *gone) for item in self._applied.get(name, ())}
        keys |= {item.key for item in self._not_deleted}
        return difference(want, (self._actual[key] for key in keys if key in self._actual), ORDER)

    async def apply(self, fragments: Mapping[str, Fragment], remove: bool = True) -> Difference:
        """Writes the difference, in order. After a refusal it reads the mirror again and raises
        SwitchError.

        Without `remove`, deletions wait for a later call: a change is first tried on every switch.
        """
        async with self._writing:
            switch = self._require()
            with _of_session(self):
                if self._needs_full_diff:
                    await self._read_meters(switch, fragments)
                # In a thread: a large rack has a hundred thousand entries.
                todo = await asyncio.to_thread(self.plan, fragments)
                for sign, items in (("+", todo.insert), ("~", todo.modify), ("-", todo.delete if remove else ())):
                    for batch in _batches(items):
                        await self._write(switch, sign, batch)
            self._applied, self._needs_full_diff = dict(fragments), False
            # With `remove=False` these entries stay on the switch until a later call deletes them.
            self._not_deleted = () if remove else todo.delete
            return todo

    async def _read_meters(self, switch: fy.Switch, fragments: Mapping[str, Fragment]) -> None:
        """Reads only desired meter cells: a meter has thousands, nearly all unset."""
        cells = [item for f in fragments.values() for item in f if isinstance(item, Meter)]
        for start in range(0, len(cells), BATCH):
            try:
                requests = [fy.P4MeterEntry(cell.meter, index=cell.index) for cell in cells[start : start + BATCH]]
                async for entity in switch.read(requests):  # type: ignore[attr-defined]
                    item = from_entity(entity)
                    if isinstance(item, Meter):
                        self._actual[item.key] = item
            except fy.P4ClientError as error:
                log.debug("switch %s: meters: %s", self.config.name, error)

    async def _write(self, switch: fy.Switch, sign: str, items: list[Item]) -> None:
        self._guard()
        try:
            if sign == "+":
                await switch.insert([item.entity() for item in items])
            elif sign == "~":
                await switch.modify([item.entity() for item in items])
            elif isinstance(items[0], Meter):
                # A batch has one kind of entity. A meter cell cannot be deleted, only reset.
                await switch.modify([item.reset() for item in items if isinstance(item, Meter)])
            else:
                await switch.delete([item.entity() for item in items])
        except fy.P4ClientError as error:
            await self._refused(error, sign, items)
        except ValueError as error:
            raise WriteRefused(f"switch {self.config.name}: its program does not accept an entry: {error}") from None
        self.writes += len(items)
        for item in items:
            if sign == "-":
                self._actual.pop(item.key, None)
            else:
                self._actual[item.key] = item

    async def _refused(self, error: fy.P4ClientError, sign: str, items: list[Item]) -> None:
        """Raises an error for the operator, after reading the mirror again: part of the batch may
        have been written.
        """
        details = sorted(error.details.items())
        lines = [
            f"{sign} {items[index]}: {detail.message or code.name}{_advice(code.name)}"
            for index, detail in details[:5]
            for code in [detail.canonical_code]
            if index < len(items)
        ]
        self._needs_full_diff = True
        if not details and error.code.name in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"):
            raise SwitchError(f"switch {self.config.name} disconnected during a write: {error.message}") from None
        with suppress(fy.P4ClientError, SwitchError):
            await self._read()
        if error.code.name == "PERMISSION_DENIED":
            raise SwitchError(f"switch {self.config.name}: another controller became primary") from None
        raise WriteRefused(
            f"switch {self.config.name} refused {len(details) or 'some'} of {len(items)} writes: "
            + ("; ".join(lines) if lines else f"{error.code.name}: {error.message}{_advice(error.code.name)}")
        ) from None

    async def counters(self, name: str, cells: Iterable[int] | None = None) -> dict[int, tuple[int, int]]:
        """Cells of an indirect counter, by index: (packets, bytes). Without `cells`, all that are
        not zero.
        """
        if cells is None:
            requests = [fy.P4CounterEntry(name)]
        else:
            requests = [fy.P4CounterEntry(name, index=index) for index in cells]
        found: dict[int, tuple[int, int]] = {}
        for start in range(0, len(requests), BATCH):
            with _of_session(self):
                async for cell in self._require().read(requests[start : start + BATCH]):  # type: ignore[attr-defined]
                    if cells is not None or cell.packet_count or cell.byte_count:
                        found[int(cell.index or 0)] = (cell.packet_count, cell.byte_count)
        return found

    def _require(self) -> fy.Switch:
        if self._switch is None:
            raise SwitchError(f"switch {self.config.name}: {self.problem}")
        return self._switch


@contextmanager
def _of_session(link: SwitchLink) -> Iterator[None]:
    """Turns the cancellation of calls by a session that broke into a SwitchError."""
    try:
        with unbroken():
            yield
    except SessionBroken as error:
        raise SwitchError(f"switch {link.config.name}: {error}") from None


def _batches(items: Iterable[Item]) -> list[list[Item]]:
    """Batches of one kind of entity: the updates of a batch have no order (P4Runtime 12.2)."""
    batches: list[list[Item]] = []
    last = None
    for item in items:
        kind = item.table if isinstance(item, Entry) else type(item).__name__
        if kind != last or len(batches[-1]) >= BATCH:
            batches.append([])
            last = kind
        batches[-1].append(item)
    return batches


def _advice(code: str) -> str:
    """Advice for the operator about a refusal."""
    return {
        "RESOURCE_EXHAUSTED": " (the table is full: use fewer services or slots, or a program with larger tables)",
        "ALREADY_EXISTS": " (something else writes to this switch)",
        "NOT_FOUND": " (something else writes to this switch)",
        "INVALID_ARGUMENT": " (the program does not accept this value: does it match this controller's version?)",
        "PERMISSION_DENIED": " (another controller is primary)",
    }.get(code, "")
