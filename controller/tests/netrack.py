"""A rack in network namespaces: a switch, a controller process, three replicas, a client. Root and binaries needed.

Every process is ended by its id, every namespace removed, however the test ends.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rivulet_controller.client import ApiError, Client
from rivulet_controller.config import parse

REPOSITORY = Path(__file__).resolve().parents[2]
ARTIFACTS = REPOSITORY / "p4src" / "build"
TOR_MAC = "02:00:00:00:00:fe"
SERVICE = "10.9.0.1"
OFFLOADS_OFF = ("tx", "off", "rx", "off", "tso", "off", "gso", "off", "gro", "off")
"""veth leaves checksums and segmentation to nobody; the frames here must be whole."""

RATE = "50mbit"
REPLICAS = ("r1", "r2", "r3")


def binary(name: str) -> str | None:
    """A binary of ours or of the system; RIVULET_BIN overrides the folder."""
    folders = [REPOSITORY / "target" / "release", REPOSITORY / "target" / "debug"]
    if "RIVULET_BIN" in os.environ:
        folders = [Path(os.environ["RIVULET_BIN"])]
    return next((str(f / name) for f in folders if (f / name).exists()), shutil.which(name))


SWITCHES = {"bmv2": shutil.which("simple_switch_grpc"), "embedded": binary("rivulet-switch")}
USABLE = os.geteuid() == 0 and binary("rivulet") is not None


class NetRack:
    """The rack. `folder` holds sockets, logs and the served file."""

    def __init__(self, folder: Path, switch: str, **keys: str) -> None:
        self.folder = folder
        self.switch = switch
        self.prefix = f"rvc{os.getpid() % 10000}"
        # BMv2's heartbeats are as slow as docs/dataplane.md says.
        self.liveness_ms = 200 if switch == "bmv2" else 100
        self.keys = keys
        self.agents = f"unix:{folder}/agents.sock"
        self.own_agents: set[str] = set()
        """Replicas whose agent is a process of its own."""
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.client = Client(f"unix:{folder}/api.sock", timeout_s=10.0)
        self.file = folder / "files" / "big"

    # Building

    def build(self, megabytes: int) -> None:
        """Namespaces and links, the file, all processes; returns when every replica is live."""
        self.file.parent.mkdir()
        # A copy, so that a program compiled meanwhile does not come into a test half way.
        shutil.copytree(ARTIFACTS, self.folder / "p4")
        self.file.write_bytes(os.urandom(megabytes << 20))
        (self.folder / "rack.yaml").write_text(self.description())
        parse(self.description())
        _ip("netns", "add", self.space("tor"))
        self._host("c1", 1, "10.0.1.1", "02:00:00:00:01:01")
        # Towards the client no faster than this, so that a download lasts while things are killed.
        shape = ("rate", RATE, "burst", "64k", "latency", "50ms")
        self.inside("tor", "tc", "qdisc", "add", "dev", "v1", "root", "tbf", *shape)
        for number, name in enumerate(REPLICAS, 1):
            self._host(name, 100 + number, f"10.0.2.{number}", f"02:00:00:00:02:{number:02x}")
            self.inside(name, "ip", "addr", "add", f"{SERVICE}/32", "dev", "lo")
            self.inside(name, "sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=1", "net.ipv4.conf.all.arp_announce=2")
        self.start_switch()
        self.start_controller()
        for name in REPLICAS:
            self.start_replica(name)
        self.until(self.all_live, "every replica is live", 240.0)

    def description(self) -> str:
        """The YAML."""
        keys = json.dumps(self.keys)
        replicas = [
            {"name": name, "switch": "tor1", "port": 100 + n, "mac": f"02:00:00:00:02:{n:02x}", "ip": f"10.0.2.{n}"}
            for n, name in enumerate(REPLICAS, 1)
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
    heartbeat: {self.liveness_ms / 10:g}ms
    liveness: {self.liveness_ms}ms
keys: {keys}
listen: {{agents: "unix:{self.folder}/agents.sock", api: "unix:{self.folder}/api.sock"}}
state: {self.folder}/state.db
"""

    def space(self, name: str) -> str:
        """The namespace of a host."""
        return f"{self.prefix}{name}"

    def inside(self, name: str, *command: str) -> None:
        """A command in a host's namespace that must succeed."""
        _run("ip", "netns", "exec", self.space(name), *command)

    def _host(self, name: str, port: int, ip: str, mac: str) -> None:
        space, device = self.space(name), f"{name}-eth0"
        _ip("netns", "add", space)
        _ip("-n", self.space("tor"), "link", "add", f"v{port}", "type", "veth", "peer", "name", device, "netns", space)
        for where, what in ((name, device), ("tor", f"v{port}")):
            self.inside(where, "ethtool", "-K", what, *OFFLOADS_OFF)
            self.inside(where, "sysctl", "-qw", f"net.ipv6.conf.{what}.disable_ipv6=1")
            self.inside(where, "ip", "link", "set", what, "up")
        self.inside(name, "ip", "link", "set", "lo", "up")
        self.inside(name, "ip", "link", "set", device, "address", mac)
        self.inside(name, "ip", "addr", "add", f"{ip}/24", "dev", device)
        self.inside(name, "ip", "route", "add", "default", "via", ip.rsplit(".", 1)[0] + ".254")

    # Processes

    def start(self, name: str, command: list[str], space: str | None = None) -> None:
        """Starts a process with a log of its own."""
        if space is not None:
            command = ["ip", "netns", "exec", self.space(space), *command]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def start_switch(self) -> None:
        """The switch, with a port to every host."""
        program = SWITCHES[self.switch]
        assert program is not None
        (self.folder / "p4rt.sock").unlink(missing_ok=True)
        ports = [part for port in (1, 101, 102, 103) for part in ("-i", f"{port}@v{port}")]
        flags = ["--", "--cpu-port", "510", "--drop-port", "511", "--grpc-server-addr", f"unix:{self.folder}/p4rt.sock"]
        self.start("switch", [program, "--no-p4", "--device-id", "1", *ports, *flags], "tor")

    def start_controller(self) -> None:
        """The controller, as a process."""
        self.start("controller", [sys.executable, "-m", "rivulet_controller.daemon", str(self.folder / "rack.yaml")])

    def start_replica(self, name: str) -> None:
        """A replica with agent and file server."""
        program = binary("rivulet")
        assert program is not None
        agents = f"unix:{self.folder}/{name}.agent" if name in self.own_agents else self.agents
        serve = [program, "serve", "-i", f"{name}-eth0", "--controller", agents, "--name", name]
        self.start(name, [*serve, str(self.file.parent)], name)

    def start_agent(self, name: str) -> None:
        """A replica's agent as a process of its own, called `agent NAME`; its file server attaches to it."""
        program = binary("rivulet")
        assert program is not None
        self.own_agents.add(name)
        where = ["--socket", f"{self.folder}/{name}.agent", "-i", f"{name}-eth0"]
        self.start(f"agent {name}", [program, "agent", "--name", name, "--controller", self.agents, *where], name)

    def end(self, name: str, how: int = signal.SIGKILL) -> None:
        """Ends a process by its id and waits for it."""
        process = self.processes.pop(name)
        process.send_signal(how)
        process.wait(60)

    def down(self) -> None:
        """Ends everything and removes every namespace."""
        for name in list(self.processes):
            self.end(name)
        for name in ("tor", "c1", *REPLICAS):
            subprocess.run(["ip", "netns", "del", self.space(name)], check=False, capture_output=True)

    # What tests ask

    def download(self) -> subprocess.Popen[bytes]:
        """A Rivulet download of the file to folder/out, under way."""
        program = binary("rivulet")
        assert program is not None
        out = self.folder / "out"
        out.unlink(missing_ok=True)
        command = [program, "get", "--json", "-o", str(out), f"http://{SERVICE}/big"]
        return subprocess.Popen(
            ["ip", "netns", "exec", self.space("c1"), *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def finish(self, download: subprocess.Popen[bytes], patience_s: float = 120.0) -> dict[str, Any]:
        """Waits for a download: it must have come over one Rivulet connection, byte for byte."""
        stdout, stderr = download.communicate(timeout=patience_s)
        result = json.loads(stdout or b"{}")
        assert result.get("ok"), f"{result.get('error')}: {stderr.decode()}"
        assert result["transport"] == "rivulet"
        assert (self.folder / "out").read_bytes() == self.file.read_bytes(), "the file came damaged"
        return dict(result)

    def status(self) -> dict[str, Any]:
        """The controller's snapshot; empty while it does not answer."""
        try:
            return dict(self.client.get("/api/status"))
        except ApiError:
            return {}

    def look(self) -> None:
        """Waits until the switch's counters were read anew: twice, since one reading may be under way."""
        for _ in range(2):
            before = self._last_look()
            self.until(lambda: self._last_look() > before, "the counters are read")  # noqa: B023

    def _last_look(self) -> float:
        return float((self.status().get("history") or [{"time": 0.0}])[-1]["time"])

    def exclusions(self) -> int:
        """How often the switch excluded a replica so far."""
        self.look()
        return sum(r["exclusions"] for r in self.status()["replicas"])

    def all_live(self) -> bool:
        """Whether the switch is as described and every replica is live and says that it is ready."""
        found = self.status()
        live = bool(found) and all(r["state"] == "live" and r["agent"] and r["ready"] for r in found["replicas"])
        return live and self.as_described()

    def as_described(self) -> bool:
        """Whether the switch is connected, has its clock, and a plan of the file changes nothing."""
        found = self.status()
        if not found or not all(s["connected"] and s["clock_valid"] and not s["problem"] for s in found["switches"]):
            return False
        try:
            return bool(self.client.post("/api/plan", text=(self.folder / "rack.yaml").read_text()) == {"tor1": []})
        except ApiError:
            return False

    def until(self, condition: Callable[[], bool], what: str, patience_s: float = 90.0) -> float:
        """Waits for a condition; how long it took, seconds."""
        began = time.monotonic()
        while not condition():
            for name, process in self.processes.items():
                assert process.poll() is None, f"{name} ended:\n{self.log(name)}"
            if time.monotonic() - began > patience_s:
                logs = "\n".join(f"{name}: {self.log(name)}" for name in self.processes)
                raise AssertionError(f"not within {patience_s:g} s: {what}\n{self.status()}\n{logs}")
            time.sleep(0.02)
        return time.monotonic() - began

    def log(self, name: str, lines: int = 8) -> str:
        """The end of a process's log."""
        return "\n".join((self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-lines:])


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr or done.stdout}"


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


__all__ = ["REPLICAS", "SWITCHES", "USABLE", "NetRack"]
