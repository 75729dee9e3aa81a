"""A controller with its door for agents, in the process of the test, and what tests ask of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from fake_switch import FakeSwitch
from sample_rack import RACK, config, lines

from rivulet_controller import agents as agents_door
from rivulet_controller.controller import Controller
from rivulet_controller.store import SqliteStore


def rack(switch: FakeSwitch, text: str = RACK) -> str:
    """The description with the fake switch's address."""
    return text.replace("127.0.0.1:9559", switch.address)


@asynccontextmanager
async def running(switch: FakeSwitch, folder: Path, text: str = RACK) -> AsyncIterator[Controller]:
    """A controller for the rack, with its door for agents at folder/agents."""
    store = SqliteStore(folder / "state.db")
    controller = Controller(config(rack(switch, text)), store, rack(switch, text))
    await controller.start()
    server = await agents_door.serve(controller.agents, f"unix:{folder}/agents")
    task = asyncio.create_task(controller.run())
    try:
        yield controller
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await controller.stop()
        await server.stop(None)
        store.close()


async def until(condition: Callable[[], bool], what: str, patience_s: float = 30.0) -> None:
    """Waits for a condition; fails in words."""
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end, f"not within {patience_s:g} s: {what}"
        await asyncio.sleep(0.01)


def as_described(controller: Controller, switch: FakeSwitch) -> bool:
    """Whether the switch holds exactly what it should."""
    parts = controller.fleet.fragments("tor1")
    return parts is not None and bool(switch.entities) and switch.lines() == lines(parts)


def connected(controller: Controller) -> bool:
    """Whether the session with the switch stands."""
    return "tor1" in controller.fleet.switches and controller.fleet.switches["tor1"].link.connected


def problem(controller: Controller) -> str:
    """Why the session with the switch does not stand."""
    return controller.fleet.switches["tor1"].link.problem if "tor1" in controller.fleet.switches else ""
