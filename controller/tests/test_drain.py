"""Plain TCP while replicas are drained, undrained, weighed and in maintenance: which flows move and
which stay.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from netrack import REPLICAS, NetRack, needs_rack
from test_system import report

from rivulet_lab import Process

pytestmark = needs_rack
FLOWS = 40
"""Short flows that show where new flows go; a replica with a third of the slots misses all once in
11 million times."""


@pytest.fixture
def rack(rack: NetRack) -> NetRack:
    """The session's rack, once every replica takes plain TCP."""
    rack.until(rack.take_plain_tcp, "all take plain TCP")
    return rack


def new_flows(rack: NetRack) -> dict[str, int]:
    """Opens short flows; returns how many each replica accepted."""
    before = rack.accepted()
    for _ in range(FLOWS):
        assert rack.spaces["c1"].run(*rack.curl("small")) == "small"
    return {name: count - before[name] for name, count in rack.accepted().items()}


def long_flow(rack: NetRack) -> tuple[Process, str, Path]:
    """A slow download by plain TCP: its process, its replica, and its output file."""
    out = rack.folder / f"plain-{time.monotonic_ns()}"
    before = rack.accepted()
    slowly = rack.curl("big", "--limit-rate", "1000k", "-o", str(out))
    flow = rack.start(out.name, slowly, rack.spaces["c1"], stdout=None)
    rack.until(lambda: rack.accepted() != before and out.exists(), "a replica accepted it")
    return flow, next(name for name, count in rack.accepted().items() if count != before[name]), out


def whole(rack: NetRack, flow: Process, out: Path) -> bool:
    """Whether a download is complete and correct."""
    code = flow.popen.wait(90)
    same = out.exists() and out.read_bytes() == rack.file.read_bytes()
    assert code != 0 or same, "curl reports success, but the file is damaged"
    return code == 0


def troubles(rack: NetRack) -> dict[str, object]:
    """Exclusions so far: plain TCP does not survive one of its replica."""
    found = rack.status()
    return {r["name"]: r["exclusions"] for r in found["replicas"]} | {"drops": found["switches"][0]["drops"]}


def test_drain_moves_new_plain_flows_until_undrained(rack: NetRack) -> None:
    assert all(new_flows(rack).values()), "every replica has a share"
    flow, drained, out = long_flow(rack)
    rack.client.post(f"/api/replicas/{drained}/drain")
    rack.until(rack.as_described, "drained")
    moved = new_flows(rack)
    assert moved[drained] == 0 and sum(moved.values()) == FLOWS, moved
    # Its slots name another replica first, which returns the old flow's segments to the ToR.
    assert whole(rack, flow, out), f"an established flow of {drained} broke: {troubles(rack)}"
    meanwhile, server, out = long_flow(rack)
    assert server != drained
    rack.client.post(f"/api/replicas/{drained}/undrain")
    rack.until(rack.as_described, "undrained")
    assert new_flows(rack)[drained] > 0
    assert whole(rack, meanwhile, out), f"a flow of {server} that began while {drained} drained broke: {troubles(rack)}"
    report(test="drain, plain TCP", switch=rack.switch, moved=moved)


@pytest.mark.parametrize("rack", ["embedded"], indirect=True)
def test_drain_leaves_flows_of_other_replicas_alone(rack: NetRack) -> None:
    flow, server, out = long_flow(rack)
    other = next(name for name in REPLICAS if name != server)
    rack.client.post(f"/api/replicas/{other}/drain")
    rack.until(rack.as_described, "drained")
    rack.client.post(f"/api/replicas/{other}/undrain")
    rack.until(rack.as_described, "undrained")
    assert whole(rack, flow, out), f"a flow of {server}, which was not drained, broke: {troubles(rack)}"


@pytest.mark.parametrize("rack", ["embedded"], indirect=True)
def test_weights_and_maintenance_steer_new_flows(rack: NetRack) -> None:
    rack.client.post("/api/replicas/r1/weight", {"weight": 0})
    rack.until(rack.as_described, "weighed")
    assert new_flows(rack)["r1"] == 0
    rack.client.post("/api/replicas/r1/weight", {"weight": None})
    rack.until(rack.as_described, "as in the file")
    rack.yaml.write_text(rack.description().replace('"name": "r2",', '"name": "r2", "maintenance": true,'))

    def out() -> bool:
        return bool(rack.replica("r2")["state"] == "maintenance")

    rack.until(out, "the file's change is seen")
    rack.until(rack.as_described, "taken out")
    flows = new_flows(rack)
    assert flows["r2"] == 0 and flows["r1"] > 0
    rack.finish(rack.download())
    rack.yaml.write_text(rack.description())
    rack.until(rack.all_live, "back")
    rack.until(rack.take_plain_tcp, "and takes plain TCP")
    assert new_flows(rack)["r2"] > 0
