"""A rack of the packages' units, under load, for an upgrade."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from machine import REPOSITORY, Machine

SERVICE = "10.9.2.1"
SITE = "10.9.3.1"
"""Address of the site of a web server with an agent beside it."""
NEXT = "+1"
"""Suffix of the next version."""

UNITS = ("rivulet-replica", "rivulet-agent", "rivulet-switch", "rivulet-controller")
"""Units in the order in which an upgrade restarts them."""

RATE = "24mbit"
BYTES = 12_000_000
"""A download takes some seconds, so that one is in progress at every restart."""

RACK = f"""\
switches:
  - name: tor2
    address: 127.0.0.1:9560
    number: 2
    mac: "02:00:00:00:01:fe"
    addresses: [10.1.1.254, 10.1.2.254]
    ports: [1, 101, 102, 103]
    hosts: [{{ip: 10.1.1.1, mac: "02:00:00:01:01:01", port: 1}}]
replicas:
  - {{name: r1, switch: tor2, port: 101, mac: "02:00:00:01:02:01", ip: 10.1.2.1}}
  - {{name: r2, switch: tor2, port: 102, mac: "02:00:00:01:02:02", ip: 10.1.2.2}}
  - {{name: r3, switch: tor2, port: 103, mac: "02:00:00:01:02:03", ip: 10.1.2.3}}
services:
  - {{name: files, addresses: [{SERVICE}], port: 80, replicas: [r1, r2], heartbeat: 20ms, liveness: 500ms}}
  - {{name: site, addresses: [{SITE}], port: 80, replicas: [r3], heartbeat: 20ms, liveness: 500ms}}
listen: {{agents: "unix:/run/rivulet/agents.sock", agents_group: rivulet-agents,
  agents_users: {{rivulet-replica: [r1, r3]}}, api: "127.0.0.1:8081",
  control: "unix:/run/rivulet/control.sock"}}
"""

REPLICA = """\
DIRECTORY=/srv/upgraded
INTERFACE=eth0
CONTROLLER=unix:/run/rivulet/agents.sock
NAME=r1
MORE=
"""

AGENT = """\
INTERFACE=eth0
CONTROLLER=unix:/run/rivulet/agents.sock
NAME=r3
MORE=--health-path /
"""

SWITCH = """\
DEVICE_ID=1
INTERFACES="-i 1@u1 -i 101@u101 -i 102@u102 -i 103@u103"
P4RUNTIME=127.0.0.1:9560
"""


def next_version(packages: Path, folder: Path) -> Path:
    """Copies of the packages with a higher version."""
    out = packages / "next"
    out.mkdir()
    for package in packages.glob("*.deb"):
        tree = folder / package.stem
        subprocess.run(["dpkg-deb", "-R", str(package), str(tree)], check=True)
        control = tree / "DEBIAN" / "control"
        said = control.read_text()
        version = said.partition("Version: ")[2].splitlines()[0]
        # The controller's package depends on the other package of the same version.
        control.write_text(
            said.replace(f"Version: {version}", f"Version: {version}{NEXT}").replace(
                f"(= {version})", f"(= {version}{NEXT})"
            )
        )
        made = ["dpkg-deb", "--root-owner-group", "-Znone", "-b", str(tree), str(out / package.name)]
        subprocess.run(made, check=True, capture_output=True)
    return out


@dataclass(frozen=True)
class Download:
    """Start and end (monotonic seconds) of a download, and its problem."""

    began: float
    ended: float
    problem: str


class UpgradeRack:
    """Switch, controller, r1 and r3's agent are units; r2 stands for another machine, which keeps its version."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def build(self) -> None:
        """Makes namespaces, files and units; returns when both replicas are live."""
        m = self.machine
        for host, port, address, mac in (
            ("u-c1", 1, "10.1.1.1", "01:01"), ("u-r1", 101, "10.1.2.1", "02:01"), ("u-r2", 102, "10.1.2.2", "02:02"),
            ("u-r3", 103, "10.1.2.3", "02:03"),
        ):  # fmt: skip
            m.host(host, f"u{port}", address, f"02:00:00:01:{mac}")
        for host, address in (("u-r1", SERVICE), ("u-r2", SERVICE), ("u-r3", SITE)):
            m.do("ip", "addr", "add", f"{address}/32", "dev", "lo", space=host)
        m.do(*f"tc qdisc add dev u1 root tbf rate {RATE} burst 65536 limit 400000".split())
        m.do("mkdir", "-p", "/srv/upgraded", "/run/systemd/system", "/run/stand-in")
        m.do("sh", "-c", f"head -c {BYTES} /dev/urandom >/srv/upgraded/some")
        self._write("/etc/rivulet/rack.yaml", RACK)
        self._write("/etc/rivulet/replica.env", REPLICA)
        self._write("/etc/rivulet/switch.env", SWITCH)
        self._write("/etc/rivulet/agent.env", AGENT)
        for unit, host in (("replica", "u-r1"), ("agent", "u-r3")):
            self._write(
                f"/etc/systemd/system/rivulet-{unit}.service.d/lab.conf",
                f"[Service]\nNetworkNamespacePath=/run/netns/{host}\n",
            )
        m.start("python3", "-m", "http.server", "80", "--directory", "/srv/upgraded", space="u-r3")
        self._write("/usr/bin/systemctl", (REPOSITORY / "packaging/tests/systemctl.py").read_text(), "755")
        for unit in ("rivulet-switch", "rivulet-controller", "rivulet-replica", "rivulet-agent"):
            m.do("systemctl", "start", unit)
        serve = ("rivulet", "serve", "/srv/upgraded", "-i", "eth0", "--name", "r2")
        m.start(*serve, "--controller", "unix:/run/rivulet/agents.sock", space="u-r2")
        m.until(lambda: m.run("rivuletctl", "replicas").stdout.count(" live ") == 3, "the replicas are live")
        m.do("rm", "/run/stand-in/order")

    def upgrade(self, packages: Path) -> None:
        """Upgrades both packages as `apt-get install` does."""
        debs = [f"/srv/packages/{packages.name}/{package.name}" for package in sorted(packages.glob("*.deb"))]
        assert len(debs) == 2
        self.machine.do("dpkg", "-i", *debs)

    def order(self) -> list[tuple[float, str, str, str]]:
        """Starts and stops: time, unit, action, and whether the switch was as described."""
        lines = [line.split() for line in self.machine.do("cat", "/run/stand-in/order").splitlines()]
        return [(float(at), unit.removesuffix(".service"), what, how) for at, unit, what, how in lines]

    def processes(self) -> dict[str, int]:
        """Each unit's process id; 0 if it does not run."""
        found = {}
        for unit in UNITS:
            pid = self.machine.run("cat", f"/run/stand-in/{unit}.service.pid").stdout.strip()
            running = self.machine.run("systemctl", "is-active", unit).returncode == 0
            found[unit] = int(pid) if running else 0
        return found

    @contextmanager
    def downloads(self) -> Iterator[list[Download]]:
        """Runs two threads of consecutive downloads during the block; none starts after it."""
        done: list[Download] = []
        ending = threading.Event()

        def work(number: int) -> None:
            while not ending.is_set():
                done.append(self._download(f"/tmp/upgraded-{number}"))

        workers = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        for worker in workers:
            worker.start()
        try:
            yield done
        finally:
            ending.set()
            for worker in workers:
                worker.join(180)

    def _download(self, out: str) -> Download:
        began = time.monotonic()
        try:
            got = self.machine.run("rivulet", "get", "--json", "-o", out, f"http://{SERVICE}/some", space="u-c1")
            ended = time.monotonic()
            result = json.loads(got.stdout or "{}")
            if got.returncode or not result.get("ok") or result["transport"] != "rivulet":
                return Download(began, ended, f"{got.returncode}: {got.stdout}{got.stderr}")
            same = self.machine.run("cmp", out, "/srv/upgraded/some")
            return Download(began, ended, same.stdout + same.stderr)
        except (subprocess.TimeoutExpired, ValueError) as error:
            return Download(began, time.monotonic(), repr(error))

    def end(self) -> None:
        """Stops the units; r2 ends with the machine."""
        self.machine.do("systemctl", "stop", *UNITS)

    def _write(self, path: str, text: str, mode: str = "644") -> None:
        """Writes a file in the machine's mount namespace."""
        self.machine.do("install", "-D", "-m", mode, "/dev/null", path)
        self.machine.do("sh", "-c", 'printf %s "$2" >"$1"', "sh", path, text)
