"""Replicas that are taken back before their agents are ready for what clients send."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fake_agent import FakeAgent
from fake_switch import FakeSwitch
from harness import as_described, running, until
from sample_rack import NAMES

from rivulet_controller.agents import Agent
from rivulet_controller.pb.rivulet.agent.v1 import agent_pb2
from rivulet_controller.returning import Returning


@pytest.fixture
async def switch() -> AsyncIterator[FakeSwitch]:
    async with FakeSwitch(NAMES) as fake:
        yield fake


def has_first(switch: FakeSwitch) -> bool:
    """Whether some slot has r1 in its first place."""
    return any("first=0x0" in line for line in switch.lines() if "slots[" in line)


def test_who_is_awaited_is_so_until_its_agent_is_ready_or_gone() -> None:
    agents: dict[str, Agent] = {}
    returning = Returning(agents)
    returning.take_back("r1")
    assert not returning.awaited(), "no agent says anything"
    agents["r1"] = Agent("r1", 7, bytes(6), "test", time.monotonic())
    assert not returning.awaited() and not returning.look(), "nobody took it back since"
    returning.take_back("r1")
    assert returning.awaited() == {"r1"} and not returning.look()
    agents["r1"].note(agent_pb2.Report(ready=False))
    assert not returning.look() and returning.awaited() == {"r1"}
    agents["r1"].note(agent_pb2.Report(ready=True))
    assert returning.look() and not returning.awaited()
    agents["r1"].note(agent_pb2.Report(ready=False))
    assert not returning.look() and not returning.awaited(), "that is for heartbeats to say"
    returning.take_back("r1")
    del agents["r1"]
    assert returning.look() and not returning.awaited()


async def test_slots_name_a_replica_first_again_once_its_agent_is_ready(switch: FakeSwitch, tmp_path: Path) -> None:
    async with running(switch, tmp_path) as controller, FakeAgent(f"unix:{tmp_path}/agents", "r1") as agent:
        await until(lambda: as_described(controller, switch), "first apply")
        await controller.decide("r1", draining=True)
        await until(lambda: not has_first(switch), "drained")
        agent.ready = False
        await until(lambda: not controller.view("r1").ready, "it is another one")
        await controller.decide("r1", draining=False)
        reconciled = controller.reconciles
        controller.wake()
        await until(lambda: controller.reconciles > reconciled and as_described(controller, switch), "decided")
        assert not has_first(switch) and controller.draining() == frozenset()
        given = agent.newest.services[0].slots[::2]
        assert given and 0 not in given, "agents are told the same"
        agent.ready = True
        await until(lambda: has_first(switch), "it is ready")
        await until(lambda: 0 in agent.newest.services[0].slots[::2], "agents hear of it")


async def test_nobody_awaits_an_agent_that_is_gone(switch: FakeSwitch, tmp_path: Path) -> None:
    async with running(switch, tmp_path) as controller:
        async with FakeAgent(f"unix:{tmp_path}/agents", "r1") as agent:
            agent.ready = False
            await until(lambda: "r1" in controller.agents.agents, "registered")
            await controller.decide("r1", draining=True)
            await until(lambda: not has_first(switch), "drained")
            await controller.decide("r1", draining=False)
            assert controller.returning.awaited() == {"r1"}
            # It was drained before it was ready, and is again.
            await controller.decide("r1", draining=True)
            agent.ready = True
            await until(lambda: not controller.returning.awaited(), "it is ready")
            assert not has_first(switch), "an operator drains it"
            agent.ready = False
            await until(lambda: not controller.view("r1").ready, "it is not any more")
            await controller.decide("r1", draining=False)
            assert not has_first(switch)
        await until(lambda: has_first(switch), "its agent is gone")
