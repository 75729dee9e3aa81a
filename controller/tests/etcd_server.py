"""An etcd server on loopback for a test."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import httpx
from ports import free_port

from rivulet_lab import Lab

ETCD = shutil.which("etcd")
SHM = Path("/dev/shm")


class Server:
    """One etcd server."""

    def __init__(self, folder: Path) -> None:
        self._port = free_port(2)
        self.url = f"http://127.0.0.1:{self._port}"
        # In a RAM disk if there is one: on a busy disk an fsync takes longer than a lease lasts.
        self._data = tempfile.TemporaryDirectory(dir=SHM if SHM.is_dir() else folder, prefix="rivulet-etcd-")
        self._lab = Lab(folder)

    def start(self) -> None:
        """Starts the server and waits until it answers."""
        assert ETCD is not None
        peer = f"http://127.0.0.1:{self._port + 1}"
        clients = ["--listen-client-urls", self.url, "--advertise-client-urls", self.url]
        peers = ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command = [ETCD, "--data-dir", self._data.name, *clients, *peers, "--initial-cluster", f"default={peer}"]
        process = self._lab.start("etcd", command)

        def healthy() -> bool:
            try:
                return bool(httpx.get(f"{self.url}/health", trust_env=False).json().get("health") == "true")
            except (httpx.HTTPError, ValueError):
                return False

        self._lab.until(healthy, "etcd answers", 60.0, process)

    def kill(self) -> None:
        """Ends it by SIGKILL."""
        if "etcd" in self._lab.processes:
            self._lab.end("etcd")
