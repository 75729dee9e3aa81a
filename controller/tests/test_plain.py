"""Plain TCP of a service: what agents are told of its mode and of its cookie keys."""

from __future__ import annotations

import pytest
from sample_rack import LIVES, RACK, config, fragments, held, numbers_of

from rivulet_controller.keys import KeyRing, Kind
from rivulet_controller.pb.rivulet.agent.v1 import agent_pb2
from rivulet_controller.state import State
from rivulet_controller.updates import update

STATELESS = RACK + "    plain: stateless\n"


def told(text: str, state: State) -> agent_pb2.Service:
    """What r1 is told of the service."""
    rack = config(text)
    fragments(rack, state=state)
    return update(rack, "r1", numbers_of(rack, state), state.rings, state.slots, frozenset()).services[0]


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        (RACK, agent_pb2.PLAIN_KERNEL),
        (RACK + "    plain: none\n", agent_pb2.PLAIN_NONE),
        (RACK + "    plain: kernel\n", agent_pb2.PLAIN_KERNEL),
        (STATELESS, agent_pb2.PLAIN_STATELESS),
    ],
)
def test_agents_are_told_of_the_mode(text: str, mode: agent_pb2.Plain) -> None:
    service = told(text, State())
    assert service.plain == mode
    # Field 11 was a boolean: an agent of before reads none as false, and all else as true.
    assert (bytes((11 << 3, mode)) in service.SerializeToString()) == (mode != agent_pb2.PLAIN_NONE)


def test_agents_hold_cookie_keys_before_they_use_them() -> None:
    def nobody(kind: Kind, epoch: int) -> bool:
        return False

    state, ring = State(), KeyRing().tick(1.0, LIVES, nobody)
    state.set_ring("web", ring)
    service = told(RACK, state)
    assert ([k.epoch for k in service.cookie_keys], service.usable_cookie_epoch) == ([1], 0)
    ring = ring.tick(1.0, LIVES, held).tick(2.0, LIVES, nobody, frozenset({Kind.COOKIE}))
    state.set_ring("web", ring)
    service = told(STATELESS, state)
    assert ([k.epoch for k in service.cookie_keys], service.usable_cookie_epoch) == ([1, 2], 1)
    assert [k.key for k in service.cookie_keys] == [k.secret for k in ring.of(Kind.COOKIE)]
    state.set_ring("web", ring.tick(3.0, LIVES, held))
    service = told(STATELESS, state)
    assert ([k.epoch for k in service.cookie_keys], service.usable_cookie_epoch) == ([1, 2], 2)
