"""Two racks, each with its ToR: replicas of both serve a connection that enters at one, through a
tunnel.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from netrack import LIVENESS_MS, MEGABYTES, RATE_MBIT, SERVICE, SWITCHES, NetRack, needs_rack

from rivulet_lab import End, RackError, shape, switches, veth

pytestmark = needs_rack

FAR_MAC = "02:00:00:00:00:fd"
LINK = 200
"""The port of each ToR towards the other."""


class TwoRacks(NetRack):
    """The client and r1 at tor1, r2 at tor2, and a link between the ToRs, which route."""

    replicas = ("r1", "r2")

    def __init__(self, folder: Path, switch: str, tunnel: str, outer: int) -> None:
        super().__init__(folder, switch)
        self.tunnel = tunnel
        self.outer = outer
        """IP version of the outer headers; the service uses IPv4."""

    def lay(self) -> None:
        """Starts one rack as usual, and the other beside it."""
        tor, far = self.namespace("tor"), self.namespace("far")
        self.host("c1", 1, "10.0.1.1", "02:00:00:00:01:01")
        self.host("r1", 101, "10.0.2.1", "02:00:00:00:02:01")
        self.host("r2", 102, "10.0.3.2", "02:00:00:00:03:02", tor="far")
        veth(End(tor, f"v{LINK}"), End(far, f"v{LINK}"))
        shape(tor, "v1", RATE_MBIT)
        if self.outer == 6:
            self._six("r1", "fd00:2::1", "fd00:2::fe")
            self._six("r2", "fd00:3::2", "fd00:3::fe")

    def _six(self, name: str, ip: str, gateway: str) -> None:
        """Gives a host an additional IPv6 address."""
        device, space = f"{name}-eth0", self.spaces[name]
        space.set(*(f"net.ipv6.conf.{device}.{what}" for what in ("disable_ipv6=0", "accept_dad=0", "accept_ra=0")))
        space.ip(f"addr add {ip}/64 dev {device} nodad", f"route add default via {gateway}")

    def description(self) -> str:
        """The configuration as YAML."""
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
            "heartbeat": LIVENESS_MS / 10000, "liveness": LIVENESS_MS / 1000,
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
        """Starts both ToRs."""
        for name, space, ports, socket_name in (
            ("switch", "tor", (1, 101, LINK), "p4rt"),
            ("far switch", "far", (102, LINK), "far"),
        ):
            command = switches.command(
                self.switch, {p: f"v{p}" for p in ports}, f"unix:{self.folder}/{socket_name}.sock"
            )
            self.start(name, command, self.spaces[space])

    def served(self) -> dict[str, int]:
        """Requests that each replica answered."""
        return {r["name"]: r["requests_total"] for r in self.status().get("replicas", ())}

    def serve_since(self, before: dict[str, int]) -> bool:
        """Whether both have answered more."""
        now = self.served()
        return len(now) == 2 and all(count > before.get(name, 0) for name, count in now.items())


WANTED = [
    ("embedded", "ip_in_ip", 4),
    ("embedded", "gue", 6),
    pytest.param(("embedded", "gue", 4), marks=pytest.mark.long),
    pytest.param(("embedded", "ip_in_ip", 6), marks=pytest.mark.long),
    pytest.param(("bmv2", "gue", 4), marks=pytest.mark.long),
]
"""Each kind of tunnel with each IP version around it."""


def named(wanted: tuple[str, str, int]) -> str:
    """The name of the test's parameters."""
    return "-".join(map(str, wanted))


@pytest.fixture(params=WANTED, ids=named)
def racks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TwoRacks]:
    switch, tunnel, outer = request.param
    if switch not in SWITCHES:
        pytest.skip("the switch is not installed")
    built = TwoRacks(tmp_path, switch, tunnel, outer)
    try:
        built.build(MEGABYTES)
        yield built
    finally:
        built.down()


STRAYS = 16
"""With half of the flows each, all go to one replica once in 32,768 times."""
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
    """A segment of an unknown connection, as hexadecimal digits."""
    tcp = struct.pack("!HHIIBBHHH", port, 80, 1, 1, 5 << 4, 0x10, 1000, 0, 0)
    pseudo = bytes([10, 0, 1, 1, *map(int, SERVICE.split(".")), 0, 6, 0, len(tcp)])
    total = sum(struct.unpack("!16H", pseudo + tcp))
    total = (total & 0xFFFF) + (total >> 16)
    return (tcp[:16] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + tcp[18:]).hex()


def unrefused(racks: TwoRacks) -> int:
    """How many of `STRAYS` unknown connections are not reset."""
    program = [sys.executable, "-c", REFUSED, *map(stray, range(50000, 50000 + STRAYS))]
    return int(racks.spaces["c1"].run(*program))


def test_replica_of_other_rack_serves_through_tunnel(racks: TwoRacks) -> None:
    """One connection over both racks' replicas completes when either is killed. Then plain TCP."""
    for victim in ("r1", "r2"):
        # Replicas report their requests once a second: if that is too late, start another download.
        for _ in range(6):
            before = racks.served()
            download = racks.download()

            racks.until(lambda: racks.serve_since(before) or not download.running(), "both serve it")  # noqa: B023
            if download.running():
                break
            racks.finish(download)
        assert download.running(), "both serve a connection while it runs"
        racks.end(victim)
        racks.finish(download)
        racks.start_replica(victim)
        racks.until(racks.all_live, f"{victim} is back")
    try:
        Path("/dev/net/tun").open("rb").close()
    except OSError as error:
        pytest.skip(f"plain TCP out of a tunnel needs a TUN device ({error}); the rest passed")
    racks.until(racks.take_plain_tcp, "both take plain TCP")
    flows, excluded = 0, racks.exclusions()

    def plainly(name: str) -> None:
        # A flow ends with its replica, also if that is excluded because this machine is busy.
        nonlocal excluded
        out = racks.folder / "plain"
        for _ in range(3):
            try:
                racks.spaces["c1"].run(*racks.curl(name, "-o", str(out)))
            except RackError as error:
                before, excluded = excluded, racks.exclusions()
                assert excluded > before, f"{error}{racks.status()}"
            else:
                assert out.read_bytes() == (racks.file.parent / name).read_bytes()
                return
        raise AssertionError("this machine is too busy for plain TCP")

    while not all(racks.accepted().values()):
        # With half of the flows each, all of forty go to one once in 10^12 times.
        assert flows < 40, "plain TCP reaches both replicas"
        flows += 1
        plainly("small")
    plainly("big")
    assert unrefused(racks) == 0, "a replica held its resets back for good"
