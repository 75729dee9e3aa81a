"""The gRPC service for agents."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest
from fake_agent import FakeAgent
from harness import until

from rivulet_controller.agents import AgentServer, serve
from rivulet_controller.pb.rivulet.agent.v1 import agent_pb2


def test_server_stops_cleanly_with_connected_agents(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The streams end without an error, and no task is left pending when the loop closes."""
    address = f"unix:{tmp_path}/agents"

    async def come_and_go() -> None:
        server = AgentServer(lambda _: agent_pb2.Update(version=1), lambda: None)
        listener = await serve(server, address)
        async with FakeAgent(address, "r1") as one, FakeAgent(address, "r2") as two:
            await until(lambda: bool(one.updates and two.updates), "both have registered")
            server.close()
            # The server would abort a stream that does not end by itself, which the agent would see
            # as an error.
            await until(lambda: one.ended and two.ended, "both streams have ended")
            await listener.stop(0.0)
            assert (one.error, two.error, server.agents) == ("", "", {})

    asyncio.run(come_and_go())
    gc.collect()
    assert "destroyed" not in caplog.text
