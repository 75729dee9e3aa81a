"""The agents' sockets: which users may open them, and which replica each agent may register as."""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import shutil
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from glob import glob
from pathlib import Path

import pytest
from fake_agent import FakeAgent
from fake_switch import FakeSwitch
from harness import rack, until
from ports import free_port
from sample_rack import NAMES, RACK, config

from rivulet_controller import agent_socket
from rivulet_controller import agents as agents_door
from rivulet_controller.admission import ByCertificate, ByUser, overflow_uid, replicas_of
from rivulet_controller.config import ConfigError
from rivulet_controller.controller import Controller
from rivulet_controller.daemon import listen_for_agents
from rivulet_controller.store import SqliteStore

GROUP = grp.getgrgid(1)
"""A group that exists and is not ours."""

DAEMON = pwd.getpwnam("daemon")
"""A user that may register as a replica."""

MAIL = pwd.getpwnam("mail")
"""A user that may not register as any replica."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="connecting as another user needs root")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="rivulet-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def described(folder: Path, group: str | None, users: str = "daemon: [r1]") -> str:
    extra = "" if group is None else f", agents_group: {group}, agents_users: {{{users}}}"
    return RACK + f'listen: {{agents: "unix:{folder}/run/agents.sock"{extra}}}\n'


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a file to another group needs root")
@pytest.mark.parametrize(
    ("group", "mode", "owner"), [(None, 0o600, os.getegid()), (GROUP.gr_name, 0o660, GROUP.gr_gid)]
)
async def test_socket_is_open_to_owner_and_named_group_only(
    tmp_path: Path, group: str | None, mode: int, owner: int
) -> None:
    store = SqliteStore(tmp_path / "state.db")
    described_config = config(described(tmp_path, group))
    # Even with the widest umask.
    before = os.umask(0)
    try:
        server = await listen_for_agents(Controller(described_config, store), described_config)
    finally:
        os.umask(before)
    found = (tmp_path / "run" / "agents.sock").stat()
    assert (stat.S_IMODE(found.st_mode), found.st_gid) == (mode, owner)
    await server.stop(None)
    assert not (tmp_path / "run" / "agents.sock").exists()
    store.close()


async def test_missing_group_is_reported_before_listening(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "state.db")
    described_config = config(described(tmp_path, "nobody-has-this"))
    with pytest.raises(ValueError, match=r"listen.agents_group: there is no group 'nobody-has-this'"):
        await listen_for_agents(Controller(described_config, store), described_config)
    assert not (tmp_path / "run").exists()
    store.close()


@pytest.mark.parametrize(
    ("listen", "problem"),
    [
        ('agents: "127.0.0.1:9670", agents_group: daemon', "agents_group: only a Unix socket has a group"),
        ("agents_group: daemon", "agents_group: list in agents_users"),
        ("agents_users: {daemon: [r1]}", "agents_users: also set agents_group"),
        ("agents_group: daemon, agents_users: {daemon: [r9]}", "agents_users.daemon.0: there is no replica 'r9'"),
    ],
)
def test_agents_group_requires_agents_users(listen: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        config(RACK + f"listen: {{{listen}}}\n")


@asynccontextmanager
async def listening(folder: Path) -> AsyncIterator[tuple[Path, Controller]]:
    """A controller with an agents' socket that every user can open, so that only users decide about
    registration.
    """
    async with FakeSwitch(NAMES) as switch:
        text = rack(switch, described(folder, grp.getgrgid(DAEMON.pw_gid).gr_name))
        store = SqliteStore(folder / "state.db")
        controller = Controller(config(text), store, text)
        await controller.start()
        server = await listen_for_agents(controller, controller.config)
        path = folder / "run" / "agents.sock"
        path.chmod(0o666)
        path.parent.chmod(0o755)
        try:
            yield path, controller
        finally:
            await controller.stop()
            await server.stop(None)
            store.close()


@asynccontextmanager
async def as_user(folder: Path, uid: int, path: Path) -> AsyncIterator[str]:
    """An address whose connections reach `path` with another user's credentials, which the kernel
    takes at connect.
    """

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        outside = socket.socket(socket.AF_UNIX)
        before = os.geteuid()
        os.seteuid(uid)
        try:
            outside.connect(str(path))
        finally:
            os.seteuid(before)
        outside.setblocking(False)
        back, forth = await asyncio.open_unix_connection(sock=outside)

        async def way(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                while data := await source.read(1 << 16):
                    sink.write(data)
                    await sink.drain()
            sink.close()

        await asyncio.gather(way(reader, forth), way(back, writer))

    server = await asyncio.start_unix_server(relay, folder / f"as-{uid}")
    yield f"unix:{folder}/as-{uid}"
    server.close()


async def keys_of(address: str, name: str) -> tuple[int, str]:
    """Registers an agent under this name; returns how many seal keys it gets and why it is refused."""
    async with FakeAgent(address, name) as agent:
        await until(lambda: bool(agent.newest.services or agent.error), f"{name} is answered")
        return sum(len(service.seal_keys) for update in agent.updates for service in update.services), agent.error


@needs_root
async def test_unknown_user_gets_no_keys(open_folder: Path) -> None:
    async with listening(open_folder) as (path, controller):
        async with as_user(open_folder, MAIL.pw_uid, path) as address:
            for name in ("r1", "r2", "r3"):
                keys, why = await keys_of(address, name)
                assert keys == 0 and f"user mail may not register as '{name}'" in why
            assert controller.agents.agents == {}
        async with as_user(open_folder, DAEMON.pw_uid, path) as address:
            keys, why = await keys_of(address, "r2")
            assert keys == 0 and "user daemon may not register as 'r2'" in why, "another's name"
            assert (await keys_of(address, "r1"))[0] > 0, "its own"
        async with as_user(open_folder, 4_000_000_000, path) as address:
            keys, why = await keys_of(address, "r1")
            assert keys == 0 and "user 4000000000 may not register as 'r1'" in why, "a user without a name"
        assert (await keys_of(f"unix:{path}", "r3"))[0] > 0, "root may be any"


@needs_root
async def test_changed_file_revokes_a_users_replica(open_folder: Path) -> None:
    async with listening(open_folder) as (path, controller), as_user(open_folder, DAEMON.pw_uid, path) as address:
        assert (await keys_of(address, "r1"))[0] > 0
        listen = controller.local.listen.model_copy(update={"agents_users": {str(DAEMON.pw_uid): ("r2",)}})
        controller.local = controller.local.model_copy(update={"listen": listen})
        assert (await keys_of(address, "r1"))[0] == 0
        assert (await keys_of(address, "r2"))[0] > 0, "a number names a user too"


@needs_root
async def test_connection_past_the_listener_is_refused(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(open_folder))
    # Left over from a controller that was killed.
    dead = open_folder / "rivulet-agents-dead"
    dead.mkdir()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(dead / "grpc.sock"))
    os.utime(dead, (0, 0))
    async with listening(open_folder) as (_, controller):
        listener = controller.agents.admission
        assert isinstance(listener, ByUser)
        (inner,) = glob(f"{tempfile.gettempdir()}/rivulet-agents-*/grpc.sock")
        assert stat.S_IMODE(os.stat(os.path.dirname(inner)).st_mode) == 0o700
        keys, why = await keys_of(f"unix:{inner}", "r1")
        assert keys == 0 and "is unknown" in why
        assert listener.connected == {}


async def three_stay_open(addresses: list[str], folder: Path, path: Path) -> None:
    """Of five connections to these addresses two are closed, and another user's agent still gets
    its keys.
    """
    opened = [await asyncio.open_unix_connection(address.removeprefix("unix:")) for address in addresses]
    closed = [asyncio.ensure_future(reader.read()) for reader, _ in opened]
    # gRPC sends SETTINGS on each accepted connection; a closed one ends at once.
    await until(lambda: sum(ending.done() for ending in closed) == 2, "two of five are closed")
    async with as_user(folder, DAEMON.pw_uid, path) as other:
        assert (await keys_of(other, "r1"))[0] > 0
    for (_, writer), ending in zip(opened, closed, strict=True):
        ending.cancel()
        writer.close()


@needs_root
async def test_connections_of_one_user_are_limited(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_socket, "USER_CONNECTIONS_MAX", 3)
    async with listening(open_folder) as (path, _), as_user(open_folder, MAIL.pw_uid, path) as address:
        await three_stay_open([address] * 5, open_folder, path)


@needs_root
async def test_users_without_replica_share_one_connection_limit(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_socket, "USER_CONNECTIONS_MAX", 3)
    async with listening(open_folder) as (path, _), AsyncExitStack() as stack:
        # As with connections from a user's subordinate user ids.
        addresses = [await stack.enter_async_context(as_user(open_folder, 100_000 + n, path)) for n in range(5)]
        await three_stay_open(addresses, open_folder, path)


def test_users_of_other_namespaces_are_refused() -> None:
    everyone = {str(overflow_uid()): ("r1",), "daemon": ("r2",), "no-such-user": ("r3",)}
    assert replicas_of(overflow_uid(), everyone) == frozenset()
    by_user = ByUser(lambda: everyone)
    by_user.connected["7"] = overflow_uid()
    assert "even if agents_users lists it" in by_user.refusal("r1", "unix:/7", {})
    assert replicas_of(DAEMON.pw_uid, everyone) == {"r2"}
    assert replicas_of(MAIL.pw_uid, everyone) == frozenset()
    assert replicas_of(0, everyone) is None and replicas_of(os.geteuid(), everyone) is None


def test_certificate_without_names_is_refused() -> None:
    tls = {"transport_security_type": [b"ssl"]}
    for authentication in ({}, {"x509_common_name": [b"r1"]}, tls, {**tls, "x509_common_name": [b""]}):
        for name in ("r1", ""):
            assert ByCertificate().refusal(name, "ipv4:127.0.0.1:5", authentication)
    assert ByCertificate().refusal("r1", "", {**tls, "x509_common_name": [b"r1"]}) == ""


async def test_tcp_listener_requires_tls(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "state.db")
    controller = Controller(config(RACK), store)
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(ValueError, match="needs agents_tls"):
        await agents_door.serve(controller.agents, address)
    keys, _ = await keys_of(address, "r1")
    assert keys == 0
    store.close()
