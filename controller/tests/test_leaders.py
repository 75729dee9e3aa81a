"""Two controllers with etcd and a real rack: the leader, then etcd, is killed during a download."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from etcd_server import ETCD, Server
from netrack import MEGABYTES, REPLICAS, SWITCHES, NetRack, needs_rack
from test_system import described, report

from rivulet_controller.client import ApiError, Client, leading

pytestmark = [
    needs_rack,
    pytest.mark.skipif(ETCD is None, reason="etcd is not installed"),
]
NAMES = ("one", "two")
LEASE_S = 4


class LeaderRack(NetRack):
    """A rack with agents that know both controllers."""

    def __init__(self, folder: Path, switch: str, etcd: Server) -> None:
        super().__init__(folder, switch)
        self.etcd = etcd
        self.apis = ",".join(f"unix:{folder}/{name}.api" for name in NAMES)
        self.agents = ",".join(f"unix:{folder}/{name}.agents" for name in NAMES)

    def start_controller(self) -> None:
        """Starts both controllers."""
        for name in NAMES:
            self.start_one(name)

    def start_one(self, name: str) -> None:
        """Starts one of them, with its own sockets."""
        text, _, _ = self.description().partition("listen:")
        own = f"listen: {{agents: 'unix:{self.folder}/{name}.agents', api: 'unix:{self.folder}/{name}.api'}}\n"
        own += f"state: {self.folder}/{name}.db\n"
        own += f"etcd: {{endpoints: ['{self.etcd.url}'], lease: {LEASE_S}s}}\n"
        file = self.folder / f"{name}.yaml"
        file.write_text(text + own)
        self.start(name, [sys.executable, "-m", "rivulet_controller.daemon", str(file)])

    def status(self) -> dict[str, Any]:
        """The leader's snapshot; empty while there is no leader."""
        try:
            self.client = leading(self.apis, timeout_s=5.0)
        except ApiError:
            return {}
        found = super().status()
        return found if found.get("leader") else {}

    def leader(self) -> str:
        """The name of the leader; empty if there is none."""
        for name in NAMES:
            try:
                if Client(f"unix:{self.folder}/{name}.api", timeout_s=2.0).get("/api/leader")["leading"]:
                    return name
            except ApiError:
                continue
        return ""


@pytest.fixture(params=["embedded", pytest.param("bmv2", marks=pytest.mark.long)])
def rack(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LeaderRack]:
    if request.param not in SWITCHES:
        pytest.skip("the switch is not installed")
    etcd = Server(tmp_path)
    built = LeaderRack(tmp_path, request.param, etcd)
    try:
        etcd.start()
        built.build(MEGABYTES)
        yield built
    finally:
        built.down()
        etcd.kill()


def test_download_survives_kill_of_leader(rack: LeaderRack) -> None:
    excluded = rack.exclusions()
    # Waits for the writes of the first seconds: readmissions and keys.
    rack.until(rack.take_plain_tcp, "all take plain TCP")
    first, before = rack.leader(), described(rack)
    other = NAMES[1 - NAMES.index(first)]
    download = rack.under_way()
    rack.end(first)
    took = rack.until(lambda: rack.leader() == other and rack.as_described(), "the other leads")
    moved = took + rack.until(rack.all_live, "every agent is with the new leader")
    writes = rack.status()["switches"][0]["writes"]
    result = rack.finish(download)
    assert described(rack) == before
    # A replica excluded because this machine is busy causes a write when it is readmitted.
    assert writes <= rack.exclusions() - excluded, rack.log(other)
    assert rack.log(other).count("resumes as ToR") == 1
    # The killed controller returns and waits. It refuses a drain, which the leader has to do.
    rack.start_one(first)
    waiting = Client(f"unix:{rack.folder}/{first}.api")

    def names_the_leader() -> bool:
        try:
            waiting.post("/api/replicas/r1/drain")
        except ApiError as error:
            return f"{other}.api" in str(error)
        return False

    rack.until(names_the_leader, "the one in waiting names the leader")
    rack.client.post("/api/replicas/r1/drain")
    rack.until(lambda: bool(described(rack) != before), "the leader drains")
    report(
        test="kill the leader", switch=rack.switch, taken_over_s=round(took, 2), agents_moved_s=round(moved, 2),
        longest_gap_ms=round(result["longest_gap_ms"]),
    )  # fmt: skip


@pytest.mark.parametrize("rack", ["embedded"], indirect=True)
def test_download_survives_kill_of_etcd(rack: LeaderRack) -> None:
    before = described(rack)
    download = rack.under_way()
    rack.etcd.kill()
    rack.until(lambda: rack.leader() == "", "the leader steps back without its lease")
    rack.etcd.start()
    began = time.monotonic()
    rack.until(rack.as_described, "one of them leads again")
    converged = time.monotonic() - began
    rack.until(rack.all_live, "every agent is with the leader")
    result = rack.finish(download)
    assert described(rack) == before
    assert sum(rack.log(n).count("new pipeline") for n in NAMES) == 1
    assert len(rack.status()["replicas"]) == len(REPLICAS)
    report(
        test="kill etcd", switch=rack.switch, converged_s=round(converged, 2),
        longest_gap_ms=round(result["longest_gap_ms"]),
    )  # fmt: skip
