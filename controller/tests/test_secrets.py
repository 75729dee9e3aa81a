"""Keys stay secret: no log shows one at any level, and no clear-text channel carries one."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from fake_switch import FakeSwitch
from google.protobuf import text_encoding
from harness import rack, until
from sample_rack import NAMES, RACK

from rivulet_controller.config import ConfigError
from rivulet_controller.keys import Key
from rivulet_controller.rack_file import parse
from rivulet_controller.state import State
from rivulet_controller.store import SqliteStore

WORD = 4
"""Nonce keys are written to the switch as 32-bit words."""


def shown(key: Key) -> set[str]:
    """Forms in which a log could show words of a key: hexadecimal, decimal, protobuf's and Python's
    text.
    """
    words = [key.secret[at : at + WORD] for at in range(0, len(key.secret), WORD)]
    words += [word[::-1] for word in words]
    found: set[str] = set()
    for word in words:
        found |= {word.hex(), str(int.from_bytes(word)), text_encoding.CEscape(word, as_utf8=False), repr(word)[2:-1]}
    return found


async def test_debug_logs_show_no_key(tmp_path: Path) -> None:
    listen = f'listen: {{agents: "unix:{tmp_path}/agents", api: "unix:{tmp_path}/api"}}\nstate: {tmp_path}/state.db\n'
    async with FakeSwitch(NAMES) as switch:
        (tmp_path / "rack.yaml").write_text(rack(switch, RACK + listen))
        with (tmp_path / "log").open("wb") as log:
            command = (sys.executable, "-m", "rivulet_controller.daemon", str(tmp_path / "rack.yaml"), "--log", "debug")
            daemon = await asyncio.create_subprocess_exec(*command, stderr=log)
        try:
            await until(lambda: any("nonce_keys" in line for line in switch.lines()), "keys are written", 60.0)
        finally:
            daemon.terminate()
            await daemon.wait()
    store = SqliteStore(tmp_path / "state.db")
    keys = [key for ring in State(store.load()).rings.values() for key in ring.keys]
    store.close()
    assert len(keys) >= 2
    text = (tmp_path / "log").read_text(errors="replace")
    assert "DEBUG" in text or len(text) > 200, "the log is there"
    assert [key for key in keys if any(form in text for form in shown(key))] == []


@pytest.mark.parametrize(
    ("endpoint", "good"),
    [
        ("http://127.0.0.1:2379", True),
        ("http://localhost:2379", True),
        ("http://[::1]:2379", True),
        ("https://10.0.0.5:2379", True),
        ("http://10.0.0.5:2379", False),
        ("http://etcd.example", False),
        ("http://[fd00::5]:2379", False),
    ],
)
def test_remote_etcd_requires_https(endpoint: str, good: bool) -> None:
    text = RACK + f"etcd: {{endpoints: ['{endpoint}']}}\n"
    if good:
        parse(text)
        return
    with pytest.raises(ConfigError, match=r"etcd: endpoints: keys would cross .* in the clear"):
        parse(text)
