"""Tests of the Debian packages: build, lintian, installation over this machine's `/`, use, removal."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine import REPOSITORY, Machine
from upgrade import NEXT, UNITS, UpgradeRack, next_version

BINARIES = Path(os.environ.get("RIVULET_BIN", REPOSITORY / "target" / "release"))
NAMES = ("rivulet", "rivulet-controller")
SERVICE = "10.9.0.1"
ACCOUNTS = ("/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow", "/var/lib/dpkg/status")
RACK = f"""\
switches:
  - name: tor1
    address: 127.0.0.1:9559
    number: 1
    mac: "02:00:00:00:00:fe"
    addresses: [10.0.1.254, 10.0.2.254]
    ports: [1, 101]
    hosts: [{{ip: 10.0.1.1, mac: "02:00:00:00:01:01", port: 1}}]
replicas: [{{name: r1, switch: tor1, port: 101, mac: "02:00:00:00:02:01", ip: 10.0.2.1}}]
services: [{{name: files, addresses: [{SERVICE}], port: 80, replicas: [r1], heartbeat: 20ms, liveness: 500ms}}]
listen: {{agents: "unix:/run/agents.sock", api: "127.0.0.1:8080"}}
state: /tmp/state.db
"""

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(not (BINARIES / "rivulet").exists(), reason="needs the binaries"),
]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both packages, in which lintian found no error."""
    folder = tmp_path_factory.mktemp("packages")
    done = subprocess.run(
        [REPOSITORY / "scripts" / "deb.sh", "--quick", "--out", str(folder), str(BINARIES)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert "lintian: errors and warnings" in done.stdout
    return folder


def shipped(packages: Path) -> list[str]:
    """Every file and folder of both packages."""
    paths: set[str] = set()
    for package in packages.glob("*.deb"):
        done = subprocess.run(["dpkg", "-c", str(package)], capture_output=True, text=True, check=True)
        paths |= {line.split()[5].lstrip(".").rstrip("/") for line in done.stdout.splitlines()}
    return sorted(paths - {""})


def state(paths: list[str]) -> dict[str, object]:
    """The parts of this machine that an installation would change."""
    found: dict[str, object] = {}
    for path in paths:
        there = Path(path)
        found[path] = (there.lstat().st_mtime_ns, there.lstat().st_ino) if there.is_file() else there.exists()
    for name in ACCOUNTS:
        found[name] = hashlib.sha256(Path(name).read_bytes()).hexdigest()
    found["mounts"] = Path("/proc/self/mounts").read_text()
    found["namespaces"] = os.listdir("/run/netns") if Path("/run/netns").exists() else []
    return found


@pytest.fixture(scope="module")
def machine(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine with both packages installed; checks at the end that this machine is unchanged."""
    before = state(shipped(packages))
    made = Machine(tmp_path_factory.mktemp("machine"), packages)
    if made.why_not is not None:
        pytest.skip(f"no overlay of / can be mounted: {made.why_not}")
    try:
        debs = [f"/srv/packages/{package.name}" for package in sorted(packages.glob("*.deb"))]
        assert len(debs) == 2
        made.do("dpkg", "-i", *debs)
        yield made
    finally:
        made.close()
    after = state(shipped(packages))
    ours = [name for name in after if name not in ("namespaces", "mounts")]
    assert {name: after[name] for name in ours} == {name: before[name] for name in ours}, "this machine was changed"
    assert str(made.root) not in str(after["mounts"])


def test_installation_starts_no_unit(machine: Machine) -> None:
    for name in NAMES:
        assert machine.do("dpkg-query", "-W", "-f", "${Status}", name) == "install ok installed"
    # Processes of the machine itself and of this check.
    assert machine.do("ps", "-e", "-o", "comm=").split() == ["cat", "ps"]
    for user in ("rivulet-replica", "rivulet-controller"):
        assert machine.do("getent", "passwd", user)
        assert subprocess.run(["getent", "passwd", user], check=False, capture_output=True).returncode != 0


WORDS = (
    ("rivulet-wire", "--rate"),
    ("cm-udp", "send"),
    ("rivulet-cm-apps", "layers"),
    ("rivulet-controller", "YAML"),
    ("rivuletctl", "drain"),
)
"""Programs, and a text that each one's help contains."""


def test_programs_have_help_and_manual_pages(machine: Machine) -> None:
    script = REPOSITORY / "scripts" / "version.py"
    version = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout.strip()
    assert machine.do("rivulet", "--version").split() == ["rivulet", version]
    assert version in machine.do("rivulet-switch", "--version")
    for program, word in WORDS:
        assert word in machine.do(program, "--help"), program
    for program, word in (("rivulet", "keygen"), ("rivulet-switch", "--workers"), *WORDS):
        page = machine.do("zcat", f"/usr/share/man/man1/{program}.1.gz")
        assert page.startswith(f".TH {program.upper()} 1") and word in page.replace("\\-", "-"), program
    assert "replicas" in machine.do("zcat", "/usr/share/man/man5/rivulet-rack.5.gz")
    for program, word in (("rivulet", "keygen"), ("rivuletctl", "_RIVULETCTL_COMPLETE")):
        for file in (f"bash-completion/completions/{program}", f"zsh/vendor-completions/_{program}"):
            assert word in machine.do("cat", f"/usr/share/{file}"), file
    # None of the repository's files is visible in the machine.
    assert machine.run("ls", str(REPOSITORY)).stdout == ""


def test_example_is_valid_and_mistake_in_it_is_reported(machine: Machine) -> None:
    example = "/usr/share/doc/rivulet-controller/examples/rack.yaml"
    assert "1 switches, 3 replicas, 1 services" in machine.do("rivuletctl", "check", example)
    machine.do("sh", "-c", f"sed 's/port: 101, mac/port: 999, mac/' {example} >/tmp/wrong.yaml")
    wrong = machine.run("rivuletctl", "check", "/tmp/wrong.yaml")
    assert wrong.returncode == 1 and "wrong.yaml:17: replicas.0.port" in wrong.stdout + wrong.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_units_name_installed_files(machine: Machine) -> None:
    units = [
        f"/lib/systemd/system/rivulet-{name}.service" for name in ("agent", "cm", "controller", "replica", "switch")
    ]
    said = machine.run("systemd-analyze", "--man=no", "verify", *units)
    assert said.returncode == 0 and "rivulet" not in said.stderr, said.stderr
    machine.do("mv", "/usr/bin/rivulet", "/usr/bin/elsewhere")
    try:
        assert "rivulet" in machine.run("systemd-analyze", "--man=no", "verify", *units).stderr, (
            "systemd-analyze did not read the units"
        )
    finally:
        machine.do("mv", "/usr/bin/elsewhere", "/usr/bin/rivulet")


def test_rack_of_installed_programs_serves(machine: Machine) -> None:
    """Switch, controller, replica and client from the packages, and curl through the preload library."""
    for host, port, address, mac in (("c1", 1, "10.0.1.1", "01:01"), ("r1", 101, "10.0.2.1", "02:01")):
        machine.host(host, f"v{port}", address, f"02:00:00:00:{mac}")
    machine.do("ip", "addr", "add", f"{SERVICE}/32", "dev", "lo", space="r1")
    machine.do("mkdir", "/srv/files")
    machine.do("sh", "-c", "head -c 3000000 /dev/urandom >/srv/files/some")
    machine.do("sh", "-c", f"cat >/etc/rivulet/rack.yaml <<'EOF'\n{RACK}EOF\n")
    ports = ("-i", "1@v1", "-i", "101@v101")
    flags = ("--cpu-port", "510", "--drop-port", "511", "--grpc-server-addr", "127.0.0.1:9559")
    machine.start("rivulet-switch", "--no-p4", "--device-id", "1", *ports, "--", *flags)
    machine.start("rivulet-controller", "/etc/rivulet/rack.yaml")
    machine.until(
        lambda: machine.run("test", "-S", "/run/agents.sock").returncode == 0, "the controller accepts agents"
    )
    serve = ("rivulet", "serve", "/srv/files", "-i", "eth0", "--controller", "unix:/run/agents.sock", "--name", "r1")
    machine.start(*serve, space="r1")
    machine.until(lambda: " live " in machine.run("rivuletctl", "replicas").stdout, "the replica is live")
    machine.until(lambda: machine.run("rivuletctl", "status").returncode == 0, "the rack is as described")
    url = f"http://{SERVICE}/some"
    got = json.loads(machine.do("rivulet", "get", "--json", "-o", "/tmp/got", url, space="c1"))
    assert got["transport"] == "rivulet" and got["ok"]
    machine.do("cmp", "/tmp/got", "/srv/files/some")
    machine.do("rivulet", "run", "--", "curl", "-sSf", "-o", "/tmp/curled", url, space="c1")
    machine.do("cmp", "/tmp/curled", "/srv/files/some")
    machine.end_started()
    assert machine.do("ps", "-e", "-o", "comm=").split() == ["cat", "ps"]


def test_upgrade_restarts_units_one_by_one_and_breaks_no_connection(machine: Machine, tmp_path: Path) -> None:
    """Two parallel downloads from two replicas, one on this machine and one on another that is not upgraded.

    dpkg, the maintainer scripts, and users, capabilities and processes of the units are real. systemd does not run
    here: systemctl.py starts and stops the units and records the order.
    """
    rack = UpgradeRack(machine)
    rack.build()
    processes = rack.processes()
    assert len(processes) == 4 and all(processes.values()), processes
    newer = next_version(machine.packages, tmp_path)
    with rack.downloads() as done:
        machine.until(lambda: bool(done), "a download ends")
        before = len(done)
        rack.upgrade(newer)
        # Those that began before the last unit was ready again, and one more.
        machine.until(lambda: len(done) >= before + 5, "the downloads end")
    for name in NAMES:
        assert machine.do("dpkg-query", "-W", "-f", "${Version}", name).endswith(NEXT)
    broken = [one.problem for one in done if one.problem]
    assert not broken, f"{len(broken)} of {len(done)} connections broke: {broken[0]}"
    order = rack.order()
    assert [(unit, what) for _, unit, what, _ in order] == [
        (unit, what) for unit in UNITS for what in ("stopped", "started")
    ], order
    # Whenever a unit stops, the rack is as described and downloads are in progress.
    for at, unit, what, described in order:
        if what == "stopped":
            assert described == "described", (unit, order)
            assert any(one.began < at < one.ended for one in done), (unit, order)
    now = rack.processes()
    assert all(now[unit] not in (0, processes[unit]) for unit in UNITS), (processes, now)
    rack.end()


def test_removal_leaves_no_files(machine: Machine, packages: Path) -> None:
    ours = [path for path in shipped(packages) if not Path(path).exists()]
    look = ["sh", "-c", 'for path; do [ ! -e "$path" ] || echo "$path"; done', "sh", *ours]
    assert machine.do(*look).splitlines() == ours
    machine.do("dpkg", "--purge", *reversed(NAMES))
    assert machine.do(*look) == ""
    assert machine.run("test", "-e", "/etc/rivulet").returncode != 0
