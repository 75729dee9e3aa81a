"""Two racks, each with its ToR: a connection that enters by one is served by replicas of both, through a tunnel."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from netrack import ARTIFACTS, SERVICE, SWITCHES, USABLE, NetRack
from test_drain import curl

from rivulet_controller.client import ApiError
from rivulet_controller.config import parse

pytestmark = [pytest.mark.skipif(not USABLE, reason="needs root and the rivulet binary (make build)")]

FAR_MAC = "02:00:00:00:00:fd"
LINK = 200
"""The port of each ToR towards the other."""


class TwoRacks(NetRack):
    """The client and r1 at tor1, r2 at tor2, and a link between the ToRs, which route."""

    def __init__(self, folder: Path, switch: str, tunnel: str, outer: int) -> None:
        super().__init__(folder, switch)
        self.tunnel = tunnel
        self.outer = outer
        """IP version of the outer headers; the service is of IPv4."""
        # Nobody shall be excluded because this machine is busy: a plain flow ends with its replica.
        self.liveness_ms = 2000

    def build(self, megabytes: int) -> None:
        """As of one rack."""
        self.file.parent.mkdir()
        shutil.copytree(ARTIFACTS, self.folder / "p4")
        self.file.write_bytes(bytes(range(256)) * (megabytes << 12))
        (self.folder / "rack.yaml").write_text(self.description())
        parse(self.description())
        for tor in ("tor", "far"):
            subprocess.run(["ip", "netns", "add", self.space(tor)], check=True)
        self._host("c1", 1, "10.0.1.1", "02:00:00:00:01:01")
        self._host("r1", 101, "10.0.2.1", "02:00:00:00:02:01")
        # _host puts the switch's end of the wire into tor1's namespace.
        self._host("r2", 102, "10.0.3.2", "02:00:00:00:03:02")
        self.inside("tor", "ip", "link", "set", "v102", "netns", self.space("far"))
        self.inside("far", "ip", "link", "set", "v102", "up")
        self.inside(
            "tor",
            "ip",
            "link",
            "add",
            f"v{LINK}",
            "type",
            "veth",
            "peer",
            "name",
            f"v{LINK}",
            "netns",
            self.space("far"),
        )
        for tor in ("tor", "far"):
            self.inside(
                tor, "ethtool", "-K", f"v{LINK}", "tx", "off", "rx", "off", "tso", "off", "gso", "off", "gro", "off"
            )
            self.inside(tor, "sysctl", "-qw", f"net.ipv6.conf.v{LINK}.disable_ipv6=1")
            self.inside(tor, "ip", "link", "set", f"v{LINK}", "up")
        shape = ("rate", "20mbit", "burst", "64k", "latency", "50ms")
        self.inside("tor", "tc", "qdisc", "add", "dev", "v1", "root", "tbf", *shape)
        if self.outer == 6:
            self._six("r1", "fd00:2::1", "fd00:2::fe")
            self._six("r2", "fd00:3::2", "fd00:3::fe")
        for name in ("r1", "r2"):
            self.inside(name, "ip", "addr", "add", f"{SERVICE}/32", "dev", "lo")
            self.inside(name, "sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=1", "net.ipv4.conf.all.arp_announce=2")
        self.start_switch()
        self.start_controller()
        for name in ("r1", "r2"):
            self.start_replica(name)
        self.until(self.all_live, "every replica is live at both ToRs", 240.0)

    def _six(self, name: str, ip: str, gateway: str) -> None:
        """A host's IPv6 address beside its other one."""
        device = f"{name}-eth0"
        for setting in ("disable_ipv6=0", "accept_dad=0", "accept_ra=0"):
            self.inside(name, "sysctl", "-qw", f"net.ipv6.conf.{device}.{setting}")
        self.inside(name, "ip", "addr", "add", f"{ip}/64", "dev", device, "nodad")
        self.inside(name, "ip", "-6", "route", "add", "default", "via", gateway)

    def description(self) -> str:
        """The YAML."""
        near: dict[str, Any] = {
            "name": "tor1", "address": f"unix:{self.folder}/p4rt.sock", "number": 1, "pipeline": f"{self.folder}/p4",
            "mac": "02:00:00:00:00:fe", "addresses": ["10.0.1.254", "10.0.2.254"], "ports": [1, 101, LINK],
            "hosts": [
                {"ip": "10.0.1.1", "mac": "02:00:00:00:01:01", "port": 1},
                {"ip": "10.0.3.254", "mac": FAR_MAC, "port": LINK},
            ],
            "routes": [{"prefix": "10.0.3.0/24", "via": "10.0.3.254"}],
        }  # fmt: skip
        far: dict[str, Any] = {
            "name": "tor2", "address": f"unix:{self.folder}/far.sock", "number": 2, "pipeline": f"{self.folder}/p4",
            "mac": FAR_MAC, "addresses": ["10.0.3.254"], "ports": [102, LINK],
            "hosts": [{"ip": "10.0.1.254", "mac": "02:00:00:00:00:fe", "port": LINK}],
            "routes": [{"prefix": prefix, "via": "10.0.1.254"} for prefix in ("10.0.1.0/24", "10.0.2.0/24")],
        }  # fmt: skip
        replicas: list[dict[str, Any]] = [
            {"name": "r1", "switch": "tor1", "port": 101, "mac": "02:00:00:00:02:01", "ip": "10.0.2.1"},
            {"name": "r2", "switch": "tor2", "port": 102, "mac": "02:00:00:00:03:02", "ip": "10.0.3.2"},
        ]
        if self.outer == 6:
            near["addresses"] += ["fd00:1::fe", "fd00:2::fe"]
            near["hosts"].append({"ip": "fd00:3::fe", "mac": FAR_MAC, "port": LINK})
            near["routes"].append({"prefix": "fd00:3::/64", "via": "fd00:3::fe"})
            far["addresses"].append("fd00:3::fe")
            far["hosts"].append({"ip": "fd00:1::fe", "mac": "02:00:00:00:00:fe", "port": LINK})
            far["routes"] += [{"prefix": prefix, "via": "fd00:1::fe"} for prefix in ("fd00:1::/64", "fd00:2::/64")]
            replicas[0]["ip"], replicas[1]["ip"] = "fd00:2::1", "fd00:3::2"
        service = {
            "name": "files", "addresses": [SERVICE], "port": 80, "replicas": ["r1", "r2"], "policy": "round_robin",
            "heartbeat": self.liveness_ms / 10000, "liveness": self.liveness_ms / 1000,
        }  # fmt: skip
        for replica in replicas:
            replica["tunnel"] = self.tunnel
        listen = {"agents": f"unix:{self.folder}/agents.sock", "api": f"unix:{self.folder}/api.sock"}
        return json.dumps(
            {
                "switches": [near, far], "replicas": replicas, "services": [service], "keys": self.keys,
                "listen": listen, "state": f"{self.folder}/state.db",
            }
        )  # fmt: skip

    def start_switch(self) -> None:
        """Both ToRs."""
        program = SWITCHES[self.switch]
        assert program is not None
        for name, space, ports, door in (
            ("switch", "tor", (1, 101, LINK), "p4rt"),
            ("far switch", "far", (102, LINK), "far"),
        ):
            given = [part for port in ports for part in ("-i", f"{port}@v{port}")]
            flags = ["--cpu-port", "510", "--drop-port", "511", "--grpc-server-addr", f"unix:{self.folder}/{door}.sock"]
            self.start(name, [program, "--no-p4", "--device-id", "1", *given, "--", *flags], space)

    def as_described(self) -> bool:
        """Whether both switches are connected, have their clocks, and a plan of the file changes nothing."""
        found = self.status()
        if not found or not all(s["connected"] and s["clock_valid"] and not s["problem"] for s in found["switches"]):
            return False
        try:
            plan = self.client.post("/api/plan", text=(self.folder / "rack.yaml").read_text())
        except ApiError:
            return False
        return bool(plan == {"tor1": [], "tor2": []})

    def down(self) -> None:
        """And the other ToR."""
        super().down()
        subprocess.run(["ip", "netns", "del", self.space("far")], check=False, capture_output=True)

    def served(self) -> dict[str, int]:
        """Requests that each replica answered."""
        return {r["name"]: r["requests_total"] for r in self.status().get("replicas", ())}

    def serve_since(self, before: dict[str, int]) -> bool:
        """Whether both have answered more."""
        now = self.served()
        return len(now) == 2 and all(count > before.get(name, 0) for name, count in now.items())


WANTED = [
    ("embedded", "ip_in_ip", 4),
    ("embedded", "gue", 4),
    ("bmv2", "gue", 4),
    ("embedded", "ip_in_ip", 6),
    ("embedded", "gue", 6),
]


def named(wanted: tuple[str, str, int]) -> str:
    """What the test with it is called."""
    return "-".join(map(str, wanted))


@pytest.fixture(params=[wanted for wanted in WANTED if SWITCHES[wanted[0]]], ids=named)
def racks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TwoRacks]:
    switch, tunnel, outer = request.param
    built = TwoRacks(tmp_path, switch, tunnel, outer)
    try:
        built.build(8)
        yield built
    finally:
        built.down()


STRAYS = 16
"""With half of the flows each, all would go to one replica once in 32,768 times."""
REFUSED = f"""
import socket, sys, time
wire = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
wire.setblocking(False)
strays = {{int(s[:4], 16): bytes.fromhex(s) for s in sys.argv[1:]}}
end = time.monotonic() + 20
while strays and time.monotonic() < end:
    for segment in strays.values():
        wire.sendto(segment, ("{SERVICE}", 0))
    time.sleep(0.5)
    try:
        while True:
            packet = wire.recv(65536)
            tcp = packet[(packet[0] & 15) * 4:]
            if tcp[13] & 4:
                strays.pop(int.from_bytes(tcp[2:4], "big"), None)
    except BlockingIOError:
        pass
print(len(strays))
"""


def stray(port: int) -> str:
    """A segment of a connection that nobody knows, in hexadecimal digits."""
    tcp = struct.pack("!HHIIBBHHH", port, 80, 1, 1, 5 << 4, 0x10, 1000, 0, 0)
    pseudo = bytes([10, 0, 1, 1, *map(int, SERVICE.split(".")), 0, 6, 0, len(tcp)])
    total = sum(struct.unpack("!16H", pseudo + tcp))
    total = (total & 0xFFFF) + (total >> 16)
    return (tcp[:16] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + tcp[18:]).hex()


def unrefused(racks: TwoRacks) -> int:
    """How many of `STRAYS` connections that no replica knows are not reset."""
    program = [sys.executable, "-c", REFUSED, *map(stray, range(50000, 50000 + STRAYS))]
    command = ["ip", "netns", "exec", racks.space("c1"), *program]
    return int(subprocess.run(command, check=True, capture_output=True).stdout)


def test_a_replica_of_another_rack_serves_through_a_tunnel(racks: TwoRacks) -> None:
    """One connection over both racks' replicas; whichever is killed, it finishes. Then plain TCP."""
    for victim in ("r1", "r2"):
        # What each replica has served is told once a second: where that comes late, another download is seen.
        for _ in range(6):
            before = racks.served()
            download = racks.download()

            racks.until(lambda: racks.serve_since(before) or download.poll() is not None, "both serve it")  # noqa: B023
            if download.poll() is None:
                break
            racks.finish(download)
        assert download.poll() is None, "both serve a connection while it runs"
        racks.end(victim)
        racks.finish(download)
        racks.start_replica(victim)
        racks.until(racks.all_live, f"{victim} is back")
    try:
        Path("/dev/net/tun").open("rb").close()
    except OSError as error:
        pytest.skip(f"plain TCP out of a tunnel needs a TUN device ({error}); the rest passed")
    racks.until(lambda: all(r["readmitted"] for r in racks.status()["replicas"]), "both take plain TCP")

    def accepted(name: str) -> int:
        text = subprocess.run(
            ["ip", "netns", "exec", racks.space(name), "cat", "/proc/net/snmp"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        names, values = (line.split() for line in text.splitlines() if line.startswith("Tcp:"))
        return int(dict(zip(names, values, strict=True))["PassiveOpens"])

    (racks.file.parent / "small").write_bytes(b"small")
    flows, excluded = 0, racks.exclusions()

    def plainly(name: str) -> bytes:
        # A flow ends with its replica: who is excluded because this machine is busy ends it, too.
        nonlocal excluded
        for _ in range(3):
            done = subprocess.run(curl(racks, name), check=False, capture_output=True)
            if done.returncode == 0:
                return done.stdout
            before, excluded = excluded, racks.exclusions()
            assert excluded > before, f"{done.stderr.decode()}{racks.status()}"
        raise AssertionError("this machine is too busy for plain TCP")

    while not (accepted("r1") and accepted("r2")):
        # With half of the flows each, forty would all go to one once in 10^12 times.
        assert flows < 40, "plain TCP reaches both replicas"
        flows += 1
        assert plainly("small") == b"small"
    assert plainly("big") == racks.file.read_bytes()
    assert unrefused(racks) == 0, "a replica held its resets back for good"
