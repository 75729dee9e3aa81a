"""A rack in network namespaces: switch, controller process, three replicas, client. Needs root and
built binaries.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rivulet_controller.client import ApiError, Client
from rivulet_controller.rack_file import parse
from rivulet_lab import REPOSITORY, End, Lab, Process, RackError, binary, shape, switches, veth

ARTIFACTS = REPOSITORY / "p4src" / "build"
TOR_MAC = "02:00:00:00:00:fe"
SERVICE = "10.9.0.1"
RATE_MBIT = 20.0
REPLICAS = ("r1", "r2", "r3")
MEGABYTES = int(os.environ.get("RIVULET_SYSTEM_MB", "6"))
LIVENESS_MS = 2000
"""Liveness of the rack's services: long, so that a busy machine excludes no replica; no test here
measures it."""

SWITCHES = switches.installed()
needs_rack = pytest.mark.rack
"""Marks tests that need a rack; skipped where none can be built."""


class NetRack(Lab):
    """The rack. `folder` has its sockets, logs and the served file."""

    replicas = REPLICAS

    def __init__(self, folder: Path, switch: str, **keys: str) -> None:
        super().__init__(folder)
        self.switch = switch
        self.keys = keys
        self.agents = f"unix:{folder}/agents.sock"
        self.own_agents: set[str] = set()
        """Replicas with an agent in a separate process."""
        self.directories: dict[str, Path] = {}
        """Paths that replicas serve, for those that do not serve `file` and its neighbours."""
        self.client = Client(f"unix:{folder}/api.sock", timeout_s=10.0)
        self.file = folder / "files" / "big"
        self.yaml = folder / "rack.yaml"

    # Building

    def build(self, megabytes: int) -> None:
        """Creates namespaces, links, the file and all processes; returns when every replica is
        live.
        """
        self.file.parent.mkdir(parents=True)
        # A copy, so that a compilation during the test does not change the program.
        shutil.copytree(ARTIFACTS, self.folder / "p4")
        self.file.write_bytes(os.urandom(megabytes << 20))
        (self.file.parent / "small").write_bytes(b"small")
        self.yaml.write_text(self.description())
        parse(self.description())
        self.lay()
        for name in self.replicas:
            self.spaces[name].serve_at(SERVICE)
        self.start_switch()
        self.start_controller()
        for name in self.replicas:
            self.start_replica(name)
        self.until(self.all_live, "every replica is live", 240.0)

    def lay(self) -> None:
        """Creates the namespaces and links."""
        self.namespace("tor")
        self.host("c1", 1, "10.0.1.1", "02:00:00:00:01:01")
        # Limits the rate towards the client, so that a download lasts long enough for kills.
        shape(self.spaces["tor"], "v1", RATE_MBIT)
        for number, name in enumerate(self.replicas, 1):
            self.host(name, 100 + number, f"10.0.2.{number}", f"02:00:00:00:02:{number:02x}")

    def description(self) -> str:
        """The configuration as YAML."""
        keys = json.dumps(self.keys)
        replicas = [
            {"name": name, "switch": "tor1", "port": 100 + n, "mac": f"02:00:00:00:02:{n:02x}", "ip": f"10.0.2.{n}"}
            for n, name in enumerate(self.replicas, 1)
        ]
        return f"""\
switches:
  - name: tor1
    address: unix:{self.folder}/p4rt.sock
    number: 1
    pipeline: {self.folder}/p4
    mac: "{TOR_MAC}"
    addresses: [10.0.1.254, 10.0.2.254]
    ports: [1, 101, 102, 103]
    hosts: [{{ip: 10.0.1.1, mac: "02:00:00:00:01:01", port: 1}}]
replicas: {json.dumps(replicas)}
services:
  - name: files
    addresses: [{SERVICE}]
    port: 80
    replicas: [r1, r2, r3]
    heartbeat: {LIVENESS_MS / 10:g}ms
    liveness: {LIVENESS_MS}ms
keys: {keys}
listen: {{agents: "unix:{self.folder}/agents.sock", api: "unix:{self.folder}/api.sock"}}
state: {self.folder}/state.db
"""

    def host(self, name: str, port: int, ip: str, mac: str, tor: str = "tor") -> None:
        """Adds a host at a port of a ToR, with an address and a route to all others."""
        space, device = self.namespace(name), f"{name}-eth0"
        veth(End(self.spaces[tor], f"v{port}"), End(space, device, mac=mac))
        self.address(name, device, ip)

    def address(self, name: str, device: str, ip: str) -> None:
        """Gives a host its address, and a default route through its ToR."""
        gateway = ip.rsplit(".", 1)[0] + ".254"
        self.spaces[name].ip(f"addr add {ip}/24 dev {device}", f"route add default via {gateway}")

    # Processes

    def start_switch(self) -> None:
        """Starts the switch with a port to every host."""
        (self.folder / "p4rt.sock").unlink(missing_ok=True)
        ports = {port: f"v{port}" for port in (1, 101, 102, 103)}
        grpc = f"unix:{self.folder}/p4rt.sock"
        self.start("switch", switches.command(self.switch, ports, grpc), self.spaces["tor"])

    def start_controller(self) -> None:
        """Starts the controller process."""
        self.start("controller", [sys.executable, "-m", "rivulet_controller.daemon", str(self.yaml)])

    def start_replica(self, name: str) -> None:
        """Starts a replica with agent and file server."""
        agents = f"unix:{self.folder}/{name}.agent" if name in self.own_agents else self.agents
        serve = [binary("rivulet"), "serve", "-i", f"{name}-eth0", "--controller", agents, "--name", name]
        self.start(name, [*serve, str(self.directories.get(name, self.file.parent))], self.spaces[name])

    def start_agent(self, name: str) -> None:
        """Starts a replica's agent as a separate process `agent NAME`, to which its file server
        attaches.
        """
        self.own_agents.add(name)
        where = ["--socket", f"{self.folder}/{name}.agent", "-i", f"{name}-eth0"]
        agent = [binary("rivulet"), "agent", "--name", name, "--controller", self.agents, *where]
        self.start(f"agent {name}", agent, self.spaces[name])

    # Helpers for tests

    def download(self, name: str = "out") -> Process:
        """Starts a Rivulet download of the file to folder/NAME."""
        out = self.folder / name
        out.unlink(missing_ok=True)
        out.with_suffix(".part").unlink(missing_ok=True)
        command = [binary("rivulet"), "get", "--json", "-o", str(out), f"http://{SERVICE}/big"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return self.start(f"download {name}", command, self.spaces["c1"], **pipes)

    def under_way(self) -> Process:
        """A download that has received data and still runs."""
        download, part = self.download(), self.folder / "out.part"
        self.until(lambda: part.exists() and part.stat().st_size > 0, "it begins")
        assert download.running(), "the download must still run"
        return download

    def finish(self, download: Process, patience_s: float = 120.0, name: str = "out") -> dict[str, Any]:
        """Waits for a download to folder/NAME, which must be complete and correct over one Rivulet
        connection.
        """
        result = dict(json.loads(download.output(patience_s)))
        assert result.get("ok"), result
        assert result["transport"] == "rivulet"
        assert (self.folder / name).read_bytes() == self.file.read_bytes(), "the file came damaged"
        return result

    @staticmethod
    def curl(file: str, *more: str) -> list[str]:
        """The command of a plain TCP client."""
        return ["curl", "-sS", "--fail", "--max-time", "60", *more, f"http://{SERVICE}/{file}"]

    def accepted(self) -> dict[str, int]:
        """Connections that each replica's kernel has accepted since its namespace exists."""
        return {name: self.spaces[name].tcp("PassiveOpens") for name in self.replicas}

    def status(self) -> dict[str, Any]:
        """The controller's snapshot; empty while it does not answer."""
        try:
            return dict(self.client.get("/api/status"))
        except ApiError:
            return {}

    def replica(self, name: str) -> dict[str, Any]:
        """A replica in the controller's snapshot; empty while it does not answer."""
        return next((r for r in self.status().get("replicas", ()) if r["name"] == name), {})

    def look(self) -> None:
        """Waits for two readings of the switch's counters, since the first may have begun before
        the call.
        """
        for _ in range(2):
            before = self._last_look()
            self.until(lambda: self._last_look() > before, "the counters are read")  # noqa: B023

    def _last_look(self) -> float:
        return float((self.status().get("history") or [{"time": 0.0}])[-1]["time"])

    def exclusions(self) -> int:
        """How many times the switch has excluded a replica."""
        self.look()
        return sum(r["exclusions"] for r in self.status()["replicas"])

    def plain(self) -> str:
        """The mode of plain TCP as shown; empty while the controller does not answer."""
        try:
            return str(self.client.get("/api/services")[0]["plain"])
        except ApiError:
            return ""

    def all_live(self) -> bool:
        """Whether the switch has its entries and every replica is live and reports ready."""
        found = self.status()
        live = bool(found) and all(r["state"] == "live" and r["agent"] and r["ready"] for r in found["replicas"])
        return live and self.as_described()

    def take_plain_tcp(self) -> bool:
        """Whether the controller has allowed plain TCP for every replica."""
        return all(r["readmitted"] for r in self.status()["replicas"])

    def as_described(self) -> bool:
        """Whether every switch is connected, has its clock, and a plan of the file is empty."""
        found = self.status()
        if not found or not all(s["connected"] and s["clock_valid"] and not s["problem"] for s in found["switches"]):
            return False
        try:
            plan = self.client.post("/api/plan", text=self.yaml.read_text())
        except ApiError:
            return False
        return bool(plan == {s["name"]: [] for s in found["switches"]})

    def until(self, condition: Callable[[], bool], what: str, patience_s: float = 90.0, *watched: Process) -> float:
        """Waits for a condition while every part of the rack runs; returns the seconds that it
        took.
        """
        # Processes with piped output are clients, which may end.
        parts = [process for process in self.processes.values() if process.log is not None]
        try:
            return super().until(condition, what, patience_s, *parts, *watched)
        except RackError as error:
            raise RackError(f"{error}\n{self.status()}") from None

    def log(self, name: str) -> str:
        """The log of a process since its first start."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def restore(self) -> None:
        """Restores the rack as it was built: every process runs, with the original configuration
        and files.
        """
        if self.yaml.read_text() != self.description():
            self.yaml.write_text(self.description())
        for name in list(self.own_agents):
            self.own_agents.remove(name)
            for part in (name, f"agent {name}"):
                if part in self.processes:
                    self.end(part)
        missing = {"switch": self.start_switch, "controller": self.start_controller}
        missing |= {name: lambda name=name: self.start_replica(name) for name in self.replicas}
        for name, start in missing.items():
            if name not in self.processes or not self.processes[name].running():
                start()
        self.until(lambda: bool(self.status()), "the controller answers")
        if self.plain() != "kernel":
            # Connections of another mode would last for minutes and disturb the next test.
            self.yaml.write_text(self.description().replace("    port: 80\n", "    port: 80\n    plain_drain: 1s\n"))
            self.until(lambda: self.plain() == "kernel", "plain TCP is the kernel's alone")
            self.yaml.write_text(self.description())
        for replica in self.status()["replicas"]:
            if replica["draining"]:
                self.client.post(f"/api/replicas/{replica['name']}/undrain")
            self.client.post(f"/api/replicas/{replica['name']}/weight", {"weight": None})
        self.until(self.all_live, "every replica is live again")


class Racks:
    """One shared rack for each kind of switch, built when it is first requested."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._standing: dict[str, NetRack] = {}
        self._number = itertools.count()

    @contextmanager
    def lent(self, switch: str) -> Iterator[NetRack]:
        """Yields the rack with this switch, restored as it was built."""
        rack = self._standing.pop(switch, None)
        if rack is None:
            rack = NetRack(self.folder / f"{switch}-{next(self._number)}", switch)
            try:
                rack.build(MEGABYTES)
            except BaseException:
                rack.down()
                raise
        assert rack.yaml.read_text() == rack.description()
        # A busy machine can delay heartbeats.
        rack.until(rack.all_live, "all replicas live after the test", 60.0)
        try:
            yield rack
            rack.restore()
        except BaseException:
            # The next test gets a new rack.
            rack.down()
            raise
        self._standing[switch] = rack

    def down(self) -> None:
        """Takes all racks down."""
        while self._standing:
            self._standing.popitem()[1].down()
