"""Plain connections to nginx survive their replica behind a real ToR, the next one's death, and the
return of both.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest
from netrack import SERVICE, NetRack, needs_rack
from test_adoption_rack import Flow, holders

from rivulet_controller.drain_progress import progress
from rivulet_lab import binary, nginx

pytestmark = [
    needs_rack,
    pytest.mark.skipif(shutil.which("memcached") is None, reason="memcached is not installed"),
]

STORE = "10.0.1.1:11211"
MEGABYTES = 40
"""Bytes for sixteen seconds at the rack's rate."""
PORT = 42001


class PlainRack(NetRack):
    """A rack with nginx and an agent on each replica, and a store on the client's host."""

    def description(self) -> str:
        text = super().description()
        return text.replace("    port: 80\n", f"    port: 80\n    plain: trods\n    trods: {{store: ['{STORE}']}}\n")

    def start_controller(self) -> None:
        """Starts the store first."""
        if "store" not in self.processes:
            address, port = STORE.split(":")
            memcached = ["memcached", "-u", "root", "-l", address, "-p", port, "-U", "0", "-M"]
            self.start("store", memcached, self.spaces["c1"])
        super().start_controller()

    def start_replica(self, name: str) -> None:
        """Starts nginx, and the agent under the replica's name."""
        if f"nginx {name}" not in self.processes:
            self.start_nginx(name)
        self.start(name, self.agent(name, binary("rivulet")), self.spaces[name])

    def agent(self, name: str, program: str) -> list[str]:
        """The agent's command."""
        command = [program, "agent", "--plain-tcp", "--health-path", "/small", "-i", f"{name}-eth0"]
        return [*command, "--controller", self.agents, "--name", name, "--socket", str(self.folder / f"{name}.agent")]

    def start_nginx(self, name: str) -> None:
        """Starts nginx alone."""
        command = nginx.command(self.folder / f"nginx-{name}", self.file.parent, f"{SERVICE}:80")
        self.start(f"nginx {name}", command, self.spaces[name])

    def all_well(self) -> bool:
        """Whether every replica is live and gets connections."""
        return self.all_live() and self.take_plain_tcp()

    def trods(self, what: str) -> int:
        """Sums a TRODS counter of connections (`what`) over all replicas that report it."""
        return sum((replica["trods"] or {}).get(what, 0) for replica in self.status()["replicas"])


R = TypeVar("R", bound=PlainRack)


@contextmanager
def standing(rack: R) -> Iterator[R]:
    """Builds the rack and waits until every replica gets connections; takes it down afterwards."""
    try:
        rack.build(MEGABYTES)
        rack.until(rack.all_well, "all take plain TCP")
        yield rack
    finally:
        rack.down()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainRack]:
    """One rack for all tests of this file."""
    with standing(PlainRack(tmp_path_factory.mktemp("trods"), "embedded")) as rack:
        yield rack


def download(rack: PlainRack, port: int) -> Flow:
    """Starts a download by curl."""
    out = rack.folder / f"down-{port}"
    command = rack.curl("big", "--max-time", "240", "--local-port", str(port), "-o", str(out))
    flow = Flow(rack.start(out.name, command, rack.spaces["c1"], stdout=None), port, out, rack.file.read_bytes())
    rack.until(lambda: out.exists() and out.stat().st_size > 1 << 20, "it brings something")
    return flow


def holder(rack: PlainRack, flow: Flow, *dead: str) -> str:
    """The replica with the connection in its kernel; dead replicas may still have it too."""
    found: list[str] = []

    def is_found() -> bool:
        found[:] = [name for name in rack.replicas if name not in dead and flow.port in holders(rack, (name,))]
        return bool(found)

    rack.until(is_found, f"a replica other than {', '.join(dead) or 'none'} has port {flow.port}")
    return found[0]


def kill_nginx(rack: PlainRack, name: str) -> Callable[[], None]:
    rack.end(f"nginx {name}")
    return lambda: rack.start_nginx(name)


def kill_agent(rack: PlainRack, name: str) -> Callable[[], None]:
    rack.end(name)
    return lambda: rack.start_replica(name)


def cut_link(rack: PlainRack, name: str) -> Callable[[], None]:
    port = f"v{100 + int(name[1:])}"
    rack.spaces["tor"].ip(f"link set {port} down")
    return lambda: rack.spaces["tor"].ip(f"link set {port} up")


def freeze(rack: PlainRack, name: str) -> Callable[[], None]:
    processes = [rack.processes[part].popen for part in (name, f"nginx {name}")]
    for process in processes:
        process.send_signal(signal.SIGSTOP)

    def thaw() -> None:
        for process in processes:
            process.send_signal(signal.SIGCONT)

    return thaw


def upgrade(rack: PlainRack, name: str, flow: Flow | None) -> None:
    """Drains a replica, which may have a download, restarts its agent, and undrains it."""
    before = rack.replica(name)["incarnation"]
    rack.client.post(f"/api/replicas/{name}/drain")
    rack.until(lambda: rack.replica(name)["draining"] and rack.as_described(), f"{name} drains")
    if flow is not None:
        holder(rack, flow, name)
        rack.until(lambda: progress(rack.replica(name)).moved > 0, f"{name} has left the download")
    rack.until(lambda: progress(rack.replica(name)).done, f"{name} is left")
    rack.end(name, signal.SIGTERM)
    rack.start_replica(name)
    rack.until(lambda: rack.replica(name)["incarnation"] not in (0, before), f"{name} has another agent")
    rack.client.post(f"/api/replicas/{name}/undrain")
    rack.until(rack.all_well, f"{name} is back")


def outlives_an_upgrade(rack: PlainRack, port: int) -> None:
    """A download moves away from its replica during that replica's upgrade."""
    before = rack.exclusions()
    flow = download(rack, port)
    one = holder(rack, flow)
    upgrade(rack, one, flow)
    assert holder(rack, flow, one) != one, "a moved connection stays"
    # The rest of the download is the subject of the other test.
    flow.process.popen.kill()
    flow.process.popen.wait()
    assert (rack.trods("refused"), rack.exclusions()) == (0, before), "an agent that was restarted was missed"


def test_upgrade_moves_download(plain: PlainRack) -> None:
    outlives_an_upgrade(plain, PORT + 50)


HARMS = {"nginx": kill_nginx, "agent": kill_agent, "link": cut_link, "freeze": freeze}


def survives_two_harms(rack: PlainRack, port: int, first: str, second: str) -> None:
    """A download continues after harm to its replica, harm to the next one, and the return of both."""
    flow = download(rack, port)
    one = holder(rack, flow)
    heal_one = HARMS[first](rack, one)
    two = holder(rack, flow, one)
    # The download lasts longer than the rest of the test on a slow machine; the replica's kernel
    # keeps sending.
    flow.process.popen.send_signal(signal.SIGSTOP)
    try:
        heal_two = HARMS[second](rack, two)
        three = holder(rack, flow, one, two)
        heal_one()
        heal_two()
        rack.until(rack.all_well, "both are back")
        assert flow.port in holders(rack, (three,)), "an adopted connection stays"
    finally:
        flow.process.popen.send_signal(signal.SIGCONT)
    assert flow.ended_well(), rack.status()


@pytest.mark.parametrize("first, second", [("nginx", "agent"), pytest.param("link", "freeze", marks=pytest.mark.long)])
def test_download_survives_two_replicas_and_their_return(plain: PlainRack, first: str, second: str) -> None:
    rack = plain
    survives_two_harms(rack, PORT + 10 * list(HARMS).index(first), first, second)
    assert rack.trods("refused") == 0
