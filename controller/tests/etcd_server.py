"""An etcd of a test's own, on loopback."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import httpx
from ports import free_port

ETCD = shutil.which("etcd")
SHM = Path("/dev/shm")


class Server:
    """An etcd of its own on loopback."""

    def __init__(self, folder: Path) -> None:
        self._port = free_port(2)
        self.url = f"http://127.0.0.1:{self._port}"
        self._folder = folder
        # In memory where there is such a place: a busy disk takes longer for an fsync than a lease lasts.
        self._data = tempfile.TemporaryDirectory(dir=SHM if SHM.is_dir() else folder, prefix="rivulet-etcd-")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it and waits until it answers."""
        assert ETCD is not None
        peer = f"http://127.0.0.1:{self._port + 1}"
        with (self._folder / "etcd.log").open("ab") as log:
            clients = ["--listen-client-urls", self.url, "--advertise-client-urls", self.url]
            peers = ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
            command = [ETCD, "--data-dir", self._data.name, *clients, *peers]
            command += ["--initial-cluster", f"default={peer}"]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                if httpx.get(f"{self.url}/health", trust_env=False).json().get("health") == "true":
                    return
            except (httpx.HTTPError, ValueError):
                time.sleep(0.05)
        raise AssertionError((self._folder / "etcd.log").read_text()[-2000:])

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
