"""An agent that uses the controller's protocol but serves nothing."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import grpc

from rivulet_controller.pb.rivulet.agent.v1 import agent_pb2, agent_pb2_grpc


class FakeAgent:
    """Registers as `name` and confirms each update, unless `silent`."""

    def __init__(
        self,
        address: str,
        name: str,
        silent: bool = False,
        mac: bytes = bytes(6),
        tls: grpc.ChannelCredentials | None = None,
    ) -> None:
        self.name = name
        self.silent = silent
        self.mac = mac
        self._tls = tls
        self.ready = True
        self.trods: agent_pb2.TrodsStatus | None = None
        self.tls: list[agent_pb2.TlsStatus] = []
        self.content: int | None = 1
        self.updates: list[agent_pb2.Update] = []
        self.error = ""
        self.refuses: dict[str, str] = {}
        """Services that it refuses, with the reasons."""
        self.clock_ahead_s = 0.0
        """Seconds by which its host's clock is ahead of the controller's."""
        self.ended = False
        self._address = address
        self._fresh = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> FakeAgent:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    @property
    def newest(self) -> agent_pb2.Update:
        """The update in force; an empty one before the first."""
        return self.updates[-1] if self.updates else agent_pb2.Update()

    async def _run(self) -> None:
        if self._tls is not None:
            opened = grpc.aio.secure_channel(self._address, self._tls)
        else:
            opened = grpc.aio.insecure_channel(self._address)
        async with opened as channel:
            try:
                await self._converse(agent_pb2_grpc.AgentsStub(channel).Register())  # type: ignore[no-untyped-call]
            except grpc.aio.AioRpcError as error:
                self.error = error.details() or str(error.code())
            except asyncio.InvalidStateError:
                # The controller refused the call meanwhile; reading from it raises the reason.
                self.error = self.error or "refused"
        self.ended = True

    async def _converse(self, call: Any) -> None:
        hello = agent_pb2.Hello(name=self.name, incarnation=7, mac=self.mac, version="test")
        await call.write(agent_pb2.AgentMessage(hello=hello))
        reporter = asyncio.create_task(self._report(call))
        try:
            async for message in call:
                self.updates.append(message.update)
                self._fresh.set()
        finally:
            reporter.cancel()

    async def _report(self, call: Any) -> None:
        """Reports after each update, and twice a second."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await self._fresh.wait()
            self._fresh.clear()
            if not self.silent:
                report = agent_pb2.Report(
                    version_in_force=self.newest.version, ready=self.ready, content=self.content, trods=self.trods,
                    tls=self.tls,
                    clock_ms=int((time.time() + self.clock_ahead_s) * 1e3),
                    refused_services=[s.id for s in self.newest.services if s.name in self.refuses],
                    error="; ".join(self.refuses[s.name] for s in self.newest.services if s.name in self.refuses),
                )  # fmt: skip
                await call.write(agent_pb2.AgentMessage(report=report))
