"""A member without any heartbeat so far gets no traffic before its first one."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from fake_agent import FakeAgent
from fake_switch import FakeSwitch
from harness import as_described, rack, running, until
from sample_rack import NAMES, RACK, config
from test_changes import OTHER


def members(switch: FakeSwitch) -> set[str]:
    """The bitmaps of the pools' members."""
    rows = (line for line in switch.lines() if line.startswith("pools["))
    return {word.removeprefix("members=").rstrip(",)") for row in rows for word in row.split() if "members=" in word}


async def test_member_without_agent_and_heartbeats_gets_no_traffic(tmp_path: Path) -> None:
    async with (
        FakeSwitch(NAMES) as switch,
        running(switch, tmp_path) as controller,
        AsyncExitStack() as stack,
    ):
        await until(lambda: as_described(controller, switch), "first apply")
        for name in ("r1", "r2"):
            await stack.enter_async_context(FakeAgent(f"unix:{tmp_path}/agents", name))
        await until(lambda: {m.rpartition("(")[2] for m in members(switch)} == {"0x3"}, "r3 is in no pool")
        # From the first write of a new pool on.
        switch.writes.clear()
        assert await controller.change(config(rack(switch) + OTHER), "a test")
        rows = [line for kind, line in switch.writes if line.startswith("pools[")]
        assert rows and all("members=0x3" in row for row in rows), rows
        await stack.enter_async_context(FakeAgent(f"unix:{tmp_path}/agents", "r3"))
        await until(lambda: {m.rpartition("(")[2] for m in members(switch)} == {"0x7"}, "it came")


async def test_pool_without_heartbeats_keeps_all_members(tmp_path: Path) -> None:
    async with FakeSwitch(NAMES) as switch, running(switch, tmp_path, RACK) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        await until(lambda: "tor1" in controller.fleet.health.samples, "a reading")
        await controller.reconcile()
        assert controller.fleet.without_heartbeat(controller.fleet.switches["tor1"]) == frozenset()
        assert {m.rpartition("(")[2] for m in members(switch)} == {"0x7"}
