"""Replicas that are undrained before their agents know the connections of other replicas."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fake_agent import FakeAgent
from fake_switch import FakeSwitch
from harness import as_described, running, until
from sample_rack import NAMES, RACK

from rivulet_controller.agents import Agent
from rivulet_controller.controller import Controller
from rivulet_controller.pb.rivulet.agent.v1 import agent_pb2
from rivulet_controller.returning import RESTART_S, Returning

TRODS = RACK.replace(
    "    replicas: [r1, r2, r3]\n", "    replicas: [r1, r2, r3]\n    plain: trods\n    trods: {objects: /l}\n"
)


@pytest.fixture
async def switch() -> AsyncIterator[FakeSwitch]:
    async with FakeSwitch(NAMES) as fake:
        yield fake


def has_first(switch: FakeSwitch) -> bool:
    """Whether a slot has r1 in first place."""
    return any("first=0x0" in line for line in switch.lines() if "slots[" in line)


def report_of(asks: bool, version: int = 1, ready: bool = True) -> agent_pb2.Report:
    """A report of an agent."""
    return agent_pb2.Report(version_in_force=version, ready=ready, trods=agent_pb2.TrodsStatus(asks=asks))


def registered() -> Agent:
    """An agent that has received its services."""
    agent = Agent("r1", 7, bytes(6), "test", time.monotonic())
    agent.send(agent_pb2.Update(version=1, services=[agent_pb2.Service(name="web")]))
    return agent


def test_replica_is_awaited_until_agent_has_the_pins() -> None:
    agents: dict[str, Agent] = {}
    left: dict[str, float] = {}
    returning = Returning(agents, left.get)
    awaited = lambda: returning.awaited(frozenset(), [("r1", "r2")])  # noqa: E731
    returning.take_back("r1")
    assert not awaited(), "there never was an agent"
    agents["r1"] = registered()
    assert not awaited() and not returning.look(), "no operator undrained it since"
    returning.take_back("r1")
    assert awaited() == {"r1"} and not returning.look(), "it has not reported"
    agents["r1"].note(report_of(asks=False, version=0))
    assert not returning.look() and awaited() == {"r1"}, "it does not serve yet"
    agents["r1"].note(agent_pb2.Report(version_in_force=1, ready=False))
    assert not returning.look() and awaited() == {"r1"}, "it protects nothing yet"
    agents["r1"].note(report_of(asks=True))
    assert not returning.look() and awaited() == {"r1"}
    agents["r1"].note(report_of(asks=False, ready=False))
    assert returning.look() and not awaited(), "heartbeats report whether it is ready"
    agents["r1"].note(report_of(asks=True))
    assert not returning.look() and not awaited(), "it takes clients already"


def test_restarting_agent_is_awaited() -> None:
    agents: dict[str, Agent] = {}
    left = {"r1": time.monotonic()}
    returning = Returning(agents, left.get)
    returning.take_back("r1")
    assert returning.awaited(frozenset(), [("r1", "r2")]) == {"r1"}
    left["r1"] -= RESTART_S
    assert returning.look() and not returning.awaited(frozenset(), [("r1", "r2")]), "it does not come"
    left["r1"] += RESTART_S
    returning.take_back("r1")
    returning.forget()
    assert not returning.awaited(frozenset(), [("r1", "r2")])


def test_last_replica_of_a_pool_is_not_awaited() -> None:
    returning = Returning({"r1": registered(), "r2": registered()}, {}.get)
    returning.take_back("r1")
    awaited = lambda away, *pools: returning.awaited(frozenset(away), pools)  # noqa: E731
    assert awaited((), ("r1", "r2")) == {"r1"}
    assert not awaited(("r2",), ("r1", "r2"))
    assert not awaited(("r2",), ("r1", "r2", "r3"), ("r1", "r2")), "one of its pools"
    assert awaited(("r2",), ("r1", "r2", "r3"), ("r2",)) == {"r1"}
    returning.take_back("r2")
    assert not awaited((), ("r1", "r2")) and awaited((), ("r1", "r2", "r3")) == {"r1", "r2"}


@asynccontextmanager
async def upgraded(switch: FakeSwitch, folder: Path, text: str = TRODS) -> AsyncIterator[tuple[Controller, FakeAgent]]:
    """r1 is drained, and its new agent does not know other replicas' connections yet."""
    async with running(switch, folder, text) as controller, FakeAgent(f"unix:{folder}/agents", "r1") as agent:
        await until(lambda: as_described(controller, switch), "first apply")
        await controller.decide("r1", draining=True)
        await until(lambda: not has_first(switch), "drained")
        agent.trods = agent_pb2.TrodsStatus(asks=True)
        await until(lambda: controller.agents.agents["r1"].asks, "it is another one")
        yield controller, agent


async def test_slots_return_once_agent_has_the_pins(switch: FakeSwitch, tmp_path: Path) -> None:
    async with upgraded(switch, tmp_path) as (controller, agent):
        await controller.decide("r1", draining=False)
        reconciled = controller.reconciles
        controller.wake()
        await until(lambda: controller.reconciles > reconciled and as_described(controller, switch), "decided")
        assert not has_first(switch) and controller.draining() == frozenset()
        given = agent.newest.services[0].slots[::2]
        assert given and 0 not in given, "agents get the same slots"
        # It drains again before it is ready.
        await controller.decide("r1", draining=True)
        agent.trods = agent_pb2.TrodsStatus(asks=False)
        await until(lambda: not controller.agents.agents["r1"].asks, "it knows")
        assert not has_first(switch), "an operator drains it"
        agent.trods = agent_pb2.TrodsStatus(asks=True)
        await until(lambda: controller.agents.agents["r1"].asks, "another one")
        await controller.decide("r1", draining=False)
        assert not has_first(switch)
        agent.trods = agent_pb2.TrodsStatus(asks=False)
        await until(lambda: has_first(switch), "it knows what others hold")
        await until(lambda: 0 in agent.newest.services[0].slots[::2], "agents get it")


async def test_awaited_replica_votes_on_content(switch: FakeSwitch, tmp_path: Path) -> None:
    others = [FakeAgent(f"unix:{tmp_path}/agents", name) for name in ("r2", "r3")]
    async with upgraded(switch, tmp_path) as (controller, agent), others[0], others[1]:
        in_force = lambda: controller.state.contents["web"].version  # noqa: E731
        await until(lambda: in_force() == 1, "all have it")
        agent.content = others[0].content = 2
        await until(lambda: {a.content for a in controller.agents.agents.values()} == {1, 2}, "two have another one")
        controller.wake()
        await until(lambda: as_described(controller, switch), "r1 has no vote")
        assert in_force() == 1
        await controller.decide("r1", draining=False)
        await until(lambda: in_force() == 2, "two of three have it")
        assert controller.returning.awaited(frozenset(), []) == {"r1"}


async def test_replica_without_trods_is_not_awaited(switch: FakeSwitch, tmp_path: Path) -> None:
    async with upgraded(switch, tmp_path, RACK) as (controller, _):
        await controller.decide("r1", draining=False)
        await until(lambda: has_first(switch), "at once")
