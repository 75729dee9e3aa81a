"""Plain TCP of a service: what agents and switches are told of its mode and of its cookie keys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fake_agent import FakeAgent
from fake_switch import FakeSwitch
from harness import as_described, rack, running, until
from sample_rack import LIVES, NAMES, RACK, TWO_RACKS, config, fragments, held, lines, numbers_of, weights_of

from rivulet_controller.controller import Controller
from rivulet_controller.entry import Entry, Meter
from rivulet_controller.keys import KeyRing, Kind, words
from rivulet_controller.keys import State as KeyState
from rivulet_controller.pb.rivulet.agent.v1 import agent_pb2
from rivulet_controller.state import State
from rivulet_controller.updates import update

STATELESS = RACK + "    plain: stateless\n"


def nobody(kind: Kind, epoch: int) -> bool:
    """As if nobody held any key."""
    return False


def all_usable(controller: Controller) -> bool:
    """Whether every key that there is has come into use."""
    keys = [key for ring in controller.state.rings.values() for key in ring.keys]
    return bool(keys) and all(key.state is KeyState.USABLE for key in keys)


def told(text: str, state: State) -> agent_pb2.Service:
    """What r1 is told of the service."""
    rack = config(text)
    fragments(rack, state=state)
    return update(
        rack, "r1", numbers_of(rack, state), state.rings, state.slots, weights_of(rack), frozenset()
    ).services[0]


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


def row(text: str, state: State, switch: str = "tor1") -> tuple[int, dict[str, int] | None]:
    """The service's mode at a switch, and the parameters of its cookie keys."""
    part = fragments(config(text), switch, state=state)["service web"]
    entries = [item for item in part if isinstance(item, Entry)]
    (mode,) = (dict(item.params)["plain"] for item in entries if item.action == "configure")
    found = [dict(item.params) for item in entries if item.table == "cookie_keys"]
    return mode, found[0] if found else None


def test_switches_are_told_of_the_mode_and_of_two_keys() -> None:
    state, modes = State(), NAMES.members("plain_t")
    for plain in ("none", "kernel"):
        assert row(RACK + f"    plain: {plain}\n", state) == (modes[plain.upper()], None)
    mode, found = row(STATELESS, state)
    assert mode == modes["STATELESS"] and found is not None
    (first,) = state.rings["web"].of(Kind.COOKIE)
    assert (found["current0"], found["current1"]) == (found["other0"], found["other1"]) == words(first.secret)
    assert found["current0"].to_bytes(4, "little") + found["current1"].to_bytes(4, "little") == first.secret
    # A successor is read by every switch before it is used by any.
    ring = state.rings["web"].tick(2.0, LIVES, nobody, frozenset({Kind.COOKIE}))
    state.set_ring("web", ring)
    second = ring.of(Kind.COOKIE)[1]
    _, found = row(STATELESS, state)
    assert found is not None and words(first.secret) == (found["current0"], found["current1"])
    assert words(second.secret) == (found["other0"], found["other1"])
    state.set_ring("web", ring.tick(3.0, LIVES, held))
    _, found = row(STATELESS, state)
    assert found is not None and words(second.secret) == (found["current0"], found["current1"])
    assert words(first.secret) == (found["other0"], found["other1"])
    text = " ".join(lines(fragments(config(STATELESS), state=state)))
    assert "cookie_keys[service=0x1] set_cookie_keys(current0=…, current1=…, mtu=0x5dc, other0=…, other1=…)" in text


def test_a_switch_answers_no_syn_before_a_cookie_key_is_usable() -> None:
    state = State()
    state.set_ring("web", KeyRing().tick(1.0, LIVES, nobody))
    assert row(STATELESS, state) == (NAMES.value("plain_t", "KERNEL"), None)


@pytest.mark.parametrize(
    ("old", "new", "switch", "mtu"),
    [
        ("", "", "tor1", 1500),
        ("ip: 10.0.2.2}", "ip: 10.0.2.2, mtu: 1400}", "tor1", 1400),
        ("ip: 10.0.2.2}", "ip: 10.0.2.2, mtu: 1400, maintenance: true}", "tor1", 1500),
        # From another rack through a tunnel: 1600 bytes up to its next hop.
        ("", "", "tor2", 1580),
        ("ip: 10.0.2.2}", "ip: 10.0.2.2, tunnel: gue}", "tor2", 1568),
    ],
)
def test_what_clients_may_send_is_what_every_replica_takes(old: str, new: str, switch: str, mtu: int) -> None:
    _, found = row(TWO_RACKS.replace(old, new, 1) + "    plain: stateless\n", State(), switch)
    assert found is not None and found["mtu"] == mtu


def test_what_routers_say_of_a_tunnel_counts_too() -> None:
    part = fragments(config(TWO_RACKS + "    plain: stateless\n"), "tor2", path_mtus={"10.0.2.1": 1400})["service web"]
    (mtu,) = (dict(i.params)["mtu"] for i in part if isinstance(i, Entry) and i.table == "cookie_keys")
    assert mtu == 1380


def test_every_client_has_the_same_meter_where_there_is_a_stateless_service() -> None:
    def rates(text: str) -> dict[int, int]:
        items = [item for part in fragments(config(text)).values() for item in part]
        return {item.index: item.cir for item in items if isinstance(item, Meter) and item.meter == "plain_meter"}

    assert rates(RACK) == {}
    assert rates(STATELESS) == dict.fromkeys(range(4096), 20_000)
    assert rates(STATELESS.replace("    hosts:", "    plain_meter: 7\n    hosts:", 1)) == dict.fromkeys(range(4096), 7)
    assert rates(STATELESS.replace("    hosts:", "    plain_meter: null\n    hosts:", 1)) == {}


def test_what_shows_no_cookie_is_metered_by_service() -> None:
    def rates(text: str) -> dict[int, int]:
        items = fragments(config(text))["service web"]
        return {item.index: item.cir for item in items if isinstance(item, Meter) and item.meter == "uncookied_meter"}

    assert (rates(RACK), rates(STATELESS)) == ({}, {1: 50_000})
    assert rates(STATELESS + "    meters: {uncookied: 9}\n") == {1: 9}
    assert rates(STATELESS + "    meters: {uncookied: null}\n") == {}


@pytest.fixture
async def switch() -> AsyncIterator[FakeSwitch]:
    async with FakeSwitch(NAMES) as fake:
        yield fake


def line(switch: FakeSwitch, table: str) -> str:
    """The one row of a table."""
    return next((line for line in switch.lines() if line.startswith(f"{table}[")), "")


async def test_a_change_of_mode_reaches_replicas_and_switches_in_order(switch: FakeSwitch, tmp_path: Path) -> None:
    agents = f"unix:{tmp_path}/agents"
    drain = "    plain_drain: 500ms\n"
    async with running(switch, tmp_path, RACK + drain) as controller:
        fakes = [FakeAgent(agents, name) for name in ("r1", "r2", "r3")]
        async with fakes[0] as one, fakes[1], fakes[2] as three:
            await until(lambda: controller.state.rings["web"].usable(Kind.COOKIE) is not None, "usable")
            await until(lambda: as_described(controller, switch), "all rows")
            assert "plain=0x1" in line(switch, "service_config") and line(switch, "cookie_keys") == ""
            three.silent = True
            config_now = rack(switch, STATELESS + drain)
            assert await controller.change(config(config_now), "a test", config_now)

            def told(agent: FakeAgent) -> tuple[int, int]:
                (service,) = agent.newest.services
                return service.plain, service.plain_drains

            both = (agent_pb2.PLAIN_STATELESS, agent_pb2.PLAIN_KERNEL)
            await until(lambda: told(one) == told(three) == both, "replicas are stateless, and kernels drain")
            rounds = controller.reconciles
            controller.wake()
            await until(lambda: controller.reconciles > rounds + 1, "rounds pass")
            assert "plain=0x1" in line(switch, "service_config"), "r3 has not confirmed"
            assert str(controller.state.modes["web"]) == "stateless, ToRs kernel, kernel drains"
            three.silent = False
            await until(lambda: "plain=0x2" in line(switch, "service_config"), "the ToR answers SYNs")
            assert "set_cookie_keys" in line(switch, "cookie_keys")
            await until(lambda: told(one) == (agent_pb2.PLAIN_STATELESS, agent_pb2.PLAIN_NONE), "nothing drains")
            # A cookie key that r3 does not hold is read by the ToR, and used by nobody.
            three.silent = True
            controller.rotate("web", frozenset({Kind.COOKIE}))
            first, second = 1, 2
            await until(lambda: [k.epoch for k in one.newest.services[0].cookie_keys] == [first, second], "given")
            assert one.newest.services[0].usable_cookie_epoch == first
            three.silent = False
            await until(lambda: one.newest.services[0].usable_cookie_epoch == second, "used")
            # Back: the ToR first. However slow this machine is, it is seen to drain.
            config_now = rack(switch, RACK + "    plain_drain: 1h\n")
            assert await controller.change(config(config_now), "a test", config_now)
            assert "plain=0x1" in line(switch, "service_config")
            both = (agent_pb2.PLAIN_KERNEL, agent_pb2.PLAIN_STATELESS)
            await until(lambda: told(one) == both, "the kernel serves, and stateless connections drain")
            config_now = rack(switch, RACK + drain)
            assert await controller.change(config(config_now), "a test", config_now)
            await until(lambda: told(one) == (agent_pb2.PLAIN_KERNEL, agent_pb2.PLAIN_NONE), "over")
            assert line(switch, "cookie_keys") == "" and controller.state.modes["web"].is_settled


async def test_a_controller_that_starts_again_finds_the_mode_as_it_was(switch: FakeSwitch, tmp_path: Path) -> None:
    agents = f"unix:{tmp_path}/agents"
    async with running(switch, tmp_path, STATELESS) as controller, FakeAgent(agents, "r1"), FakeAgent(agents, "r2"):
        async with FakeAgent(agents, "r3"):
            await until(lambda: "plain=0x2" in line(switch, "service_config"), "stateless from the start")
            await until(lambda: as_described(controller, switch), "all meters too")
            # A key that comes into use later, or whose use was not saved, would be a difference of its own.
            await until(lambda: all_usable(controller), "no key is on its way")
            rounds = controller.reconciles
            controller.wake()
            await until(lambda: controller.reconciles > rounds + 1, "and that is saved")
            await until(lambda: as_described(controller, switch), "and told")
        assert controller.state.modes["web"].is_settled
    before = switch.lines()
    async with running(switch, tmp_path, STATELESS) as controller:
        await until(lambda: "tor1" in controller.fleet.switches and controller.fleet.converged(), "as described")
        assert switch.lines() == before and controller.fleet.switches["tor1"].link.writes == 0
