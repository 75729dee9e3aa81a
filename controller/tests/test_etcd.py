"""Several controllers with etcd: one leads, another takes over, and no unchanged entry is written
again.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from etcd_server import ETCD, Server
from fake_agent import FakeAgent
from fake_switch import FakeSwitch
from harness import rack, until
from sample_rack import NAMES, RACK

from rivulet_controller.client import ApiError, Client
from rivulet_controller.etcd import EtcdClient, EtcdStore, Leadership
from rivulet_controller.listen_config import Etcd
from rivulet_controller.store import StoreError
from rivulet_controller.switch import SwitchError
from rivulet_lab import Lab

pytestmark = pytest.mark.skipif(ETCD is None, reason="etcd is not installed")


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Server]:
    """A running etcd server."""
    server = Server(tmp_path)
    server.start()
    yield server
    server.kill()


def settings(etcd: Server, prefix: str = "/rivulet/", lease: float = 2.0) -> Etcd:
    return Etcd(endpoints=(etcd.url,), prefix=prefix, lease=lease)


def test_only_the_leader_can_write(etcd: Server) -> None:
    config = settings(etcd, lease=30.0)
    client = EtcdClient(config)
    one, two = Leadership(client, config, "one"), Leadership(client, config, "two")
    store_one, store_two = EtcdStore(client, config, one), EtcdStore(client, config, two)
    assert one.claim() and not two.claim() and two.leader() == "one"
    store_one.save({"a": b"1", "b": bytes(range(256))})
    with pytest.raises(StoreError, match="does not lead"):
        store_two.save({"a": b"2"})
    one.release()
    with pytest.raises(SwitchError, match="lease is lost"):
        one.guard()
    assert two.claim()
    assert store_two.load() == {"a": b"1", "b": bytes(range(256))}
    store_two.save({"a": None})
    assert store_two.load() == {"b": bytes(range(256))}


def test_leader_with_expired_lease_writes_nothing(etcd: Server) -> None:
    config = settings(etcd)
    client = EtcdClient(config)
    one, two = Leadership(client, config, "one"), Leadership(client, config, "two")
    assert one.claim()
    stale = one.revision
    end = time.monotonic() + 60
    while not two.claim():
        assert time.monotonic() < end, "the lease ends without renewal"
        time.sleep(0.2)
    assert not one.held()
    assert one.revision == stale, "it has not noticed"
    with pytest.raises(StoreError, match="another controller leads"):
        EtcdStore(client, config, one).save({"a": b"1"})


def test_many_values_are_saved_and_dead_etcd_is_reported(etcd: Server) -> None:
    config = settings(etcd, lease=30.0)
    client = EtcdClient(config)
    leadership = Leadership(client, config, "one")
    store = EtcdStore(client, config, leadership)
    assert leadership.claim()
    many: dict[str, bytes | None] = {f"keys/service-{n}": bytes(50) for n in range(1234)}
    store.save(many)
    assert store.load() == many
    etcd.kill()
    with pytest.raises(StoreError, match="etcd: http"):
        store.load()


class Two:
    """Two controller processes for one fake switch."""

    def __init__(self, folder: Path, switch: FakeSwitch, etcd: Server) -> None:
        self.folder = folder
        self.lab = Lab(folder)
        shared = f"etcd: {{endpoints: ['{etcd.url}'], lease: 4s}}\n"
        for name in ("one", "two"):
            own = f"listen: {{agents: 'unix:{folder}/{name}.agents', api: 'unix:{folder}/{name}.api'}}\n"
            own += f"state: {folder}/{name}.db\n"
            (folder / f"{name}.yaml").write_text(rack(switch, RACK) + shared + own)

    def start(self, name: str) -> None:
        """Starts one of them."""
        command = [sys.executable, "-m", "rivulet_controller.daemon", str(self.folder / f"{name}.yaml")]
        self.lab.start(name, command)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    async def leads(self, name: str) -> bool:
        """Whether it reports that it leads and that the switch has its entries."""
        client = Client(f"unix:{self.folder}/{name}.api", timeout_s=10.0)
        try:
            found = await asyncio.to_thread(client.get, "/api/status")
        except ApiError:
            return False
        return bool(found["leader"] and all(s["connected"] and not s["problem"] for s in found["switches"]))

    async def until_leads(self, name: str) -> float:
        """Waits until it leads; returns the seconds that it took."""
        began = time.monotonic()
        while not await self.leads(name):
            assert time.monotonic() - began < 120, {n: self.log(n) for n in self.lab.processes}
            await asyncio.sleep(0.05)
        return time.monotonic() - began


@asynccontextmanager
async def two_controllers(folder: Path, etcd: Server) -> AsyncIterator[tuple[Two, FakeSwitch]]:
    async with FakeSwitch(NAMES) as switch:
        both = Two(folder, switch, etcd)
        try:
            both.start("one")
            await both.until_leads("one")
            both.start("two")
            await until(lambda: "leads" in both.log("two"), "the second waits", 60.0)
            yield both, switch
        finally:
            for name in list(both.lab.processes):
                both.lab.end(name)


async def test_next_leader_rewrites_no_entry(tmp_path: Path, etcd: Server) -> None:
    async with two_controllers(tmp_path, etcd) as (both, switch):
        async with FakeAgent(f"unix:{tmp_path}/one.agents", "r1") as agent:
            await until(lambda: bool(agent.newest.services and agent.newest.services[0].usable_seal_epoch), "keys")
            keys = list(agent.newest.services[0].seal_keys)
        await until(lambda: any("seal_epoch=0x1" in line for line in switch.lines()), "stamped")
        await asyncio.sleep(0.3)
        before = switch.lines()
        switch.writes.clear()
        both.lab.end("one")
        took = await both.until_leads("two")
        print(f"taken over after {took:.1f} s")
        await asyncio.sleep(0.5)
        assert switch.writes == [] and switch.lines() == before and switch.pipelines_set == 1
        async with FakeAgent(f"unix:{tmp_path}/two.agents", "r1") as agent:
            await until(lambda: bool(agent.updates), "the new leader updates agents")
            assert list(agent.newest.services[0].seal_keys) == keys, "the keys are those of the old leader"


async def test_frozen_leader_writes_nothing_after_waking(tmp_path: Path, etcd: Server) -> None:
    async with two_controllers(tmp_path, etcd) as (both, switch):
        both.lab.processes["one"].popen.send_signal(signal.SIGSTOP)
        await both.until_leads("two")
        client = Client(f"unix:{tmp_path}/two.api")
        await asyncio.to_thread(client.post, "/api/replicas/r1/drain")
        await until(lambda: not any("first=0x0" in line for line in switch.lines()), "the new leader drains r1")
        before = switch.lines()
        both.lab.processes["one"].popen.send_signal(signal.SIGCONT)
        await until(lambda: "no longer leading" in both.log("one"), "the old one notices", 60.0)
        await asyncio.sleep(0.5)
        assert switch.lines() == before, "the old leader did not put its own state back"
        with pytest.raises(ApiError, match="does not lead: send it to the leader"):
            await asyncio.to_thread(Client(f"unix:{tmp_path}/one.api").post, "/api/replicas/r2/drain")


async def test_dead_etcd_stops_only_changes(tmp_path: Path, etcd: Server) -> None:
    async with two_controllers(tmp_path, etcd) as (both, switch):
        before = switch.lines()
        switch.writes.clear()
        etcd.kill()
        await until(lambda: "no longer leading" in both.log("one"), "the leader steps back", 60.0)
        assert switch.lines() == before and switch.writes == []
        etcd.start()
        end = time.monotonic() + 60
        while not (await both.leads("one") or await both.leads("two")):
            assert time.monotonic() < end, (both.log("one"), both.log("two"))
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)
        assert switch.writes == [] and switch.pipelines_set == 1


async def test_applied_configuration_is_shared(tmp_path: Path, etcd: Server) -> None:
    async with two_controllers(tmp_path, etcd) as (both, switch):
        text = (tmp_path / "one.yaml").read_text().replace("liveness: 20ms", "liveness: 30ms")
        await asyncio.to_thread(lambda: Client(f"unix:{tmp_path}/one.api").post("/api/apply", text=text))
        await until(lambda: any("bound=0x7530" in line for line in switch.lines()), "applied")
        both.lab.end("one")
        await both.until_leads("two")
        await asyncio.sleep(0.3)
        assert any("bound=0x7530" in line for line in switch.lines()), "the second follows the shared configuration"
