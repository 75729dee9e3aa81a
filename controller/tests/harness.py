"""A controller with its listener for agents, in the test's process, and helpers for tests."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from fake_switch import FakeSwitch
from sample_rack import NAMES, RACK, config, lines

from rivulet_controller import agents as agents_door
from rivulet_controller.controller import Controller
from rivulet_controller.daemon import serve_api
from rivulet_controller.store import SqliteStore


def rack(switch: FakeSwitch, text: str = RACK) -> str:
    """The configuration with the fake switch's address."""
    return text.replace("127.0.0.1:9559", switch.address)


@asynccontextmanager
async def running(switch: FakeSwitch, folder: Path, text: str = RACK) -> AsyncIterator[Controller]:
    """A controller for the rack, with its listener for agents at folder/agents."""
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
    """Waits for a condition; fails with a message."""
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end, f"not within {patience_s:g} s: {what}"
        await asyncio.sleep(0.01)


def as_described(controller: Controller, switch: FakeSwitch) -> bool:
    """Whether the switch holds exactly the desired entries."""
    parts = controller.fleet.fragments("tor1")
    return parts is not None and bool(switch.entities) and switch.lines() == lines(parts)


def connected(controller: Controller) -> bool:
    """Whether the session with the switch is established."""
    return "tor1" in controller.fleet.switches and controller.fleet.switches["tor1"].link.connected


def problem(controller: Controller) -> str:
    """Why the session with the switch is not established."""
    return controller.fleet.switches["tor1"].link.problem if "tor1" in controller.fleet.switches else ""


@asynccontextmanager
async def served(
    tmp_path: Path, tokens: str = "", address: str = "", more: str = ""
) -> AsyncIterator[tuple[Controller, str]]:
    """The API as the daemon serves it: on a Unix socket, or at an address with a control socket."""
    socket = tmp_path / ("control.sock" if address else "api.sock")
    listen = [f"api: '{address}', control: 'unix:{socket}'" if address else f"api: 'unix:{socket}'"]
    if tokens:
        (tmp_path / "tokens").touch(mode=0o600)
        (tmp_path / "tokens").write_text(tokens)
        listen.append(f"api_token_file: {tmp_path}/tokens")
    listen += [more] if more else []
    text = RACK + f"listen: {{{', '.join(listen)}}}\nstate: {tmp_path}/state.db\n"
    async with FakeSwitch(NAMES) as switch, running(switch, tmp_path, text) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        task = asyncio.create_task(serve_api(controller, controller.config))
        await until(socket.exists, "listening")
        try:
            yield controller, address or f"unix:{socket}"
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def audit_records(folder: Path, name: str = "audit") -> list[dict[str, Any]]:
    """The records of an audit log; empty before the first."""
    file = folder / name
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
