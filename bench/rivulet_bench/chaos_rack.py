"""The rack of the chaos run: every part is a process that is restarted after its end, with a small disk and own
clocks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rivulet_controller.client import ApiError, Client
from rivulet_controller.etcd import EtcdClient, EtcdStore, Leadership
from rivulet_controller.listen_config import Etcd
from rivulet_controller.state import State
from rivulet_controller.store import SqliteStore, Store
from rivulet_demo.rack import Rack
from rivulet_demo.spec import RackSpec
from rivulet_lab import Process, RackError, binary, prompt, standing, switches

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
"""Debian's libfaketime, which changes the wall clock of the processes that load it."""

KEYS = {"seal_rotation": "3s", "nonce_rotation": "10s", "resume": "120s", "horizon": "4s"}
"""Keys rotate during the run, because clock jumps and lost writes would break the rotation."""

DISK_MB = {"sqlite": 8, "etcd": 300}
"""Size of the disk that fills. etcd reserves 64 MB for each file of its log."""

BACK_S = {"controller": 1.0}
"""Seconds until a part is restarted, as with systemd; 0.2 s for the others."""

ETCD_PORT = 23790
PATIENCE_S = 90.0


class ChaosRack(Rack):
    """Switch, three replicas with agents, and one controller with SQLite or two with etcd."""

    def __init__(self, spec: RackSpec, folder: Path, store: str) -> None:
        super().__init__(spec, folder, "embedded")
        self.store = store
        self.disk = folder / "disk"
        self.clock = folder / "clock"
        self.controllers = ("controller-1",) if store == "sqlite" else ("controller-1", "controller-2")
        self.replicas = [host.name for host in spec.of("replica")]
        self.parts: dict[str, list[str]] = {}
        """Command line of each part, which is started again after its end."""
        self.exits: list[str] = []
        """Parts that ended without a fault."""
        self.doors = {name: Client(f"unix:{folder}/{name}.api", timeout_s=5.0) for name in self.controllers}
        self._down: dict[str, float] = {}
        self._starts: dict[str, int] = {}

    # Building

    def build(self) -> None:
        """Also makes the disk."""
        super().build()
        self.disk.mkdir()
        size = f"size={DISK_MB[self.store]}m"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "chaos", str(self.disk)], check=True)
        self.clock.write_text("+0\n")
        # The control plane has priority over other work of this machine, below the packet path.
        soon = ["chrt", "--rr", "1"] if prompt() else []
        if self.store == "etcd":
            self._add("etcd", [*soon, shutil.which("etcd") or "etcd", *self._etcd_flags()])
        ports = {host.port: f"p-{host.name}" for host in self.spec.hosts}
        self._add(
            "switch", [*prompt(), *switches.command("embedded", ports, f"unix:{self.folder / 'switch.sock'}")], "tor"
        )
        for name in self.controllers:
            (self.folder / f"{name}.yaml").write_text(json.dumps(self._description(name), indent=1))
            self._add(
                name, [*soon, sys.executable, "-m", "rivulet_controller.daemon", str(self.folder / f"{name}.yaml")]
            )
        doors = ",".join(f"unix:{self.folder}/{name}.agents" for name in self.controllers)
        for name in self.replicas:
            own = ["--name", name, "--interface", f"{name}-eth0"]
            agent, socket = [binary("rivulet"), "agent", "--controller", doors], f"{self.folder}/{name}.agent"
            self._add(f"agent-{name}", [*prompt(), *agent, "--socket", socket, "--keep", f"{socket}.keys", *own], name)
            serve = [binary("rivulet"), "serve", str(self.folder / "www"), "--controller", f"unix:{socket}"]
            self._add(name, [*prompt(), *serve, *own], name)

    def _etcd_flags(self) -> list[str]:
        here, peer = (f"http://127.0.0.1:{ETCD_PORT + n}" for n in (0, 1))
        flags = ["--data-dir", f"{self.disk}/etcd", "--listen-client-urls", here, "--advertise-client-urls", here]
        flags += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        return [*flags, "--initial-cluster", f"default={peer}"]

    def _description(self, name: str) -> dict[str, Any]:
        """Configuration of one controller."""
        folder = self.folder
        config = self.spec.controller_config(
            f"unix:{folder}/switch.sock", f"unix:{folder}/{name}.agents", f"unix:{folder}/{name}.api",
            f"{self.disk}/{name}.db",
        )  # fmt: skip
        return config | {"keys": KEYS} | ({"etcd": _etcd().model_dump(mode="json")} if self.store == "etcd" else {})

    def _add(self, part: str, command: Sequence[str], space: str = "") -> None:
        self.parts[part] = [*(self.spaces[space].enter if space else ()), *command]
        self._begin(part)

    def _begin(self, part: str) -> None:
        if part == "switch":
            (self.folder / "switch.sock").unlink(missing_ok=True)
        count = self._starts[part] = self._starts.get(part, 0) + 1
        faked = {
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(self.clock),
            "FAKETIME_CACHE_DURATION": "1",
            # Clock jumps must not affect the monotonic clock or the file times.
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }
        self.start(f"{part}-{count}", self.parts[part], env={**os.environ, **faked})

    # Faults

    def process(self, part: str) -> Process:
        """The newest process of a part."""
        return self.processes[f"{part}-{self._starts[part]}"]

    def kill(self, part: str) -> None:
        """kill -9."""
        self.process(part).end(signal.SIGKILL)
        self._down[part] = time.monotonic()

    def mind(self) -> None:
        """Restarts ended parts after a while, as systemd does."""
        now = time.monotonic()
        for part in self.parts:
            if self.process(part).running():
                continue
            if part not in self._down:
                self._down[part] = now
                self.exits.append(part)
            if now - self._down[part] >= BACK_S.get(part.partition("-")[0], 0.2):
                del self._down[part]
                self._begin(part)

    def jump(self, seconds: int) -> None:
        """Sets the wall clock of all parts to differ by this many seconds from the true one."""
        fresh = self.clock.with_suffix(".new")
        fresh.write_text(f"{seconds:+d}\n")
        fresh.replace(self.clock)

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """Fills the disk completely."""
        filler = self.disk / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            for size in (1 << 20, 4096, 1):
                with suppress(OSError):
                    while file.write(b"\0" * size):
                        pass
        try:
            yield
        finally:
            filler.unlink()

    # Queries

    def leader(self) -> tuple[str, Client] | None:
        """The leading controller, if there is one."""
        for name, client in self.doors.items():
            with suppress(ApiError):
                if client.get("/api/leader")["leading"]:
                    return name, client
        return None

    def wrong(self) -> str:
        """The first problem of the rack; empty if it is as described."""
        if down := [part for part in self.parts if not self.process(part).running()]:
            return f"{', '.join(down)}: not running"
        leader = self.leader()
        if leader is None:
            return "nobody leads"
        try:
            found = leader[1].get("/api/status")
        except ApiError as error:
            return str(error)
        bad = [f"{s['name']}: {s['problem'] or 'not connected'}" for s in found["switches"] if not s["connected"]]
        bad += [f"{s['name']}: {s['problem']}" for s in found["switches"] if s["problem"] or not s["clock_valid"]]
        for replica in found["replicas"]:
            well = replica["state"] in ("live", "draining") and replica["agent"] and replica["ready"]
            bad += [] if well else [f"{replica['name']}: {replica['state']} {replica['reason']}"]
        return "; ".join(bad)

    def whole(self, what: str) -> float:
        """Waits until the rack is as described; returns the seconds. RackError if it does not recover."""
        began = time.monotonic()
        while wrong := self.wrong():
            self.mind()
            if time.monotonic() - began > PATIENCE_S:
                raise RackError(f"{what}: not recovered after {PATIENCE_S:g} s: {wrong}")
            time.sleep(0.05)
        return time.monotonic() - began

    def durable(self) -> tuple[bool, str]:
        """Whether the leader's memory equals the store, byte for byte; and what was compared."""
        end = time.monotonic() + 30.0
        while True:
            leader = self.leader()
            told: dict[str, Any] = leader[1].get("/api/state") if leader is not None else {}
            on_disk = State(self._on_disk()).digest()
            if told.get("unsaved") == 0 and told["digest"] == on_disk:
                return True, on_disk[:16]
            # It may have saved between the two readings.
            if time.monotonic() > end:
                return False, f"in memory {told}, on disk {on_disk}"
            time.sleep(0.2)

    def _on_disk(self) -> dict[str, bytes]:
        """Everything in the store, read without the controller."""
        store: Store
        if self.store == "sqlite":
            store = SqliteStore(self.disk / f"{self.controllers[0]}.db")
        else:
            client = EtcdClient(_etcd())
            store = EtcdStore(client, _etcd(), Leadership(client, _etcd(), "chaos"))
        try:
            return dict(store.load())
        finally:
            store.close()

    def down(self) -> None:
        """Also removes the disk."""
        for part in self._starts:
            with suppress(OSError):
                self.process(part).popen.send_signal(signal.SIGCONT)
        super().down()
        # Files of libfaketime that killed processes left; their names end in the process id.
        for left in Path("/dev/shm").glob("*faketime_*"):
            if not Path(f"/proc/{left.name.rpartition('_')[2]}").exists():
                left.unlink(missing_ok=True)
        subprocess.run(["umount", "-l", str(self.disk)], capture_output=True, check=False)


def _etcd() -> Etcd:
    return Etcd(endpoints=(f"http://127.0.0.1:{ETCD_PORT}",), lease=3.0)


@contextmanager
def chaos_rack(spec: RackSpec, folder: Path, store: str) -> Iterator[ChaosRack]:
    """A running rack, in its described state."""
    if not FAKETIME.exists():
        raise RackError("libfaketime is not installed: apt-get install libfaketime")
    if store == "etcd" and shutil.which("etcd") is None:
        raise RackError("etcd is not installed: apt-get install etcd-server")
    if os.geteuid() != 0:
        raise RackError("network namespaces need root: run it with sudo")
    # Leftovers of an earlier run that was killed.
    subprocess.run(["umount", "-l", str(folder / "disk")], capture_output=True, check=False)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "www").mkdir()
    with standing(ChaosRack(spec, folder, store)) as rack:
        rack.build()
        rack.whole("the start")
        yield rack
