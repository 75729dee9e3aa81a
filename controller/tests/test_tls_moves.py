"""HTTPS connections to `rivulet tls` behind a real ToR when their replica is drained, when its agent restarts, and
POSTs when it dies.

A drained replica's connections move in a download and between two requests. An agent that restarts watches the
terminator's connections again. A POST is never executed twice.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tls_clients
from netrack import SERVICE, needs_rack
from test_tls_survival import Download, TlsRack, holders, kill_all, kill_terminator
from test_trods_survival import cut_link, standing

from rivulet_controller.drain_progress import progress
from rivulet_lab import Process

pytestmark = [
    needs_rack,
    pytest.mark.skipif(shutil.which("memcached") is None, reason="memcached is not installed"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed"),
]

PORT = 44001


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsRack]:
    """One rack for all tests of this file."""
    with standing(TlsRack(tmp_path_factory.mktemp("tls-moves"), "embedded")) as rack:
        yield rack


class Kept:
    """One connection of Python's http.client."""

    def __init__(self, rack: TlsRack, port: int) -> None:
        self.rack, self.port = rack, port
        command = [sys.executable, tls_clients.__file__, "keep", str(rack.certificate), SERVICE, str(port)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process: Process = rack.start(f"kept {port}", command, rack.spaces["c1"], **pipes)

    def send(self, method: str, path: str, body: str | None = None) -> None:
        """Sends a request."""
        line = json.dumps({"method": method, "path": path, "body": body}) + "\n"
        assert self.process.popen.stdin is not None
        self.process.popen.stdin.write(line.encode())
        self.process.popen.stdin.flush()

    def response(self) -> dict[str, Any]:
        """The response, or the error that ended the connection."""
        assert self.process.popen.stdout is not None
        return dict(json.loads(self.process.popen.stdout.readline()))

    def get(self, path: str) -> dict[str, Any]:
        """The response to a GET."""
        self.send("GET", path)
        return self.response()

    def holder(self, *dead: str) -> str:
        """The replica with the connection in its kernel."""
        self.rack.until(lambda: self.port in holders(self.rack, *dead), f"a replica has port {self.port}")
        return holders(self.rack, *dead)[self.port]

    def end(self) -> None:
        """Ends the client."""
        self.process.end()


@contextmanager
def drained(rack: TlsRack, name: str) -> Iterator[None]:
    """The replica is drained, and has left its connections, until the end of the block."""
    before = progress(rack.replica(name)).moved
    rack.client.post(f"/api/replicas/{name}/drain")
    try:
        rack.until(lambda: progress(rack.replica(name)).moved > before, f"{name} has left a connection")
        yield
    finally:
        rack.client.post(f"/api/replicas/{name}/undrain")
        rack.until(rack.all_well, f"{name} is back")


def test_https_download_moves_away_from_a_drained_replica(rack: TlsRack) -> None:
    flow = Download.start(rack, PORT)
    one = flow.holder()
    with drained(rack, one):
        adopter = flow.holder(one)
        flow.ended_well()
        assert rack.count(adopter, "adopted_total") > 0
    assert rack.trods("refused") == 0


def test_kept_connection_moves_between_two_requests(rack: TlsRack) -> None:
    kept = Kept(rack, PORT + 10)
    try:
        assert kept.get("/small") == {"status": 200, "body": "small"}
        one = kept.holder()
        with drained(rack, one):
            two = kept.holder(one)
            assert kept.get("/small") == {"status": 200, "body": "small"}
            # And on from there.
            assert kept.get("/small") == {"status": 200, "body": "small"}
            assert kept.holder(one) == two
    finally:
        kept.end()
    assert rack.trods("refused") == 0


def wait_for_registration(rack: TlsRack, name: str) -> None:
    """Waits until the replica's agent, which has just started, has a record of a connection."""

    def is_stored() -> bool:
        return bool((rack.replica(name)["trods"] or {}).get("protected", 0) > 0)

    rack.until(is_stored, f"the agent of {name} has stored a record")
    rack.until(rack.all_well, "all are well")


@contextmanager
def killed(rack: TlsRack, name: str) -> Iterator[None]:
    """All processes of the replica are dead until the end of the block."""
    kill_all(rack, name)
    try:
        yield
    finally:
        rack.start_replica(name)
        rack.until(rack.all_well, f"{name} is back")


def test_download_outlives_its_replica_after_restart_of_agent(rack: TlsRack) -> None:
    flow = Download.start(rack, PORT + 70)
    one = flow.holder()
    adopted, refused = rack.count(one, "adopted_total"), rack.trods("refused")
    rack.end(one)
    rack.start_replica(one)
    wait_for_registration(rack, one)
    # The terminator's socket went on. Without the registration, the agent would have adopted the
    # connection by its former record.
    assert flow.holder() == one
    assert rack.count(one, "adopted_total") == adopted
    with killed(rack, one):
        flow.holder(one)
        flow.ended_well()
    assert rack.trods("refused") == refused


def test_request_during_restart_of_agent_is_stored(rack: TlsRack) -> None:
    """The response waits for the agent that starts."""
    kept = Kept(rack, PORT + 80)
    try:
        assert kept.get("/small") == {"status": 200, "body": "small"}
        one = kept.holder()
        adopted = rack.count(one, "adopted_total")
        rack.end(one)
        kept.send("GET", "/small")
        rack.start_replica(one)
        assert kept.response() == {"status": 200, "body": "small"}
        wait_for_registration(rack, one)
        assert kept.holder() == one
        assert rack.count(one, "adopted_total") == adopted
        with killed(rack, one):
            assert kept.get("/small") == {"status": 200, "body": "small"}
            assert kept.holder(one) != one
    finally:
        kept.end()


@pytest.fixture
def counting(rack: TlsRack) -> Iterator[Path]:
    """The replicas' servers count POSTs, in a file of this folder."""
    folder = rack.folder / "counting"
    folder.mkdir(exist_ok=True)
    (folder / "go").unlink(missing_ok=True)
    (folder / "executed").write_text("")
    for name in rack.replicas:
        rack.end(f"nginx {name}")
        command = [sys.executable, tls_clients.__file__, "count", str(folder)]
        rack.start(f"nginx {name}", command, rack.spaces[name])
    yield folder
    for name in rack.replicas:
        if f"nginx {name}" in rack.processes:
            rack.end(f"nginx {name}")
        rack.start_nginx(name)


@pytest.mark.parametrize("harm", ["terminator", "all", "link"])
def test_post_is_executed_once_when_its_replica_dies(rack: TlsRack, counting: Path, harm: str) -> None:
    """Its client gets an error or the answer. Requests before it are answered on the same connection."""
    kept = Kept(rack, PORT + 20 + 10 * len(harm))
    executed = counting / "executed"
    try:
        assert kept.get("/small") == {"status": 200, "body": "small"}
        one = kept.holder()
        kept.send("POST", "/order", harm)
        rack.until(lambda: executed.read_text() == f"{harm}\n", "the server executes it")
        before = rack.exclusions()
        heal = cut_link(rack, one) if harm == "link" else None
        if harm != "link":
            {"terminator": kill_terminator, "all": kill_all}[harm](rack, one)
        else:
            rack.until(lambda: rack.exclusions() != before, f"{one} is excluded")
        (counting / "go").touch()
        if heal is not None:
            heal()
        found = kept.response()
    finally:
        kept.end()
        if f"tls {one}" not in rack.processes:
            rack.start_replica(one)
    rack.until(rack.all_well, f"{one} is back")
    assert "error" in found or found == {"status": 200, "body": f"done {harm}"}, found
    assert found.get("error") != "TimeoutError", "the client was left without an answer"
    assert executed.read_text() == f"{harm}\n", "executed again"
