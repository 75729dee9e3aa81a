"""Agents over TCP: mutual TLS, and a replica's name only with that replica's certificate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from certificates import OPENSSL, Authority
from fake_agent import FakeAgent
from fake_switch import FakeSwitch
from harness import as_described, problem, rack, running, until
from netrack import needs_rack
from sample_rack import NAMES, RACK, config

from rivulet_controller import agents as agents_door
from rivulet_controller.admission import ByCertificate
from rivulet_controller.config import ConfigError
from rivulet_controller.controller import Controller
from rivulet_controller.listen_config import Tls
from rivulet_controller.rack_file import parse
from rivulet_controller.store import SqliteStore
from rivulet_controller.tls import server_credentials
from rivulet_lab import Lab, Process, binary

pytestmark = pytest.mark.skipif(OPENSSL is None, reason="openssl is not installed")


@asynccontextmanager
async def listener(folder: Path, authority: Authority) -> AsyncIterator[tuple[str, Controller]]:
    """A controller that listens for agents with TLS on a free loopback port; yields its address
    too.
    """
    certificate, key = authority.sign("controller", "IP:127.0.0.1")
    async with FakeSwitch(NAMES) as switch:
        store = SqliteStore(folder / "state.db")
        controller = Controller(config(rack(switch)), store)
        await controller.start()
        server = grpc.aio.server()
        controller.agents.admission = ByCertificate()
        agents_door.agent_pb2_grpc.add_AgentsServicer_to_server(controller.agents, server)  # type: ignore[no-untyped-call]
        tls = server_credentials(Tls(certificate=certificate, key=key, authority=authority.certificate))
        assert tls is not None
        port = server.add_secure_port("127.0.0.1:0", tls)
        await server.start()
        try:
            yield f"127.0.0.1:{port}", controller
        finally:
            await controller.stop()
            await server.stop(None)
            store.close()


def client(trust: Authority, pair: tuple[Path, Path] | None) -> grpc.ChannelCredentials:
    """The agent's side of TLS."""
    certificate, key = pair or (None, None)
    return grpc.ssl_channel_credentials(
        trust.certificate.read_bytes(),
        key.read_bytes() if key else None,
        certificate.read_bytes() if certificate else None,
    )


async def test_only_certificate_of_replica_is_accepted(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path, "ours").make(), Authority(tmp_path, "theirs").make()
    r1, foreign = ours.sign("r1"), theirs.sign("r1")
    alias = ours.sign("machine-17", "DNS:machine-17,DNS:r2")
    async with listener(tmp_path, ours) as (address, _):
        async with FakeAgent(address, "r1", tls=client(ours, r1)) as agent:
            await until(lambda: bool(agent.newest.services), "r1 is admitted and gets an update")
        async with FakeAgent(address, "r2", tls=client(ours, alias)) as agent:
            await until(lambda: bool(agent.newest.services), "an alternative name counts too")
        async with FakeAgent(address, "r2", tls=client(ours, r1)) as agent:
            await until(lambda: "the certificate is not for 'r2'" in agent.error, "r1's certificate is not r2's")
            assert agent.updates == []
        refused = {
            "no certificate": client(ours, None),
            "another authority's certificate": client(ours, foreign),
            "a controller of another authority": client(theirs, r1),
        }
        for what, tls in refused.items():
            async with FakeAgent(address, "r1", tls=tls) as agent:
                await until(lambda agent=agent: bool(agent.error), f"{what} is refused")  # type: ignore[misc]
                assert agent.updates == [], what
        async with FakeAgent(address, "r1") as agent:
            await until(lambda: bool(agent.error), "without TLS nothing is sent")
            assert agent.updates == []


async def test_renewed_certificate_needs_no_restart(tmp_path: Path) -> None:
    old, new = Authority(tmp_path, "old").make(), Authority(tmp_path, "new").make()
    async with listener(tmp_path, old) as (address, _):
        async with FakeAgent(address, "r1", tls=client(old, old.sign("r1"))) as agent:
            await until(lambda: bool(agent.newest.services), "r1 is let in by the old authority")
        fresh = new.sign("r1")
        # An interrupted renewal: the certificate in use stays.
        key = (tmp_path / "old-controller.key").read_bytes()
        (tmp_path / "old-controller.key").unlink()
        async with FakeAgent(address, "r1", tls=client(old, old.sign("r1"))) as agent:
            await until(lambda: bool(agent.newest.services), "it keeps working without its key file")
        (tmp_path / "old-controller.key").touch(mode=0o600)
        (tmp_path / "old-controller.key").write_bytes(key)
        certificate, key_file = new.sign("controller", "IP:127.0.0.1")
        for source, place in (
            (certificate, "old-controller.pem"), (key_file, "old-controller.key"), (new.certificate, "old.pem")
        ):  # fmt: skip
            (tmp_path / place).write_bytes(source.read_bytes())
        async with FakeAgent(address, "r1", tls=client(new, fresh)) as agent:
            await until(lambda: bool(agent.newest.services), "r1 is let in by the new authority")


@needs_rack
async def test_agent_registers_by_certificate_with_the_leader(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path, "ours").make(), Authority(tmp_path, "theirs").make()
    lab = Lab(tmp_path)

    def agent(address: str, signer: Authority) -> Process:
        certificate, key = signer.sign("r1")
        tls = ("--tls-authority", ours.certificate, "--tls-certificate", certificate, "--tls-key", key)
        where = ("--name", "r1", "-i", "lo", "--controller", address, "--socket", tmp_path / f"{signer.name}.agent")
        return lab.start(f"agent of {signer.name}", [binary("rivulet"), "agent", *map(str, (*where, *tls))])

    async with listener(tmp_path, ours) as (address, controller):
        # No server listens at the first address, as with a waiting controller.
        right, wrong = agent(f"127.0.0.1:1,{address}", ours), agent(address, theirs)
        try:
            await until(lambda: "r1" in controller.agents.agents, "it is registered", 60.0)
            await until(lambda: bool(controller.agents.agents["r1"].held), "and holds its keys", 60.0)
            right.end()
            await until(lambda: "r1" not in controller.agents.agents, "it disconnected", 60.0)
            await asyncio.sleep(2.0)
            assert "r1" not in controller.agents.agents, "another authority's certificate opens nothing"
            assert wrong.running(), "which keeps trying"
        finally:
            lab.down()


def test_agents_over_loopback_tcp_need_tls() -> None:
    for bare in ("'10.0.0.5:9670'", "127.0.0.1:9670", "localhost:9670", "'[::1]:9670'"):
        with pytest.raises(ConfigError, match=r"rack\.yaml:\d+: listen: agents: .* over TCP it needs agents_tls"):
            parse(RACK + f"listen: {{agents: {bare}}}\n", "rack.yaml")
    files = "{certificate: a.pem, key: a.key, authority: b.pem}"
    parse(RACK + f"listen: {{agents: '10.0.0.5:9670', agents_tls: {files}}}\n")
    parse(RACK + "listen: {agents: unix:/run/x}\n")


async def test_switch_session_uses_mutual_tls(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path, "ours").make(), Authority(tmp_path, "theirs").make()
    certificate, key = ours.sign("switch", "IP:127.0.0.1")
    mine, my_key = ours.sign("controller")
    switch = FakeSwitch(NAMES)
    switch.credentials = server_credentials(Tls(certificate=certificate, key=key, authority=ours.certificate))
    await switch.listen("127.0.0.1:0")

    def text(trust: Authority, own: Path = mine) -> str:
        tls = f"{{certificate: {own}, key: {my_key}, authority: {trust.certificate}}}"
        return RACK.replace("    number: 1\n", f"    number: 1\n    tls: {tls}\n")

    async with running(switch, tmp_path, text(ours)) as controller:
        await until(lambda: as_described(controller, switch), "as described over TLS")
        # The controller does not connect to a switch of another authority, and writes nothing.
        switch.writes.clear()
        assert await controller.change(config(rack(switch, text(theirs))), "a test")
        await until(lambda: "no P4Runtime at" in problem(controller), "a switch of another authority is refused")
        await controller.change(config(rack(switch, text(ours, tmp_path / "absent.pem"))), "a test")
        await until(lambda: "absent.pem" in problem(controller), "what is missing is named")
        await controller.change(config(rack(switch, RACK)), "a test")
        await until(lambda: "no P4Runtime at" in problem(controller), "without TLS there is no session")
        assert switch.writes == []
        await controller.change(config(rack(switch, text(ours))), "a test")
        await until(lambda: as_described(controller, switch) and not problem(controller), "and back")
    await switch.stop()
