"""Stateless TCP in a real rack: curl, the ToR's cookies, any replica, and changes of mode during
connections.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from netrack import SERVICE, NetRack, needs_rack
from test_drain import troubles, whole

from rivulet_lab import Process

pytestmark = needs_rack

FOREVER, SHORT = "6h", "1s"
"""A drain longer than any test, and a short one."""

TWICE = r"""
import pathlib, socket, sys, time
folder, service = pathlib.Path(sys.argv[1]), sys.argv[2]
with socket.create_connection((service, 80), 30) as s:
    def ask():
        s.sendall(b"GET /small HTTP/1.1\r\nHost: h\r\n\r\n")
        text = b""
        while not text.endswith(b"\r\n\r\nsmall"):
            data = s.recv(4096)
            assert data, "the connection ended"
            text += data
        assert text.startswith(b"HTTP/1.1 200 OK\r\n"), text
    ask()
    (folder / "asked").touch()
    while not (folder / "again").exists():
        time.sleep(0.05)
    ask()
"""
"""A client that sends two requests on one connection, the second on command."""


def describe(rack: NetRack, plain: str, drain: str = SHORT) -> None:
    """Changes the mode and the duration of the drain in the configuration file."""
    rack.yaml.write_text(
        rack.description().replace("    port: 80\n", f"    port: 80\n    plain: {plain}\n    plain_drain: {drain}\n")
    )


def cookie_epoch(rack: NetRack) -> int:
    """Epoch of the key with which ToRs make cookies."""
    return int(rack.client.get("/api/services")[0]["keys"]["cookie"]["usable"])


def until_mode(rack: NetRack, words: str) -> None:
    rack.until(lambda: rack.plain() == words, f"plain TCP is {words}")


def fetch(rack: NetRack) -> None:
    """Fetches a small file by curl on a new connection."""
    assert rack.spaces["c1"].run(*rack.curl("small")) == "small"


def count(rack: NetRack, read: Callable[[], int]) -> Callable[[], int]:
    """Yields a function that returns by how much a counter of the switch has grown."""
    rack.look()
    before = read()

    def grown() -> int:
        rack.look()
        return read() - before

    return grown


def drops(rack: NetRack, reason: str) -> int:
    return int(rack.status()["switches"][0]["drops"].get(reason, 0))


def outcomes(rack: NetRack, outcome: str) -> int:
    return int(rack.client.get("/api/services")[0]["outcomes"].get(outcome, 0))


@pytest.mark.parametrize("rack", ["embedded", pytest.param("bmv2", marks=pytest.mark.long)], indirect=True)
def test_mode_changes_break_no_plain_connection(rack: NetRack) -> None:
    rack.until(rack.take_plain_tcp, "all take plain TCP")
    flow, server, out = slow_flow(rack)
    # Replicas become stateless while their kernels' connections continue.
    describe(rack, "stateless", FOREVER)
    until_mode(rack, "stateless, ToRs kernel, kernel drains")
    rack.until(lambda: no_kernel(rack), "all serve so")
    before = rack.accepted()
    assert flow.running(), "it must outlive the change"
    assert whole(rack, flow, out), f"a connection of {server}'s kernel broke: {troubles(rack)}"
    # Then the ToR answers SYNs.
    describe(rack, "stateless", SHORT)
    until_mode(rack, "stateless")
    rack.until(rack.as_described, "and the ToR")
    cookies, shakes = count(rack, lambda: outcomes(rack, "COOKIE")), count(rack, lambda: drops(rack, "HANDSHAKE"))
    for _ in range(10):
        fetch(rack)
    assert rack.accepted() == before and cookies() >= 10 and shakes() >= 10
    rack.end("r1")
    for _ in range(10):
        fetch(rack)
    rack.start_replica("r1")
    rack.until(rack.all_live, "all are back")
    # The ToR accepts cookies of the former key.
    client, ask = twice(rack)
    epoch = cookie_epoch(rack)
    rack.client.post("/api/services/files/rotate", {"kinds": ["cookie"]})
    rack.until(lambda: cookie_epoch(rack) == epoch + 1, "another key")
    rack.until(rack.as_described, "at the ToR too")
    fetch(rack)
    ask()
    assert client.popen.wait(60) == 0, "a connection broke with the key"
    # And back to the kernel.
    client, ask = twice(rack)
    describe(rack, "kernel", FOREVER)
    until_mode(rack, "kernel, stateless drains")
    rack.until(lambda: takes_over(rack), "the kernel has what begins")
    ask()
    assert client.popen.wait(60) == 0, "a connection without state broke"
    flow, _, out = slow_flow(rack)
    rack.yaml.write_text(rack.description())
    until_mode(rack, "kernel")
    assert whole(rack, flow, out), f"a kernel's connection of the change broke: {troubles(rack)}"


@pytest.mark.parametrize("rack", ["embedded"], indirect=True)
def test_kernel_connections_survive_drain_during_mode_change(rack: NetRack) -> None:
    """A replica returns segments of flows whose slots name another replica to the ToR, in both
    directions of the change.
    """
    rack.until(rack.take_plain_tcp, "all take plain TCP")
    handed = count(rack, lambda: outcomes(rack, "HANDED_ON"))
    flow, server, out = slow_flow(rack, "400k")
    describe(rack, "stateless", FOREVER)
    until_mode(rack, "stateless, ToRs kernel, kernel drains")
    outlives_a_drain(rack, flow, server, out)
    assert handed() > 0, "its segments took the way through another replica"
    rack.until(lambda: no_kernel(rack), "all serve so")
    describe(rack, "stateless", SHORT)
    until_mode(rack, "stateless")
    describe(rack, "kernel", FOREVER)
    until_mode(rack, "kernel, stateless drains")
    rack.until(lambda: takes_over(rack), "the kernel has what begins")
    handed = count(rack, lambda: outcomes(rack, "HANDED_ON"))
    outlives_a_drain(rack, *slow_flow(rack, "400k"))
    assert handed() > 0, "its segments took the way through another replica"


def outlives_a_drain(rack: NetRack, flow: Process, server: str, out: Path) -> None:
    """Drains the replica of a flow, which has to complete, and undrains it."""
    rack.client.post(f"/api/replicas/{server}/drain")
    rack.until(lambda: bool(rack.replica(server).get("draining")), "drained")
    assert flow.running(), "it must outlive the drain"
    assert whole(rack, flow, out), f"a connection of {server}'s kernel broke: {troubles(rack)}"
    rack.client.post(f"/api/replicas/{server}/undrain")


def slow_flow(rack: NetRack, rate: str = "200k") -> tuple[Process, str, Path]:
    """A download by kernel TCP that lasts for a change: process, replica and output; `rate` in
    bytes a second.
    """
    out = rack.folder / f"slow-{time.monotonic_ns()}"
    before = rack.accepted()
    slowly = rack.curl("big", "--max-time", "120", "--limit-rate", rate, "-o", str(out))
    flow = rack.start(out.name, slowly, rack.spaces["c1"], stdout=None)
    rack.until(lambda: rack.accepted() != before and out.exists(), "a replica accepted it")
    return flow, next(name for name, count in rack.accepted().items() if count != before[name]), out


def no_kernel(rack: NetRack) -> bool:
    """Whether no kernel accepts any of ten new connections."""
    before = rack.accepted()
    for _ in range(10):
        fetch(rack)
    return rack.accepted() == before


def takes_over(rack: NetRack) -> bool:
    """Whether a kernel accepts a new connection."""
    before = rack.accepted()
    fetch(rack)
    return rack.accepted() != before


def twice(rack: NetRack) -> tuple[Process, Callable[[], None]]:
    """A client that has sent one request, and a function that makes it send the second."""
    folder = Path(rack.folder) / f"twice-{len(list(Path(rack.folder).glob('twice-*')))}"
    folder.mkdir()
    command = [sys.executable, "-c", TWICE, str(folder), SERVICE]
    client = rack.start(folder.name, command, rack.spaces["c1"], stdout=None)
    rack.until((folder / "asked").exists, "it has its first answer")
    return client, (folder / "again").touch
