"""rivulet-agent.service grants an agent all that TRODS needs; without a part of it the agent
reports what it lacks.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from netrack import SERVICE, needs_rack
from test_trods_survival import PORT, PlainRack, download, holder

from rivulet_controller.pb.rivulet.agent.v1 import agent_pb2
from rivulet_lab import REPOSITORY, Lab, binary, nginx

pytestmark = [
    needs_rack,
    pytest.mark.skipif(shutil.which("memcached") is None, reason="memcached is not installed"),
    pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"),
]

UNIT = REPOSITORY / "packaging" / "systemd" / "rivulet-agent.service"
# Not `nobody`: the kernel shows its number for users of other namespaces, so the controller refuses
# it.
USER = pwd.getpwnam("daemon")
GROUP = grp.getgrgid(USER.pw_gid).gr_name
MEGABYTES = 40
TUN = os.makedev(10, 200)


class UnitRack(PlainRack):
    """Agents that run as a user with only the rights of their unit."""

    unit = UNIT
    devices = True
    """Whether they may open /dev/net/tun, as DeviceAllow= grants."""

    def description(self) -> str:
        text = super().description()
        return text.replace(
            "listen: {", f"listen: {{agents_group: {GROUP}, agents_users: {{{USER.pw_name}: [r1, r2, r3]}}, "
        )

    def start_nginx(self, name: str) -> None:
        # Listens at all addresses, as in docs/operating.md.
        command = nginx.command(self.folder / f"nginx-{name}", self.file.parent, "80")
        self.start(f"nginx {name}", command, self.spaces[name])

    def start_replica(self, name: str) -> None:
        if f"nginx {name}" not in self.processes:
            self.start_nginx(name)
        self.start_agent_of(name)

    def start_agent_of(self, name: str, *more: str) -> None:
        """Starts the agent alone."""
        program = self.folder / "rivulet"
        if not program.exists():
            shutil.copy(binary("rivulet"), program)
        home = self.folder / name
        home.mkdir(exist_ok=True)
        os.chown(home, USER.pw_uid, USER.pw_gid)
        as_unit = [sys.executable, str(Path(__file__).with_name("unit_process.py")), str(self.unit)]
        as_unit += [str(USER.pw_uid), str(USER.pw_gid)]
        command = self.agent(name, str(program))
        command[command.index("--socket") + 1] = str(home / "agent.sock")
        as_unit = ["env", f"RUNTIME_DIRECTORY={home}", *as_unit]
        self.start(name, [*self.with_devices(), *as_unit, *command, *more], self.spaces[name])

    def with_devices(self) -> list[str]:
        """Runs a command with the device's permissions as udev sets them: for all users, or for
        none.
        """
        node = self.folder / ("tun" if self.devices else "none")
        if not node.exists():
            os.mknod(node, (0o666 if self.devices else 0) | stat.S_IFCHR, TUN)
            node.chmod(0o666 if self.devices else 0)
        bind = 'mount --bind "$1" /dev/net/tun && shift && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", bind, "sh", str(node)]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may enter."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


def test_unit_privileges_suffice(folder: Path) -> None:
    rack = UnitRack(folder / "rack", "embedded")
    try:
        rack.build(MEGABYTES)
        rack.until(rack.all_well, "all take plain TCP")
        for name in ("r1", "r2", "r3"):
            # The folder in which the next agent finds the sockets of a dead agent's programs.
            programs = (rack.folder / name / "agent.sock.programs").stat()
            assert stat.S_ISDIR(programs.st_mode) and (programs.st_uid, programs.st_mode & 0o077) == (USER.pw_uid, 0)
        flow = download(rack, PORT + 90)
        one = holder(rack, flow)
        rack.end(f"nginx {one}")
        two = holder(rack, flow, one)
        # Stopped as by an upgrade, which an adopted connection cannot tell from a death.
        rack.end(two, signal.SIGTERM)
        assert flow.ended_well(), rack.status()
        assert rack.trods("refused") == 0
    finally:
        rack.down()


def kept() -> bytes:
    """Runs an agent for a service with TRODS."""
    members = [agent_pb2.PoolMember(replica=n, name=f"r{n}", address=bytes((10, 0, 2, n))) for n in (0, 2)]
    service = agent_pb2.Service(
        id=1, name="files", addresses=[bytes((10, 9, 0, 1))], port=80, pool=1, replica=2, tor_mac=b"\2\0\0\0\0\xfe",
        heartbeat_interval_us=10_000, liveness_bound_us=100_000, plain=agent_pb2.PLAIN_TRODS, horizon_us=4_000_000,
        seal_keys=[agent_pb2.SealKey(epoch=1, master=bytes(16))], usable_seal_epoch=1,
        nonce_keys=[agent_pb2.NonceKey(epoch=1, k=bytes(8), k_prime=b"1" * 8, opening=bytes(16))], usable_nonce_epoch=1,
        slot_key=bytes(8), slots=bytes((2, 0)),
        tor_keys=[agent_pb2.TorKey(epoch=1, heartbeat=bytes(8), block=b"1" * 8)], usable_tor_epoch=1,
        trods=agent_pb2.Trods(store=["10.0.2.9:11211"], copies=1, members=members),
    )  # fmt: skip
    return bytes(agent_pb2.Update(version=1, services=[service]).SerializeToString())


def alone(rack: UnitRack) -> Path:
    """Runs one host with nginx and the agent; returns the agent's output."""
    rack.namespace("tor")
    rack.host("r1", 101, "10.0.2.1", "02:00:00:00:02:01")
    rack.start_nginx("r1")
    keep = rack.folder / "r1" / "kept"
    keep.parent.mkdir()
    keep.write_bytes(kept())
    keep.chmod(0o600)
    os.chown(keep, USER.pw_uid, USER.pw_gid)
    return keep


TCX = "TRODS: tcx needs root, or CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN"


@pytest.mark.parametrize(
    ("lacking", "expected"),
    [
        ("CAP_BPF", TCX),
        ("CAP_PERFMON", TCX),
        ("CAP_NET_ADMIN", "TRODS: TCP_REPAIR: it needs root, or CAP_NET_ADMIN"),
        ("CAP_NET_BIND_SERVICE", "TRODS: TCP_REPAIR: its port needs root, or CAP_NET_BIND_SERVICE"),
        ("CAP_NET_RAW", "socket(AF_PACKET), for root or with CAP_NET_RAW"),
        ("/dev/net/tun", "TRODS: trods%d: /dev/net/tun: Permission denied"),
    ],
)
def test_missing_privilege_is_reported(folder: Path, lacking: str, expected: str) -> None:
    unit = folder / "unit"
    text = UNIT.read_text()
    unit.write_text(re.sub(rf"(?<=[ =]){lacking}( |$)", "", text, flags=re.M) if lacking.startswith("CAP_") else text)
    assert (unit.read_text() != text) == lacking.startswith("CAP_")
    rack = UnitRack(folder / "rack", "embedded")
    rack.unit, rack.devices = unit, lacking != "/dev/net/tun"
    try:
        keep = alone(rack)
        rack.spaces["r1"].serve_at(SERVICE)
        rack.start_agent_of("r1", "--keep", str(keep))

        def is_reported() -> bool:
            # Without such a privilege the agent ends before it can report.
            return expected in rack.log("r1") or not rack.processes["r1"].running()

        Lab.until(rack, is_reported, f"it reports {expected}", 20.0, rack.processes["nginx r1"])
        assert expected in rack.log("r1")
    finally:
        rack.down()


def test_service_addresses_are_removed_with_killed_unit(folder: Path) -> None:
    rack = UnitRack(folder / "rack", "embedded")
    try:
        keep = alone(rack)
        for count, how in enumerate((signal.SIGKILL, signal.SIGTERM), 1):
            rack.start_agent_of("r1", "--keep", str(keep), "--setup-address")

            def is_noted(count: int = count) -> bool:
                return rack.log("r1").count("holding") == count and any(keep.parent.glob("[0-9]*"))

            Lab.until(rack, is_noted, "it is there, and noted", 20.0)
            rack.end("r1", how)
            assert (SERVICE in rack.spaces["r1"].run("ip", "addr")) == (how == signal.SIGKILL)
    finally:
        rack.down()
