"""Hostile configurations: afterwards either the old or the new configuration is in force as a
whole.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from fake_switch import FakeSwitch
from harness import as_described, rack, running, until
from sample_rack import NAMES, RACK, config
from test_changes import OTHER, stored

from rivulet_controller.config import Config, ConfigError
from rivulet_controller.controller import Controller
from rivulet_controller.rack_file import parse

NUMBERS = (
    "-1", "0", "1", "2", "7", "64", "255", "256", "509", "510", "4095", "65535", "65536", "4294967296",
    "18446744073709551616", "1" + "0" * 23, "9" * 400, "1.5", "1e308", "1e999", ".inf", "-.inf", ".nan", "true", "null",
)  # fmt: skip
DURATIONS = (
    *NUMBERS,
    "50us",
    "99us",
    "2h",
    "15s",
    "1e3s",
    "1.2.3s",
    "9" * 30 + "d",
    "0s",
    "'.inf'",
    "infs",
    "nans",
    "20ms",
)
ADDRESSES = ("0.0.0.0", "255.255.255.255", "224.0.0.5", "127.0.0.1", "'::'", "'fe80::1'", "'fd00::1%eth0'", "5", "true",
             "'::ffff:10.0.0.1'", "10.9.0.1", "10.0.1.254", "''")  # fmt: skip
TEXTS = ("''", "'\\0'", '"\\0"', "'" + "x" * 5000 + "'", "[]", "{}", "null", "unix:/x", "h:99999", "'h:1'", "é")

PLACES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("    number: 1\n", tuple(f"    number: {n}\n" for n in NUMBERS)),
    ("    number: 1\n", tuple(f"    number: 1\n    device_id: {n}\n" for n in NUMBERS)),
    ("    number: 1\n", tuple(f"    number: 1\n    plain_meter: {n}\n    link_mbps: {n}\n" for n in NUMBERS)),
    ("    number: 1\n", tuple(f"    number: 1\n    own_meters: {{arp: {n}}}\n" for n in NUMBERS)),
    ("    number: 1\n", tuple(f"    number: 1\n    pipeline: {t}\n" for t in TEXTS)),
    ("    number: 1\n", tuple(f"    number: 1\n    tls: {{certificate: {t}, key: x, authority: x}}\n" for t in TEXTS)),
    ("port: 101", tuple(f"port: {n}" for n in NUMBERS)),
    ("weight: 2", tuple(f"weight: {n}" for n in NUMBERS)),
    ("weight: 2", tuple(f"mtu: {n}" for n in NUMBERS)),
    ("weight: 2", tuple(f"vlan: {n}" for n in NUMBERS)),
    ("slots: 16", tuple(f"slots: {n}" for n in NUMBERS)),
    ("    port: 80\n", tuple(f"    port: {n}\n" for n in NUMBERS)),
    ("liveness: 20ms", tuple(f"liveness: {d}" for d in DURATIONS)),
    ("liveness: 20ms", tuple(f"heartbeat: {d}" for d in DURATIONS)),
    ("liveness: 20ms", tuple(f"plain_drain: {d}" for d in DURATIONS)),
    ("liveness: 20ms", tuple(f"meters: {{syn: {n}, uncookied: {n}}}" for n in NUMBERS)),
    ("liveness: 20ms", tuple(f"liveness: 20ms\nkeys: {{horizon: {d}}}" for d in DURATIONS)),
    ("liveness: 20ms", tuple(f"liveness: 20ms\nkeys: {{resume: {d}}}" for d in DURATIONS)),
    ("liveness: 20ms", tuple(f"liveness: 20ms\nkeys: {{tor_rotation: {d}}}" for d in DURATIONS)),
    ("liveness: 20ms", tuple(f"liveness: 20ms\nmute: {{after: {d}, requests: 20}}" for d in DURATIONS)),
    ("[10.9.0.1,", tuple(f"[{a}," for a in ADDRESSES)),
    ("ip: 10.0.2.3", tuple(f"ip: {a}" for a in ADDRESSES)),
    ("[10.0.1.254,", tuple(f"[{a}," for a in ADDRESSES)),
    ("via: 10.0.1.1", tuple(f"via: {a}" for a in ADDRESSES)),
    ("prefix: 0.0.0.0/0", tuple(f"prefix: {p}" for p in ("10.0.0.0/33", "'::/0'", "10.0.1.254", "10.0.0.1/8", "0"))),
)  # fmt: skip


def hostile(rng: random.Random, text: str) -> str:
    """The rack with one to three of its values replaced."""
    for old, new in rng.sample(PLACES, rng.randint(1, 3)):
        text = text.replace(old, rng.choice(new), 1)
    return text


def within(controller: Controller, switch: FakeSwitch, folder: Path) -> tuple[Any, ...]:
    """The parts that a change replaces: in memory, at the switch, on disk."""
    state, durable = controller.state, stored(folder)
    return (
        controller.config, controller.text, frozenset(switch.lines()),
        *((s.numbers, s.slots, s.modes, s.documents, s.rings.keys()) for s in (state, durable)),
    )  # fmt: skip


async def assert_whole(
    controller: Controller, switch: FakeSwitch, folder: Path, before: tuple[Any, ...], done: bool, new: Config
) -> None:
    """Checks that either the old or the new configuration is in memory, at the switch and on disk."""
    if done:
        assert controller.config == new
        await until(lambda: as_described(controller, switch), "the new configuration at the switch")
    else:
        assert within(controller, switch, folder) == before


async def test_hostile_configuration_is_refused_or_applied_atomically(tmp_path: Path) -> None:
    rng, taken, refused = random.Random(39), 0, 0
    async with FakeSwitch(NAMES) as switch, running(switch, tmp_path) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        good = rack(switch)
        for _ in range(150):
            text = hostile(rng, good)
            before = within(controller, switch, tmp_path)
            try:
                new = parse(text, "hostile")
            except ConfigError as error:
                refused += 1
                assert all(":" in problem for problem in error.problems)
                continue
            # A configuration of another switch does not affect this one.
            if new.switches[0].address != switch.address or new.switches[0].tls or new.switches[0].device_id != 1:
                continue
            done = await controller.change(new, "a test", text, applied=True)
            await assert_whole(controller, switch, tmp_path, before, done, new)
            taken += done
            if done:
                assert await controller.change(config(good), "a test", good, applied=True)
                await until(lambda: as_described(controller, switch), "the good one again")
        assert taken > 5 and refused > 50, (taken, refused)


UNCHECKED: tuple[dict[str, Any], ...] = (
    {"liveness": float("inf")}, {"liveness": float("nan")}, {"liveness": 7200.0}, {"heartbeat": float("inf")},
    {"slots": 0}, {"port": 1 << 16}, {"port": -1}, {"replicas": ("r9",)}, {"plain": "nonsense"},
    {"policy": "nonsense"}, {"addresses": ("10.9.0.1",)}, {"plain_drain": None}, {"name": None},
)  # fmt: skip


@pytest.mark.parametrize("change", UNCHECKED, ids=str)
async def test_failure_during_change_restores_old_configuration(tmp_path: Path, change: dict[str, Any]) -> None:
    """Values that validation refuses, given to the controller directly: each fails at another step."""
    async with FakeSwitch(NAMES) as switch, running(switch, tmp_path, RACK + OTHER) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        text = rack(switch, RACK + OTHER)
        before = within(controller, switch, tmp_path)
        services = (*controller.config.services[:1], controller.config.services[1].model_copy(update=change))
        bad = controller.config.model_copy(update={"services": services})
        done = await controller.change(bad, "a test", text, applied=True)
        if not done:
            assert within(controller, switch, tmp_path) == before and controller.config_problem
        # Writes succeed again after any failure.
        assert await controller.change(config(rack(switch)), "a test", rack(switch), applied=True)
        await until(lambda: as_described(controller, switch), "a good configuration")
        assert stored(tmp_path).slots.keys() <= {"web", "other"}


async def test_cancelled_change_is_atomic(tmp_path: Path) -> None:
    async with FakeSwitch(NAMES) as switch, running(switch, tmp_path) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        text, done = rack(switch, RACK + OTHER), 0
        new = config(text)
        for steps in [*range(1, 20), *range(20, 400, 20)]:
            before = within(controller, switch, tmp_path)
            task = asyncio.create_task(controller.change(new, "a test", text, applied=True))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            # Waits for the change if it still runs.
            await controller.reconcile()
            whole = controller.config == new
            done += whole
            await assert_whole(controller, switch, tmp_path, before, whole, new)
            if whole:
                assert await controller.change(config(rack(switch)), "a test", rack(switch), applied=True)
                await until(lambda: as_described(controller, switch), "the old one")
        assert done > 0
