"""The agents' Unix socket: who may open it, from the moment it is there."""

from __future__ import annotations

import grp
import os
import stat
from pathlib import Path

import pytest
from sample_rack import RACK, config

from rivulet_controller.config import ConfigError
from rivulet_controller.controller import Controller
from rivulet_controller.daemon import listen_for_agents
from rivulet_controller.store import SqliteStore

GROUP = grp.getgrgid(1)
"""Some group that is there and not ours."""


def described(folder: Path, group: str | None) -> str:
    extra = "" if group is None else f", agents_group: {group}"
    return RACK + f'listen: {{agents: "unix:{folder}/run/agents.sock"{extra}}}\n'


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a file to another group needs root")
@pytest.mark.parametrize(
    ("group", "mode", "owner"), [(None, 0o600, os.getegid()), (GROUP.gr_name, 0o660, GROUP.gr_gid)]
)
async def test_only_its_owner_and_the_group_that_is_named(
    tmp_path: Path, group: str | None, mode: int, owner: int
) -> None:
    store = SqliteStore(tmp_path / "state.db")
    described_config = config(described(tmp_path, group))
    # However wide the umask of whoever starts it.
    before = os.umask(0)
    try:
        server = await listen_for_agents(Controller(described_config, store), described_config)
    finally:
        os.umask(before)
    found = (tmp_path / "run" / "agents.sock").stat()
    assert (stat.S_IMODE(found.st_mode), found.st_gid) == (mode, owner)
    await server.stop(None)
    store.close()


async def test_a_group_that_is_not_there_is_told_before_anything_is_open(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "state.db")
    described_config = config(described(tmp_path, "nobody-has-this"))
    with pytest.raises(ValueError, match=r"listen.agents_group: there is no group 'nobody-has-this'"):
        await listen_for_agents(Controller(described_config, store), described_config)
    assert not (tmp_path / "run").exists()
    store.close()


def test_a_group_wants_a_unix_socket() -> None:
    with pytest.raises(ConfigError, match="agents_group: only a Unix socket has a group"):
        config(RACK + 'listen: {agents: "127.0.0.1:9670", agents_group: daemon}\n')
