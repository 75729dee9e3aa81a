"""A service's plain TCP: its mode and cookie keys in agents' updates and switches' entries."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fake_agent import FakeAgent
from fake_switch import FakeSwitch
from harness import as_described, rack, running, until
from sample_rack import LIVES, NAMES, RACK, TWO_RACKS, config, fragments, held, lines, none_held, service_update

from rivulet_controller.controller import Controller
from rivulet_controller.entry import Entry, Meter
from rivulet_controller.keys import KeyRing, Kind, words
from rivulet_controller.keys import State as KeyState
from rivulet_controller.pb.rivulet.agent.v1 import agent_pb2
from rivulet_controller.state import State

STATELESS = RACK + "    plain: stateless\n"


def all_usable(controller: Controller) -> bool:
    """Whether every key is usable."""
    keys = [key for ring in controller.state.rings.values() for key in ring.keys]
    return bool(keys) and all(key.state is KeyState.USABLE for key in keys)


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        (RACK, agent_pb2.PLAIN_KERNEL),
        (RACK + "    plain: none\n", agent_pb2.PLAIN_NONE),
        (RACK + "    plain: kernel\n", agent_pb2.PLAIN_KERNEL),
        (STATELESS, agent_pb2.PLAIN_STATELESS),
    ],
)
def test_agent_update_has_plain_mode(text: str, mode: agent_pb2.Plain) -> None:
    service = service_update(config(text), State())
    assert service.plain == mode
    # Field 11 was a boolean: an older agent reads PLAIN_NONE as false, and every other mode as
    # true.
    assert (bytes((11 << 3, mode)) in service.SerializeToString()) == (mode != agent_pb2.PLAIN_NONE)


def test_agents_hold_cookie_key_before_use() -> None:
    state, ring = State(), KeyRing().tick(1.0, LIVES, none_held)
    state.set_ring("web", ring)
    service = service_update(config(RACK), state)
    assert ([k.epoch for k in service.cookie_keys], service.usable_cookie_epoch) == ([1], 0)
    ring = ring.tick(1.0, LIVES, held).tick(2.0, LIVES, none_held, frozenset({Kind.COOKIE}))
    state.set_ring("web", ring)
    service = service_update(config(STATELESS), state)
    assert ([k.epoch for k in service.cookie_keys], service.usable_cookie_epoch) == ([1, 2], 1)
    assert [k.key for k in service.cookie_keys] == [k.secret for k in ring.of(Kind.COOKIE)]
    state.set_ring("web", ring.tick(3.0, LIVES, held))
    service = service_update(config(STATELESS), state)
    assert ([k.epoch for k in service.cookie_keys], service.usable_cookie_epoch) == ([1, 2], 2)


def row(text: str, state: State, switch: str = "tor1") -> tuple[int, dict[str, int] | None]:
    """The service's mode at a switch, and the parameters of its cookie keys."""
    part = fragments(config(text), switch, state=state)["service web"]
    entries = [item for item in part if isinstance(item, Entry)]
    (mode,) = (dict(item.params)["plain"] for item in entries if item.action == "configure")
    found = [dict(item.params) for item in entries if item.table == "cookie_keys"]
    return mode, found[0] if found else None


def test_switch_entries_have_mode_and_two_cookie_keys() -> None:
    state, modes = State(), NAMES.members("plain_t")
    for plain in ("none", "kernel"):
        assert row(RACK + f"    plain: {plain}\n", state) == (modes[plain.upper()], None)
    mode, found = row(STATELESS, state)
    assert mode == modes["STATELESS"] and found is not None
    (first,) = state.rings["web"].of(Kind.COOKIE)
    assert (found["current0"], found["current1"]) == (found["other0"], found["other1"]) == words(first.secret)
    assert found["current0"].to_bytes(4, "little") + found["current1"].to_bytes(4, "little") == first.secret
    # Every switch accepts a successor before any switch uses it.
    ring = state.rings["web"].tick(2.0, LIVES, none_held, frozenset({Kind.COOKIE}))
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


def test_switch_uses_no_cookies_before_usable_key() -> None:
    state = State()
    state.set_ring("web", KeyRing().tick(1.0, LIVES, none_held))
    assert row(STATELESS, state) == (NAMES.value("plain_t", "KERNEL"), None)


@pytest.mark.parametrize(
    ("old", "new", "switch", "mtu"),
    [
        ("", "", "tor1", 1500),
        ("ip: 10.0.2.2}", "ip: 10.0.2.2, mtu: 1400}", "tor1", 1400),
        ("ip: 10.0.2.2}", "ip: 10.0.2.2, mtu: 1400, maintenance: true}", "tor1", 1500),
        # Through a tunnel from another rack: 1600 bytes up to the next hop.
        ("", "", "tor2", 1580),
        ("ip: 10.0.2.2}", "ip: 10.0.2.2, tunnel: gue}", "tor2", 1568),
    ],
)
def test_cookie_mtu_is_the_smallest_of_the_replicas(old: str, new: str, switch: str, mtu: int) -> None:
    _, found = row(TWO_RACKS.replace(old, new, 1) + "    plain: stateless\n", State(), switch)
    assert found is not None and found["mtu"] == mtu


def test_cookie_mtu_includes_path_mtu() -> None:
    part = fragments(config(TWO_RACKS + "    plain: stateless\n"), "tor2", path_mtus={"10.0.2.1": 1400})["service web"]
    (mtu,) = (dict(i.params)["mtu"] for i in part if isinstance(i, Entry) and i.table == "cookie_keys")
    assert mtu == 1380


def test_stateless_service_meters_every_client() -> None:
    def rates(text: str) -> dict[int, int]:
        items = [item for part in fragments(config(text)).values() for item in part]
        return {item.index: item.cir for item in items if isinstance(item, Meter) and item.meter == "plain_meter"}

    assert rates(RACK) == {}
    assert rates(STATELESS) == dict.fromkeys(range(4096), 20_000)
    assert rates(STATELESS.replace("    hosts:", "    plain_meter: 7\n    hosts:", 1)) == dict.fromkeys(range(4096), 7)
    assert rates(STATELESS.replace("    hosts:", "    plain_meter: null\n    hosts:", 1)) == {}


def test_segments_without_cookie_are_metered() -> None:
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
    """The only row of a table."""
    return next((line for line in switch.lines() if line.startswith(f"{table}[")), "")


async def test_mode_change_reaches_replicas_then_switches(switch: FakeSwitch, tmp_path: Path) -> None:
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

            def service_update(agent: FakeAgent) -> tuple[int, int]:
                (service,) = agent.newest.services
                return service.plain, service.plain_drains

            both = (agent_pb2.PLAIN_STATELESS, agent_pb2.PLAIN_KERNEL)
            await until(
                lambda: service_update(one) == service_update(three) == both,
                "replicas are stateless, and kernels drain",
            )
            rounds = controller.reconciles
            controller.wake()
            await until(lambda: controller.reconciles > rounds + 1, "rounds pass")
            assert "plain=0x1" in line(switch, "service_config"), "r3 has not confirmed"
            assert str(controller.state.modes["web"]) == "stateless, ToRs kernel, kernel drains"
            three.silent = False
            await until(lambda: "plain=0x2" in line(switch, "service_config"), "the ToR answers SYNs")
            assert "set_cookie_keys" in line(switch, "cookie_keys")
            await until(
                lambda: service_update(one) == (agent_pb2.PLAIN_STATELESS, agent_pb2.PLAIN_NONE), "nothing drains"
            )
            # The ToR accepts a cookie key that r3 lacks, and no ToR or replica uses it.
            three.silent = True
            controller.rotate("web", frozenset({Kind.COOKIE}))
            first, second = 1, 2
            await until(lambda: [k.epoch for k in one.newest.services[0].cookie_keys] == [first, second], "given")
            assert one.newest.services[0].usable_cookie_epoch == first
            three.silent = False
            await until(lambda: one.newest.services[0].usable_cookie_epoch == second, "used")
            # Back: the ToR changes first. The drain is long enough to be observed on a slow
            # machine.
            config_now = rack(switch, RACK + "    plain_drain: 1h\n")
            assert await controller.change(config(config_now), "a test", config_now)
            assert "plain=0x1" in line(switch, "service_config")
            both = (agent_pb2.PLAIN_KERNEL, agent_pb2.PLAIN_STATELESS)
            await until(lambda: service_update(one) == both, "the kernel serves, and stateless connections drain")
            config_now = rack(switch, RACK + drain)
            assert await controller.change(config(config_now), "a test", config_now)
            await until(lambda: service_update(one) == (agent_pb2.PLAIN_KERNEL, agent_pb2.PLAIN_NONE), "over")
            assert line(switch, "cookie_keys") == "" and controller.state.modes["web"].is_settled


async def test_mode_survives_controller_restart(switch: FakeSwitch, tmp_path: Path) -> None:
    agents = f"unix:{tmp_path}/agents"
    async with running(switch, tmp_path, STATELESS) as controller, FakeAgent(agents, "r1"), FakeAgent(agents, "r2"):
        async with FakeAgent(agents, "r3"):
            await until(lambda: "plain=0x2" in line(switch, "service_config"), "stateless from the start")
            await until(lambda: as_described(controller, switch), "all meters too")
            # A key that becomes usable later, or was not saved as such, would be another
            # difference.
            await until(lambda: all_usable(controller), "no key is on its way")
            rounds = controller.reconciles
            controller.wake()
            await until(lambda: controller.reconciles > rounds + 1, "and that is saved")
            await until(lambda: as_described(controller, switch), "and confirmed")
        assert controller.state.modes["web"].is_settled
    before = switch.lines()
    async with running(switch, tmp_path, STATELESS) as controller:
        await until(lambda: "tor1" in controller.fleet.switches and controller.fleet.converged(), "as described")
        assert switch.lines() == before and controller.fleet.switches["tor1"].link.writes == 0
