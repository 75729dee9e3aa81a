"""The door for agents by itself."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest
from fake_agent import FakeAgent
from harness import until

from rivulet_controller.agents import AgentServer, serve
from rivulet_controller.pb.rivulet.agent.v1 import agent_pb2


def test_the_end_is_orderly_with_agents_connected(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Their streams end without an error, and no task is left behind for the loop to complain about."""
    address = f"unix:{tmp_path}/agents"

    async def come_and_go() -> None:
        server = AgentServer(lambda _: agent_pb2.Update(version=1), lambda: None)
        door = await serve(server, address)
        async with FakeAgent(address, "r1") as one, FakeAgent(address, "r2") as two:
            await until(lambda: bool(one.updates and two.updates), "both have registered")
            server.close()
            # A stream that does not end by itself would be cut off then, which its agent is told.
            await until(lambda: one.ended and two.ended, "both streams have ended")
            await door.stop(0.0)
            assert (one.error, two.error, server.agents) == ("", "", {})

    asyncio.run(come_and_go())
    gc.collect()
    assert "destroyed" not in caplog.text
