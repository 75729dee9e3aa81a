"""Uploads in a whole rack: three replicas share storage, one is killed in the middle, the connection survives."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rivulet_demo.scenario import Parameters, Standing, standing_rack
from rivulet_demo.services import url
from rivulet_demo.spec import SERVICE_PORT
from rivulet_lab import Process, built

SIZE_MB = 10.0
MIDDLE = 3_000_000
"""Bytes of the upload that are stored when the replica is killed."""
PATIENCE_S = 120.0


usable = os.geteuid() == 0 and built("rivulet", "rivulet-switch", "rivulet-wire")
pytestmark = [
    pytest.mark.skipif(not usable, reason="needs root and the binaries (make build)"),
    pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl"),
]


@pytest.fixture
def standing(tmp_path: Path) -> Iterator[Standing]:
    """A rack with replicas that store uploads in one folder."""
    storage = tmp_path / "storage"
    storage.mkdir()
    # Slow links: ten megabytes take eight seconds, time enough for a kill in the middle.
    values = Parameters(
        rate_mbit=10.0, rtt_ms=10.0, size_mb=SIZE_MB, replicas=3, switch="embedded", out=tmp_path, live=False
    )
    services = (("files", SERVICE_PORT, "none"),)
    with standing_rack("uploads", values, serve=("--upload", str(storage)), services=services) as rack:
        yield rack


def stored(standing: Standing) -> int:
    """Stored bytes of the unfinished upload, up to the last one received."""
    folder = standing.parameters.out / "storage" / ".rivulet-uploads"
    size = 0
    for file in folder.glob("*.data"):
        # The finished upload is renamed at any time.
        with contextlib.suppress(FileNotFoundError):
            size = max(size, file.stat().st_size)
    return size


def upload(standing: Standing, flags: list[str], name: str) -> Process:
    """Unmodified curl on c1, without retries."""
    source = standing.parameters.out / "www" / "file.bin"
    command = [*shlex.split(standing.via_rivulet("c1")), "curl", "-sS", "--fail", "-m", f"{PATIENCE_S:g}"]
    command += ["-w", "%{http_code} %{num_connects} %{size_upload}", *(f.format(source=source) for f in flags)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return standing.rack.start("upload", [*command, url(name)], standing.rack.spaces["c1"], **pipes)


@pytest.mark.parametrize("flags", [["-T", "{source}"], ["--data-binary", "@{source}"]], ids=["put", "post"])
def test_an_upload_survives_the_death_of_a_replica(standing: Standing, flags: list[str]) -> None:
    victim = "r2"
    # On a busy machine an upload may end before the kill; then it is repeated.
    for attempt in range(3):
        name = f"up/file-{attempt}"
        target = standing.parameters.out / "storage" / name
        client = upload(standing, flags, name)
        end = time.monotonic() + PATIENCE_S
        while stored(standing) < MIDDLE and client.running():
            assert time.monotonic() < end, f"no progress: {stored(standing)} bytes"
            time.sleep(0.005)
        view = standing.watch.view
        standing.replicas.kill(victim)
        whole = target.exists()
        assert client.output(PATIENCE_S) == f"201 1 {standing.parameters.size}", (
            "one connection carried the whole upload"
        )
        source = standing.parameters.out / "www" / "file.bin"
        assert target.read_bytes() == source.read_bytes(), "the stored file differs from the sent one"
        assert not stored(standing), "parts of the upload are left"
        if not whole:
            break
        standing.replicas.start(victim)
    assert not whole, "no upload met the kill"
    assert view is not None and all(view.packets[name] > 0 for name in ("r1", "r2", "r3")), (
        "a replica received no packet"
    )
    assert any(who == victim and excluded for _, who, excluded in standing.watch.history), (
        "the ToR did not exclude the dead replica"
    )
    process = standing.rack.processes[f"{victim}-{standing.replicas.starts[victim]}"]
    assert -(process.popen.returncode or 0) == signal.SIGKILL
