"""Client affinity: configuration, entries of switches, and how it is shown."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from fake_switch import FakeSwitch
from harness import as_described, rack, running, until
from sample_rack import NAMES, RACK, config, fragments, numbers_of, weights_of
from test_page import rack_with_page

from rivulet_controller.cli import _plain
from rivulet_controller.entry import Entry
from rivulet_controller.metrics import Metrics
from rivulet_controller.pb.rivulet.agent.v1 import agent_pb2
from rivulet_controller.state import State
from rivulet_controller.trace import trace
from rivulet_controller.updates import update
from rivulet_controller.view import services

BY_CLIENT = RACK + "    affinity: client\n"
SERVICE = ipaddress.ip_address("10.9.0.1")


def affinity_entry(text: str) -> int:
    """The service's affinity and slots in a switch's entries."""
    items = fragments(config(text))["service web"]
    (row,) = (item for item in items if isinstance(item, Entry) and item.action == "configure")
    return dict(row.params)["affinity"]


def test_affinity_defaults_to_flow() -> None:
    flow, client = (NAMES.value("affinity_t", name) for name in ("FLOW", "CLIENT"))
    assert config(RACK).services[0].affinity == "flow"
    assert (
        affinity_entry(RACK)
        == affinity_entry(RACK + "    affinity: flow\n")
        == flow
        != client
        == affinity_entry(BY_CLIENT)
    )


@pytest.mark.parametrize("plain", ["kernel", "stateless", "trods"])
def test_affinity_works_with_each_plain_mode(plain: str) -> None:
    trods = "    trods: {store: ['10.0.2.9:11211']}\n" if plain == "trods" else ""
    assert affinity_entry(f"{BY_CLIENT}    plain: {plain}\n{trods}") == NAMES.value("affinity_t", "CLIENT")


def test_affinity_keeps_slots_and_key() -> None:
    state = State()
    off, on = (fragments(config(text), state=state) for text in (RACK, BY_CLIENT))
    differ = {name for name in off if off[name] != on[name]}
    assert off.keys() == on.keys() and differ == {"service web"}
    changed = [(a, b) for a, b in zip(off["service web"], on["service web"], strict=True) if a != b]
    assert len(changed) == 1 and "affinity=0x0" in str(changed[0][0]) and "affinity=0x1" in str(changed[0][1])


def test_agent_update_has_affinity_and_slots() -> None:
    for text, wanted in ((RACK, agent_pb2.AFFINITY_FLOW), (BY_CLIENT, agent_pb2.AFFINITY_CLIENT)):
        described, state = config(text), State()
        fragments(described, state=state)
        sent = update(
            described, "r1", numbers_of(described, state), state.rings, state.slots, weights_of(described), frozenset()
        )
        assert [service.affinity for service in sent.services] == [wanted]


@pytest.mark.parametrize(
    ("rivulet", "text", "is_explained"), [(False, BY_CLIENT, True), (False, RACK, False), (True, BY_CLIENT, False)]
)
def test_trace_explains_client_slot(rivulet: bool, text: str, is_explained: bool) -> None:
    items = [item for part in fragments(config(text)).values() for item in part]
    steps = trace(items, NAMES, SERVICE, 80, rivulet)
    (slots,) = (step for step in steps if step.table == "slots")
    assert slots.meaning.endswith("replica 0: 4/16, replica 1: 4/16, replica 2: 8/16")
    assert ("one for all flows of a client's address" in slots.meaning) == is_explained


async def test_affinity_change_is_one_write_and_is_shown(tmp_path: Path) -> None:
    async with FakeSwitch(NAMES) as switch, running(switch, tmp_path, RACK) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        before = switch.lines()
        (found,) = services(controller)
        assert (found["affinity"], _plain(found)) == ("flow", "kernel")
        text = Metrics(controller).text().decode()
        assert 'rivulet_service_affinity{affinity="flow",service="web"} 1.0' in text
        switch.writes.clear()
        assert await controller.change(config(rack(switch, BY_CLIENT)), "a test")
        (row,) = switch.lines() - before
        assert row.startswith("service_config[service=0x1] configure(affinity=0x1,"), row
        assert [kind for kind, _ in switch.writes] == ["MODIFY"], "no slot is rewritten"
        (found,) = services(controller)
        assert (found["affinity"], _plain(found)) == ("client", "kernel, by client")
        text = Metrics(controller).text().decode()
        assert 'rivulet_service_affinity{affinity="client",service="web"} 1.0' in text
        assert 'rivulet_service_affinity{affinity="flow",service="web"} 0.0' in text


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
async def test_page_shows_client_affinity(tmp_path: Path) -> None:
    shown = "document.querySelector('#services td[data-label=\"plain TCP\"]')?.textContent"
    async with rack_with_page(tmp_path) as (controller, _, url), Browser(tmp_path / "profile") as page:
        await page.open(f"{url}#token=sesame")
        await page.until(f"{shown} === 'kernel'", 60.0)
        (service,) = controller.config.services
        by_client = service.model_copy(update={"affinity": "client"})
        assert await controller.change(controller.config.model_copy(update={"services": (by_client,)}), "a test")
        await page.until(f"{shown} === 'kernel, by client'")
        assert page.errors == []
