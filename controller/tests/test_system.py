"""The whole system in network namespaces: real switch, replicas and downloads, and every part
killed once.

Needs root and the binaries (`make build`); runs on the embedded switch, and on simple_switch_grpc
if it is installed. Times to converge are printed (`pytest -s`), and written to the JSON file
RIVULET_CONVERGE if that is set.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from netrack import LIVENESS_MS, MEGABYTES, SWITCHES, NetRack, needs_rack

pytestmark = needs_rack
ROTATION_S = float(os.environ.get("RIVULET_ROTATION_S", "15"))


def report(**figures: Any) -> None:
    """Prints a figure, and writes it to RIVULET_CONVERGE."""
    print(json.dumps(figures))
    if path := os.environ.get("RIVULET_CONVERGE"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(figures) + "\n")


def test_rack_serves_and_switch_holds_desired_entries(rack: NetRack) -> None:
    def checked() -> int:
        return int(rack.client.get("/api/services")[0]["outcomes"].get("CHECKED", 0))

    before = checked()
    result = rack.finish(rack.download())
    report(test="download", switch=rack.switch, mbit_per_s=round(result["mbit_per_s"], 1))
    entries = set(rack.client.get("/api/switches/tor1/entries"))
    assert "services[address=0xffff0a090001 port=0x50] set_service(service=0x1)" in entries
    assert (
        f"pools[pool=0x0] set_pool(bound={LIVENESS_MS * 1000:#x}, copies_group=0x400, members=0x7,"
        f" settle={LIVENESS_MS * 1300:#x})" in entries
    )
    assert "multicast[1024] 101 102#1 103#2" in entries
    checks = next(line for line in entries if line.startswith("service_checks"))
    assert "seal_epoch=0x1" in checks and "nonce_epoch=0x1" in checks
    rack.until(lambda: checked() > before + 1000, "the switch's counters show what it checked")


def described(rack: NetRack) -> set[str]:
    """The switch's entries except those that depend on the run: clock, sources, counts of
    exclusions.
    """
    lines = rack.client.get("/api/switches/tor1/entries")
    taught = ("tor[", "known_sources[", "bridges[")
    return {line.split(" admit_heartbeat(")[0] for line in lines if not line.startswith(taught)}


@pytest.mark.parametrize("what", ["controller", "r2", "switch"])
def test_downloads_survive_kill_of_any_part(rack: NetRack, what: str) -> None:
    before, log = described(rack), rack.log("controller")
    download = rack.under_way()
    rack.end(what)
    time.sleep(0.3)
    {"controller": rack.start_controller, "switch": rack.start_switch}.get(what, lambda: rack.start_replica(what))()
    began = time.monotonic()
    rack.until(rack.as_described, "the switch is as described again")
    converged = time.monotonic() - began
    result = rack.finish(download)
    rack.until(rack.all_live, "every replica is live again")
    assert described(rack) == before
    if what == "controller":
        log_text = rack.log("controller").removeprefix(log)
        assert "resumes as ToR" in log_text and "new pipeline" not in log_text, "the pipeline was not reloaded"
    report(
        test=f"kill {what}", switch=rack.switch, converged_s=round(converged, 2),
        longest_gap_ms=round(result["longest_gap_ms"]), mbit_per_s=round(result["mbit_per_s"], 1),
    )  # fmt: skip


def test_killed_agent_interrupts_no_traffic(rack: NetRack) -> None:
    """r2's agent is a separate process here; its file server continues with the keys that it has."""
    old = rack.replica("r2")["incarnation"]
    rack.end("r2")
    rack.start_agent("r2")
    rack.start_replica("r2")
    back = lambda: rack.replica("r2")["incarnation"] not in (0, old) and rack.all_live()  # noqa: E731
    rack.until(back, "r2 is back behind an agent of its own")
    before, download = described(rack), rack.under_way()
    rack.end("agent r2")
    rack.until(lambda: not rack.replica("r2")["agent"], "the controller notices")
    rack.until(
        lambda: "no agent is connected" in rack.replica("r2")["reason"],
        "the status explains it while the replica serves",
    )

    def serves() -> bool:
        nonlocal download
        # The state may show only after the download's end; then start another one.
        if not download.running():
            rack.finish(download)
            download = rack.download()
        return bool(rack.replica("r2")["packets_per_s"] > 0)

    rack.until(serves, "it serves")
    assert described(rack) == before
    began = time.monotonic()
    rack.start_agent("r2")
    rack.until(rack.all_live, "it is registered again")
    converged = time.monotonic() - began
    result = rack.finish(download)
    assert described(rack) == before
    report(
        test="kill the agent of r2", switch=rack.switch, converged_s=round(converged, 2),
        longest_gap_ms=round(result["longest_gap_ms"]),
    )  # fmt: skip


@pytest.fixture
def rotating(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NetRack]:
    """A rack with continuous key rotation."""
    if request.param not in SWITCHES:
        pytest.skip("the switch is not installed")
    rack = NetRack(tmp_path, request.param, seal_rotation="1s", nonce_rotation="10s", resume="60s", horizon="4s")
    try:
        rack.build(min(max(MEGABYTES, round(ROTATION_S)), 40))
        yield rack
    finally:
        rack.down()


@pytest.mark.parametrize(
    "rotating",
    ["embedded", *(pytest.param(name, marks=pytest.mark.long, id=f"{name}-long") for name in ("embedded", "bmv2"))],
    indirect=True,
)
def test_requests_survive_continuous_key_rotation(rotating: NetRack) -> None:
    """Seal keys rotate every second and nonce keys every ten, while connections last for many
    epochs of both.

    `make rotation` runs the long form of two minutes. A response must be complete within the resume
    time, since its position is sealed once, with its first segment; so the file is fetched in much
    less.
    """
    rack, end = rotating, time.monotonic() + ROTATION_S
    downloads, restarts = [], 0
    first = rack.client.get("/api/services")[0]["keys"]
    excluded = rack.exclusions()
    refused = {r["name"]: r["refused_total"] for r in rack.status()["replicas"]}
    while time.monotonic() < end:
        result = rack.finish(rack.download(), 4 * ROTATION_S + 120)
        downloads.append(round(result["seconds"], 1))
        restarts += result["counts"]["restarts"]
    excluded = rack.exclusions() - excluded
    last = rack.client.get("/api/services")[0]["keys"]
    rotated = {kind: last[kind]["usable"] - first[kind]["usable"] for kind in ("seal", "nonce")}
    drops = rack.status()["switches"][0]["drops"]
    refused = {r["name"]: r["refused_total"] - refused[r["name"]] for r in rack.status()["replicas"]}
    report(
        test="rotation", switch=rack.switch, downloads_s=downloads, rotated=rotated, drops=drops,
        refused=refused, restarts=restarts,
    )  # fmt: skip
    assert rotated["seal"] >= ROTATION_S / 2 and rotated["nonce"] >= ROTATION_S // 10 - 1
    assert "KEY_UNKNOWN" not in drops and "KEY_NOT_USABLE" not in drops, "the ToR refused a request for its key"
    assert not any(refused.values()), f"a replica refused a request: {rack.log('r1')[-1000:]}"
    # Clients also restart requests when a busy machine delays all replicas.
    assert restarts == 0 or excluded > 0


def test_drained_replica_gets_no_new_requests(rack: NetRack) -> None:
    rack.finish(rack.download())
    rack.client.post("/api/replicas/r1/drain")
    rack.until(rack.as_described, "drained")
    # A drained replica may still replace one that a busy machine delayed for longer than the bound:
    # then repeat.
    for _ in range(5):
        excluded, cells = rack.exclusions(), _packets(rack)
        rack.finish(rack.download())
        after, now = rack.exclusions(), _packets(rack)
        moved = {name: now[name] - cells[name] for name in now}
        if after == excluded:
            break
    # Undrained, it gets a third again.
    assert moved["r1"] < 0.05 * sum(moved.values()) and moved["r2"] > 100 and moved["r3"] > 100, moved


def _packets(rack: NetRack) -> dict[str, float]:
    text = rack.client.text("/metrics")
    found = {}
    for line in text.splitlines():
        if line.startswith("rivulet_replica_packets_total{"):
            found[line.split('replica="')[1].split('"')[0]] = float(line.rsplit(" ", 1)[1])
    return found
