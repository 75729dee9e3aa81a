"""The content of a stateless service: one version is in force at a time, that of the majority, and
no connection gets bytes of two versions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path

import pytest
from fake_agent import FakeAgent
from fake_switch import FakeSwitch
from harness import as_described, connected, rack, running, until
from sample_rack import LIVES, NAMES, RACK, config, fragments, held, numbers_of, weights_of

from rivulet_controller.cli import _plain
from rivulet_controller.content import Content, elect, step
from rivulet_controller.controller import Controller
from rivulet_controller.keys import Kind
from rivulet_controller.metrics import Metrics
from rivulet_controller.pb.rivulet.agent.v1 import agent_pb2
from rivulet_controller.state import State
from rivulet_controller.updates import update
from rivulet_controller.view import replicas, services

STATELESS = RACK + "    plain: stateless\n"
OLD, NEW, OTHER = 10, 20, 30


@pytest.mark.parametrize(
    ("has", "now", "waits", "wanted"),
    [
        # No replica has reported.
        ([], 0, False, 0),
        ([], OLD, False, OLD),
        # A majority decides, even if other replicas may still report.
        ([OLD, NEW, NEW], OLD, True, NEW),
        ([OLD, NEW, NEW], 0, True, NEW),
        # On a tie the content in force stays, else the first one wins.
        ([NEW, OLD], OLD, False, OLD),
        ([NEW, OLD], 0, False, NEW),
        ([NEW, OTHER], OLD, False, NEW),
        # A replica that has not reported may have the content in force.
        ([NEW], OLD, True, OLD),
        ([NEW], OLD, False, NEW),
        ([NEW], 0, True, 0),
    ],
)
def test_majority_elects_and_tie_keeps_current(has: list[int], now: int, waits: bool, wanted: int) -> None:
    assert elect({f"r{n}": version for n, version in enumerate(has)}, now, 3, waits) == wanted


def test_new_content_waits_for_new_cookie_key() -> None:
    first = step(Content(), OLD, 0)
    assert first == Content(OLD) and step(first, OLD, 3) == first
    waiting = step(first, NEW, 3)
    assert (waiting.version, waiting.rotates, str(waiting)) == (OLD, True, "0000000a, 00000014 follows")
    assert step(waiting, NEW, 3) == waiting, "the key is the old one"
    assert step(waiting, OTHER, 3).following == OTHER, "they may change their minds"
    assert step(waiting, NEW, 4) == Content(NEW, 4)
    assert step(waiting, OLD, 4) == Content(OLD), "and stay where they were"
    assert str(Content()) == "undecided"


def test_content_survives_restart() -> None:
    state = State()
    state.set_content("web", Content(OLD, 2, NEW, 3))
    again = State(state.stored())
    assert again.contents == {"web": Content(OLD, 2, NEW, 3)} == state.copy().contents
    again.forget_services(["other"])
    assert again.contents == {} and again.changes()["content/web"] is None


def test_many_content_changes_keep_few_cookie_keys() -> None:
    state, rack_now = State(), config(STATELESS)
    fragments(rack_now, state=state)
    ring = state.rings["web"]
    for now in range(100):
        ring = ring.tick(now, LIVES, held, frozenset({Kind.COOKIE}))
    state.set_ring("web", ring)
    sent = update(
        rack_now, "r1", numbers_of(rack_now, state), state.rings, state.slots, weights_of(rack_now), frozenset()
    ).services[0]
    epochs = [key.epoch for key in sent.cookie_keys]
    assert len(ring.accepted(Kind.COOKIE)) > 90 and epochs == list(range(epochs[-1] - 7, epochs[-1] + 1))
    assert sent.usable_cookie_epoch in epochs[-2:]


def test_content_is_shown_when_replicas_differ() -> None:
    def shown(content: Content | None, others: list[str]) -> str:
        words = None if content is None else {**asdict(content), "words": str(content), "others": others}
        return _plain({"plain": "stateless", "affinity": "flow", "content": words})

    assert shown(None, []) == shown(Content(OLD), []) == "stateless"
    assert shown(Content(), []) == "stateless, content undecided"
    assert shown(Content(OLD), ["r1", "r3"]) == "stateless, content 0000000a, other content at r1, r3"
    assert shown(Content(OLD, 0, NEW, 1), []) == "stateless, content 0000000a, 00000014 follows"


@pytest.fixture
async def switch() -> AsyncIterator[FakeSwitch]:
    async with FakeSwitch(NAMES) as fake:
        yield fake


def content_of(agent: FakeAgent) -> tuple[int, int] | None:
    """The content and first cookie epoch in an agent's last update; None if the service needs no
    content.
    """
    service = agent.newest.services[0] if agent.newest.services else agent_pb2.Service()
    return (service.content, service.content_epoch) if service.HasField("content") else None


def firsts(agent: FakeAgent) -> set[int]:
    """The replicas in first place of some slot, from an agent's update."""
    return set(agent.newest.services[0].slots[::2])


def view(controller: Controller) -> tuple[int, list[str]]:
    content = services(controller)[0]["content"]
    return content["version"], content["others"]


async def test_new_content_spreads_replica_by_replica(switch: FakeSwitch, tmp_path: Path) -> None:
    socket_address = f"unix:{tmp_path}/agents"
    async with running(switch, tmp_path, STATELESS) as controller:
        fakes = [FakeAgent(socket_address, name) for name in ("r1", "r2", "r3")]
        one, two, three = fakes
        for fake in fakes:
            fake.content = OLD
        async with one, two, three:
            await until(lambda: [content_of(fake) for fake in fakes] == [(OLD, 0)] * 3, "what all have is in force")
            await until(lambda: as_described(controller, switch), "all rows")
            # One replica has other content and stops serving.
            one.content, one.ready = NEW, False
            await until(lambda: view(controller) == (OLD, ["r1"]), "r1 is a stranger")
            await until(lambda: firsts(two) == {1, 2}, "and gets nothing new")
            await until(lambda: as_described(controller, switch), "at the ToR neither")
            assert content_of(one) == (OLD, 0)
            assert [event["kind"] for event in controller.fleet.replica_events] == ["OTHER_CONTENT"]
            shown = {replica["name"]: replica["other_content"] for replica in replicas(controller)}
            assert shown == {"r1": ["web"], "r2": [], "r3": []}
            assert b'rivulet_replica_other_content{replica="r1"} 1.0' in Metrics(controller).text()
            # The second one makes a majority. The new cookie key does not wait for the first one's
            # readiness.
            two.content = NEW
            await until(lambda: [content_of(fake) for fake in fakes] == [(NEW, 2)] * 3, "the new content is in force")
            assert three.newest.services[0].usable_cookie_epoch == 2
            assert not any(first_replicas_in(update) == (NEW, 2) and update.services[0].usable_cookie_epoch < 2
                           for update in three.updates)  # fmt: skip
            assert view(controller) == (NEW, ["r3"])
            one.ready = True
            three.content = NEW
            await until(lambda: view(controller) == (NEW, []) and firsts(one) == {0, 1, 2}, "all agree")


def first_replicas_in(update: agent_pb2.Update) -> tuple[int, int]:
    return update.services[0].content, update.services[0].content_epoch


async def test_draining_replica_has_no_vote(switch: FakeSwitch, tmp_path: Path) -> None:
    socket_address = f"unix:{tmp_path}/agents"
    async with running(switch, tmp_path, STATELESS) as controller:
        fakes = [FakeAgent(socket_address, name) for name in ("r1", "r2", "r3")]
        for fake, content in zip(fakes, (NEW, OLD, OLD), strict=True):
            fake.content = content
        async with fakes[0], fakes[1], fakes[2]:
            await until(lambda: view(controller) == (OLD, ["r1"]), "most have the old one")
            await until(lambda: connected(controller), "the switch")
            await controller.decide("r2", draining=True)
            await controller.decide("r3", draining=True)
            await until(lambda: view(controller)[0] == NEW, "the one that is left decides")
            await controller.decide("r1", draining=True)
            await until(lambda: view(controller) == (OLD, ["r1"]), "if all drain, all have a vote")


async def test_content_is_decided_before_mode_changes(switch: FakeSwitch, tmp_path: Path) -> None:
    socket_address = f"unix:{tmp_path}/agents"
    async with running(switch, tmp_path, RACK) as controller:
        fakes = [FakeAgent(socket_address, name) for name in ("r1", "r2", "r3")]
        for fake in fakes:
            fake.content = None
        async with fakes[0] as one, fakes[1], fakes[2]:
            await until(lambda: as_described(controller, switch), "all rows")
            assert content_of(one) is None and services(controller)[0]["content"] is None
            text = rack(switch, STATELESS)
            assert await controller.change(config(text), "a test", text)
            await until(lambda: content_of(one) == (0, 0), "its content is requested")
            assert one.newest.services[0].plain == agent_pb2.PLAIN_KERNEL
            for fake in fakes:
                fake.content = OLD
            await until(lambda: one.newest.services[0].plain == agent_pb2.PLAIN_STATELESS, "then it serves so")
            first = next(u for u in one.updates if u.services[0].plain == agent_pb2.PLAIN_STATELESS)
            assert first_replicas_in(first) == (OLD, 0)
            text = rack(switch, RACK + "    plain_drain: 500ms\n")
            assert await controller.change(config(text), "a test", text)
            await until(lambda: content_of(one) is None, "the kernel's has none")
