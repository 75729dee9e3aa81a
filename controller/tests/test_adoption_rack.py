"""Connections that replicas' kernels take over from stateless TCP, while another replica is killed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from netrack import REPLICAS, SERVICE, NetRack, needs_rack
from test_stateless_rack import SHORT, describe, until_mode

from rivulet_lab import Process, binary

pytestmark = [needs_rack, pytest.mark.long]

EACH = 6
"""Downloads, and as many uploads: all twelve go to one replica once in 177,000 times."""
FIRST_PORT = 42000
UPLOAD = 3 << 20


@dataclass(slots=True)
class Flow:
    """A client's connection, and the path of the bytes that it transfers."""

    process: Process
    port: int
    out: Path
    wanted: bytes

    def ended_well(self) -> bool:
        """Whether its client reports success; then the bytes must be correct."""
        well = self.process.popen.wait(120) == 0
        got = self.out.read_bytes() if self.out.exists() else b""
        assert not well or got == self.wanted, f"port {self.port}: the client reports success"
        # Bytes of an interrupted transfer must be correct up to its end.
        assert well or self.wanted.startswith(got), f"port {self.port}: wrong bytes"
        return well


def start(rack: NetRack, name: str) -> None:
    """Starts a replica that accepts uploads."""
    store = rack.folder / "stored"
    store.mkdir(exist_ok=True)
    serve = [binary("rivulet"), "serve", "-i", f"{name}-eth0", "--controller", rack.agents, "--name", name]
    rack.start(name, [*serve, "--upload", str(store), str(rack.file.parent)], rack.spaces[name])


@pytest.fixture
def storing(rack: NetRack) -> Iterator[NetRack]:
    """A rack with replicas that accept uploads, and a ToR that answers SYNs."""
    for name in rack.replicas:
        rack.end(name)
        start(rack, name)
    rack.until(rack.all_live, "all take uploads")
    describe(rack, "stateless", SHORT)
    until_mode(rack, "stateless")
    rack.until(rack.as_described, "and the ToR")
    rack.until(lambda: rack.all_live() and rack.take_plain_tcp(), "all take plain TCP")
    yield rack
    for name in rack.replicas:
        rack.end(name)


def download(rack: NetRack, port: int, *more: str) -> Flow:
    """A download too long to be served without connection state."""
    out = rack.folder / f"down-{port}"
    command = rack.curl("big", "--max-time", "110", "--local-port", str(port), *more, "-o", str(out))
    return Flow(rack.start(out.name, command, rack.spaces["c1"], stdout=None), port, out, rack.file.read_bytes())


def upload(rack: NetRack, port: int, *more: str) -> Flow:
    """An upload, by POST."""
    source = rack.folder / "upload"
    flags = ("--max-time", "110", "--local-port", str(port), "-X", "POST", "-H", "Expect:", "-T", str(source))
    command = rack.curl(f"up-{port}", *flags, *more)
    process = rack.start(f"up-{port}", command, rack.spaces["c1"], stdout=None)
    return Flow(process, port, rack.folder / "stored" / f"up-{port}", source.read_bytes())


def holders(rack: NetRack, names: Sequence[str] = REPLICAS) -> dict[int, str]:
    """By client port: the replica whose kernel has the connection."""
    found = {}
    for name in names:
        for line in rack.spaces[name].run("ss", "-Htn", "state", "established").splitlines():
            local, remote = line.split()[2:4]
            if local == f"{SERVICE}:80":
                found[int(remote.rsplit(":", 1)[1])] = name
    return found


@pytest.mark.parametrize("rack", ["embedded"], indirect=True)
def test_adopted_connections_survive_death_of_another_replica(storing: NetRack) -> None:
    rack = storing
    before = rack.accepted()
    (rack.folder / "upload").write_bytes(os.urandom(UPLOAD))
    flows = [download(rack, FIRST_PORT + n, "--limit-rate", "600k") for n in range(EACH)]
    flows += [upload(rack, FIRST_PORT + EACH + n, "--limit-rate", "300k") for n in range(EACH)]
    ports = {flow.port for flow in flows}
    rack.until(lambda: holders(rack).keys() >= ports, "kernels have all of them")
    assert rack.accepted() == before, "none was accepted: each was begun without state"
    held = holders(rack)
    shares = {name: [flow for flow in flows if held[flow.port] == name] for name in rack.replicas}
    victim = max(shares, key=lambda name: len(shares[name]))
    lost = shares.pop(victim)
    kept = [flow for flows in shares.values() for flow in flows]
    assert all(flow.process.running() for flow in flows), "they must outlive the kill"
    rack.end(victim)
    assert kept and all([flow.ended_well() for flow in kept]), rack.status()
    # A kernel's connection dies with its replica: the client must notice that its transfer is
    # incomplete.
    assert not any([flow.ended_well() for flow in lost])
    # While one replica is dead, the others serve new connections of any kind.
    anew = [download(rack, FIRST_PORT + 100 + n) for n in range(4)]
    anew += [upload(rack, FIRST_PORT + 110 + n) for n in range(4)]
    assert all([flow.ended_well() for flow in anew])
    assert rack.spaces["c1"].run(*rack.curl("small")) == "small"
    start(rack, victim)
    rack.until(rack.all_live, "it is back")
