"""The gRPC service for agents: one stream for each agent, with whole updates out and reports in.

`AgentServer` keeps what each connected agent holds and reports; the controller decides what to
send. No packet waits for any of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import grpc

from . import service_tls
from .admission import Admission, ByCertificate, ByUser, RefuseAll, Users
from .agent_socket import AgentSocket
from .keys import RACK_RING, Kind
from .pb.rivulet.agent.v1 import agent_pb2, agent_pb2_grpc

log = logging.getLogger("rivulet.agents")

TEXT_MAX = 300
"""Longest text kept from an agent, in characters: it is logged, and sent to all clients each
second."""

MESSAGE_MAX = 64 << 10
"""Longest message of an agent in bytes."""

SENT_KEPT = 64
"""Unconfirmed updates of an agent that are kept, with their epochs; a confirmation of an older one
is ignored."""

COMPLAINT_S = 1.0
"""Shortest interval between logged errors of an agent."""

HELLO_TIMEOUT_S = 5.0
"""A stream without `hello` by then is closed."""

CLOCK_SAMPLES = 8
"""Reports kept for the clock of an agent's host; the one with the shortest delay counts."""

Held = frozenset[tuple[str, Kind, int]]
"""Keys held, as (service name, kind, epoch)."""

Plain = frozenset[tuple[str, int]]
"""Modes of plain TCP, as (service name, number of the mode in agent.proto)."""


class AgentListener(Protocol):
    """A listener that accepts agents."""

    async def stop(self, grace: float | None) -> None:
        """Ends all connections; streams get `grace` seconds."""


@dataclass(slots=True)
class Agent:
    """A connected agent."""

    name: str
    incarnation: int
    mac: bytes
    version: str
    connected_at: float
    report: agent_pb2.Report | None = None
    reported_at: float = 0.0
    held: Held = frozenset()
    plain: Plain = frozenset()
    refused: frozenset[str] = frozenset()
    """Services of the last update that it refuses; `error` of its report has the reason."""
    _ahead: deque[float] = field(default_factory=lambda: deque(maxlen=CLOCK_SAMPLES))
    """Seconds by which the host's clock was ahead of this host's at the last reports."""
    _names: dict[int, str] = field(default_factory=dict)
    """Names of the last update's services, by their numbers."""
    _sent: dict[int, tuple[Held, Plain]] = field(default_factory=dict)
    _outbox: asyncio.Queue[agent_pb2.ControllerMessage | None] = field(default_factory=lambda: asyncio.Queue(maxsize=2))

    def send(self, update: agent_pb2.Update) -> None:
        """Queues an update. It replaces one not yet taken, since each update is complete."""
        held: Held = frozenset(
            (service.name, kind, key.epoch)
            for service in update.services
            for kind, keys in (
                (Kind.SEAL, service.seal_keys),
                (Kind.NONCE, service.nonce_keys),
                (Kind.COOKIE, service.cookie_keys),
                (Kind.TICKET, service.tls.ticket_keys),
            )
            for key in keys
        ) | frozenset((RACK_RING, Kind.TOR, key.epoch) for service in update.services for key in service.tor_keys)
        plain: Plain = frozenset((service.name, service.plain) for service in update.services)
        self._sent[update.version] = held, plain
        self._names = {service.id: service.name for service in update.services}
        if len(self._sent) > SENT_KEPT:
            del self._sent[min(self._sent)]
        while not self._outbox.empty():
            self._outbox.get_nowait()
        self._outbox.put_nowait(agent_pb2.ControllerMessage(update=update))

    def close(self) -> None:
        """Ends the stream."""
        while not self._outbox.empty():
            self._outbox.get_nowait()
        self._outbox.put_nowait(None)

    def serves(self) -> bool:
        """Whether its replica serves, as last reported; then the keys that the agent holds are in
        force there.
        """
        # Only the serving process itself reports content, also while it waits to become ready with
        # that content.
        return self.report is not None and (self.report.ready or self.report.HasField("content"))

    @property
    def content(self) -> int:
        """Version of its replica's content for plain clients; 0 if there is none."""
        return self.report.content if self.report is not None else 0

    @property
    def error(self) -> str:
        """The agent's error about the last update; empty if there is none."""
        return self.report.error if self.report is not None else ""

    @property
    def tls(self) -> dict[str, service_tls.TlsCounts]:
        """Status of TLS by service, as last reported."""
        return service_tls.counts(self.report, self._names)

    @property
    def records(self) -> int:
        """Incarnation of its records as last reported; 0 before that."""
        return self.report.trods.incarnation if self.report is not None else 0

    @property
    def asks(self) -> bool:
        """Whether its replica is not up to date yet: the agent lacks the update, or does not know
        yet which connections other replicas hold.
        """
        if self.report is None or not self.plain:
            return True
        # A replica without TRODS yet is about to get it. One that cannot reports itself as not
        # ready, to the ToR too.
        return self.report.trods.asks if self.report.HasField("trods") else not self.report.ready

    @property
    def clock_ahead_s(self) -> float | None:
        """Seconds by which its host's clock is ahead of this host's; None while it does not report one."""
        # A delayed report looks like a clock that is behind, so the largest value counts.
        return max(self._ahead, default=None)

    def note(self, report: agent_pb2.Report) -> None:
        """Takes a report. The keys that this agent holds follow from the version in force."""
        report.reason, report.error = report.reason[:TEXT_MAX], report.error[:TEXT_MAX]
        for status in report.tls:
            status.error = status.error[:TEXT_MAX]
        if report.clock_ms:
            self._ahead.append(report.clock_ms / 1e3 - time.time())
        self.report = report
        self.reported_at = time.monotonic()
        self.refused = frozenset(self._names[i] for i in report.refused_services if i in self._names)
        if report.version_in_force in self._sent:
            held, plain = self._sent[report.version_in_force]
            self.held = frozenset(key for key in held if key[0] not in self.refused)
            self.plain = frozenset(mode for mode in plain if mode[0] not in self.refused)
            for version in [v for v in self._sent if v < report.version_in_force]:
                del self._sent[version]


class AgentServer(agent_pb2_grpc.AgentsServicer):
    """The gRPC service. `make_update(name)` returns a new agent's update, or raises KeyError."""

    def __init__(self, make_update: Callable[[str], agent_pb2.Update], changed: Callable[[], None]) -> None:
        self.agents: dict[str, Agent] = {}
        self.admission: Admission = RefuseAll()
        """Decides which agent may register as which replica; the listener sets it."""
        self._make_update = make_update
        self._changed = changed

    def close(self) -> None:
        """Ends every stream, so that stopping the gRPC server interrupts none."""
        for agent in self.agents.values():
            agent.close()

    async def Register(
        self,
        request_iterator: AsyncIterator[agent_pb2.AgentMessage],
        context: grpc.aio.ServicerContext[agent_pb2.AgentMessage, agent_pb2.ControllerMessage],
    ) -> AsyncIterator[agent_pb2.ControllerMessage]:
        """One agent's stream (agent.proto)."""
        messages = aiter(request_iterator)
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                first = await anext(messages)
        except (TimeoutError, StopAsyncIteration):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message must be `hello`")
            return
        if first.WhichOneof("message") != "hello":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message must be `hello`")
        hello = first.hello
        refusal = self.admission.refusal(hello.name, context.peer(), context.auth_context())
        if refusal:
            log.warning("refused an agent: %s", refusal[:TEXT_MAX])
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, refusal[:TEXT_MAX])
            return
        try:
            update = self._make_update(hello.name)
        except KeyError:
            log.warning("an agent registers as %r, which is not in the configuration", hello.name)
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"there is no replica {hello.name!r}: add it to the configuration"
            )
            return
        agent = Agent(hello.name, hello.incarnation, hello.mac, hello.version, time.monotonic())
        old = self.agents.get(hello.name)
        if old is not None:
            log.info("agent %s registers again: closing its older stream", hello.name)
            old.close()
        self.agents[hello.name] = agent
        log.info("agent %s registered (incarnation %d, version %s)", hello.name, hello.incarnation, hello.version)
        agent.send(update)
        reader = asyncio.create_task(self._read(agent, messages))
        try:
            while (message := await self._next(agent, reader)) is not None:
                yield message
        finally:
            await _ended(reader)
            if self.agents.get(hello.name) is agent:
                del self.agents[hello.name]
                log.info("agent %s disconnected", hello.name)
            self._changed()

    async def _next(self, agent: Agent, reader: asyncio.Task[None]) -> agent_pb2.ControllerMessage | None:
        """The next message to send; None when either side has ended."""
        getter = asyncio.ensure_future(agent._outbox.get())
        try:
            done, _ = await asyncio.wait({getter, reader}, return_when=asyncio.FIRST_COMPLETED)
            return getter.result() if getter in done else None
        finally:
            await _ended(getter)

    async def _read(self, agent: Agent, messages: AsyncIterator[agent_pb2.AgentMessage]) -> None:
        complained = float("-inf")
        try:
            async for message in messages:
                if message.WhichOneof("message") != "report":
                    continue
                before = _weighty(agent)
                earlier = _error(agent)
                agent.note(message.report)
                error, now = _error(agent), time.monotonic()
                if error and error != earlier and now - complained >= COMPLAINT_S:
                    complained = now
                    log.error("agent %s: %s", agent.name, error)
                if before != _weighty(agent):
                    self._changed()
        except (grpc.RpcError, asyncio.CancelledError):
            return


def _weighty(agent: Agent) -> tuple[Held, Plain, frozenset[str], bool | None, bool, int, int]:
    """The parts of an agent's report that need a round of the controller's loop when they change."""
    ready = agent.report.ready if agent.report else None
    return agent.held, agent.plain, agent.refused, ready, agent.asks, agent.content, agent.records


def _error(agent: Agent) -> str:
    """The first error that an agent reports, of its update or of its TLS."""
    return agent.error or next(service_tls.problems({agent.name: agent.tls}), "")


async def _ended(task: asyncio.Future[Any]) -> None:
    """Cancels a task and waits for its end, so that none is pending when the loop closes."""
    task.cancel()
    await asyncio.wait({task})


async def serve(
    server: AgentServer,
    address: str,
    credentials: grpc.ServerCredentials | None = None,
    users: Callable[[], Users] = dict,
    group: int | None = None,
) -> AgentListener:
    """Listens on `unix:PATH`, where `users` lists the replicas of each user, or on
    HOST:PORT by mutual TLS.

    Raises OSError, and ValueError for HOST:PORT without `credentials`.
    """
    grpc_server = grpc.aio.server(options=[("grpc.max_receive_message_length", MESSAGE_MAX)])
    agent_pb2_grpc.add_AgentsServicer_to_server(server, grpc_server)  # type: ignore[no-untyped-call]
    if address.startswith("unix:"):
        by_user = ByUser(users)
        server.admission = by_user
        listener = AgentSocket(Path(address.removeprefix("unix:")), grpc_server, by_user, group)
        await listener.start()
        return listener
    if credentials is None:
        raise ValueError(f"listen.agents: {address} needs agents_tls")
    server.admission = ByCertificate()
    try:
        grpc_server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise OSError(f"cannot listen for agents on {address}: {error}") from None
    await grpc_server.start()
    return grpc_server
