"""An agent that speaks the channel and serves nothing."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import grpc

from rivulet_controller.pb.rivulet.agent.v1 import agent_pb2, agent_pb2_grpc


class FakeAgent:
    """Registers as `name` and confirms each update, unless `silent`."""

    def __init__(self, address: str, name: str, silent: bool = False) -> None:
        self.name = name
        self.silent = silent
        self.ready = True
        self.updates: list[agent_pb2.Update] = []
        self.error = ""
        self._address = address
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
        """The update in force; empty before the first."""
        return self.updates[-1] if self.updates else agent_pb2.Update()

    async def _run(self) -> None:
        async with grpc.aio.insecure_channel(self._address) as channel:
            call = agent_pb2_grpc.AgentsStub(channel).Register()  # type: ignore[no-untyped-call]
            hello = agent_pb2.Hello(name=self.name, incarnation=7, mac=bytes(6), version="test")
            await call.write(agent_pb2.AgentMessage(hello=hello))
            try:
                async for message in call:
                    self.updates.append(message.update)
                    if not self.silent:
                        report = agent_pb2.Report(version_in_force=message.update.version, ready=self.ready)
                        await call.write(agent_pb2.AgentMessage(report=report))
            except grpc.aio.AioRpcError as error:
                self.error = error.details() or ""
