"""Client affinity with real connections: one replica for each client's curl, and one window for
each client.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from netrack import REPLICAS, NetRack, needs_rack
from test_system import report

from rivulet_lab import bpf_fs, cm_command

pytestmark = needs_rack
CLIENTS = [f"10.0.1.{n}" for n in range(11, 23)]
"""All of twelve clients go to one of three replicas once in 177,147 times."""
CONNECTIONS = 6
NAME = f"rvcm_a{os.getpid() % 10**7}"
"""Name of the congestion control."""


def describe(rack: NetRack, affinity: str) -> None:
    """The rack with this affinity and a route to all clients, which share a host."""
    text = rack.description().replace("port: 1}]\n", "port: 1}]\n    routes: [{prefix: 10.0.1.0/24, via: 10.0.1.1}]\n")
    rack.yaml.write_text(text.replace("    port: 80\n", f"    port: 80\n    affinity: {affinity}\n"))

    def in_force() -> bool:
        return bool(rack.client.get("/api/services")[0]["affinity"] == affinity) and rack.as_described()

    rack.until(in_force, f"by {affinity}")


@pytest.fixture
def by_client(rack: NetRack) -> Iterator[NetRack]:
    """The session's rack with client affinity, and a host with all clients' addresses."""
    rack.until(rack.take_plain_tcp, "all take plain TCP")
    host = rack.spaces["c1"]
    host.ip(*(f"addr add {client}/24 dev c1-eth0" for client in CLIENTS))
    describe(rack, "client")
    yield rack
    host.ip(*(f"addr del {client}/24 dev c1-eth0" for client in CLIENTS))


def served(rack: NetRack, client: str, count: int = CONNECTIONS) -> dict[str, int]:
    """Opens connections from an address one after the other; returns how many each replica
    accepted.
    """
    before = rack.accepted()
    for _ in range(count):
        assert rack.spaces["c1"].run(*rack.curl("small", "--interface", client)) == "small"
    return {name: got for name, now in rack.accepted().items() if (got := now - before[name])}


def owners(rack: NetRack) -> dict[str, str]:
    """The one replica that serves each client."""
    found = {}
    for client in CLIENTS:
        counts = served(rack, client)
        assert list(counts.values()) == [CONNECTIONS], f"connections of {client} met {counts}"
        (found[client],) = counts
    return found


def test_client_affinity_keeps_one_replica_during_drain(by_client: NetRack) -> None:
    rack = by_client
    first = owners(rack)
    assert len(set(first.values())) > 1, f"clients are not spread: {first}"
    away = first[CLIENTS[0]]
    rack.client.post(f"/api/replicas/{away}/drain")
    rack.until(rack.as_described, "drained")
    moved = owners(rack)
    assert away not in moved.values()
    stayed = {client: who for client, who in first.items() if who != away}
    assert stayed == {client: moved[client] for client in stayed}, "clients of others do not notice"
    rack.client.post(f"/api/replicas/{away}/undrain")
    rack.until(rack.as_described, "undrained")
    assert owners(rack) == first
    # Affinity off: 40 connections miss one of three replicas once in 3.7 million times.
    describe(rack, "flow")
    spread = served(rack, CLIENTS[0], 40)
    assert spread.keys() == set(REPLICAS), f"by flow one client met {spread}"
    report(test="client affinity", switch=rack.switch, clients=first, by_flow=spread)


def struct_ops_links() -> bool:
    """Whether this kernel supports congestion control in BPF (docs/hosts.md)."""
    release = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
    return release >= (6, 4) and Path("/sys/kernel/btf/vmlinux").exists()


@pytest.fixture
def manager(by_client: NetRack, tmp_path: Path) -> Iterator[Path]:
    """Runs the Congestion Manager for all sockets of the replicas, pinned in a BPF file system of
    its own.
    """
    if not struct_ops_links():
        pytest.skip("the kernel has no struct_ops links or no BTF")
    with bpf_fs(tmp_path / "bpf") as bpf:
        cm(bpf, "load")
        for name in REPLICAS:
            by_client.spaces[name].ip(f"route change default via 10.0.2.254 congctl {NAME}")
        yield bpf
        for name in REPLICAS:
            by_client.spaces[name].ip("route change default via 10.0.2.254")
        cm(bpf, "unload")


def cm(bpf: Path, *words: str) -> str:
    """Runs `rivulet cm`."""
    return subprocess.run(cm_command(NAME, bpf, *words), check=True, capture_output=True, text=True).stdout


def macroflows(bpf: Path, client: str) -> list[dict[str, Any]]:
    """Macroflows to a client that have connections."""
    found = json.loads(cm(bpf, "status", "--json"))["macroflows"]
    return [one for one in found if one["destination"] == client and one["flows"]]


def together(rack: NetRack, bpf: Path, client: str, count: int) -> list[dict[str, Any]]:
    """Runs slow downloads of one client at the same time; returns the servers' macroflows
    meanwhile.
    """
    names = [f"slow {number}" for number in range(count)]
    for name in names:
        slowly = rack.curl("big", "--interface", client, "--limit-rate", "50k", "-o", os.devnull)
        rack.start(name, slowly, rack.spaces["c1"])

    def all_there() -> bool:
        return sum(one["flows"] for one in macroflows(bpf, client)) == count

    rack.until(all_there, f"{count} connections to {client}", 60.0)
    found = macroflows(bpf, client)
    for name in names:
        rack.end(name)
    rack.until(lambda: not macroflows(bpf, client), "they are over", 60.0)
    return found


@pytest.mark.parametrize("rack", ["embedded"], indirect=True)
def test_connections_of_a_client_share_one_window(by_client: NetRack, manager: Path) -> None:
    for client in CLIENTS[:3]:
        (one,) = together(by_client, manager, client, CONNECTIONS)
        assert one["flows"] == CONNECTIONS
    # With affinity by flow, twelve connections share a replica as rarely.
    describe(by_client, "flow")
    several = together(by_client, manager, CLIENTS[3], 12)
    assert len(several) > 1 and sum(one["flows"] for one in several) == 12
    assert len({one["netns"] for one in several}) == len(several), "a window each replica"
    report(test="client affinity, Congestion Manager", macroflows=[one["flows"] for one in several])
