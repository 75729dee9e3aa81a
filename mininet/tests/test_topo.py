"""Tests of mininet/topo.py: as a script and under Debian's `mn`, with both switches, and what is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rivulet_lab import REPOSITORY, switches
from rivulet_lab.binaries import binary

pytestmark = [
    pytest.mark.rack,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]
TOPO = str(REPOSITORY / "mininet" / "topo.py")
SCRIPT = ["/usr/bin/python3", TOPO]
MN = ["mn", "--custom", TOPO, "--topo", "rack,replicas=4", "--switch"]
FETCH = "c1 curl -s -m 20 http://10.9.0.1/hello.txt"


class Prompt:
    """A running prompt of Mininet."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.first = self.read()

    def read(self) -> str:
        """Output until the next prompt."""
        assert self.process.stdout is not None
        text = b""
        while not text.endswith(b"mininet> "):
            part = os.read(self.process.stdout.fileno(), 65536)
            assert part, f"it ended: {text.decode()}"
            text += part
        return text.decode()

    def __call__(self, line: str) -> str:
        """Output of a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        return self.read()


@contextmanager
def prompt(command: list[str]) -> Iterator[Prompt]:
    """A rack with its prompt; killed at the end unless it has ended."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        yield Prompt(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def descendants(pid: int) -> set[int]:
    """Process ids of all children, and theirs."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, line.split())) for line in listed.splitlines()]
    found, size = {pid}, 0
    while len(found) != size:
        size = len(found)
        found |= {child for child, parent in pairs if parent in found}
    return found - {pid}


def running(pids: set[int]) -> set[int]:
    """Those that still run."""
    states = {pid: Path(f"/proc/{pid}/stat") for pid in pids}
    return {pid for pid, path in states.items() if path.exists() and path.read_text().rsplit(")", 1)[1][1] != "Z"}


def links() -> set[str]:
    """Interfaces of the machine's own namespace."""
    return set(os.listdir("/sys/class/net"))


@pytest.mark.parametrize("switch", ["embedded", "bmv2"])
def test_script_pings_all_and_fetches_after_kill(switch: str) -> None:
    if switch not in switches.installed():
        pytest.skip(f"{switch} is not installed")
    with prompt([*SCRIPT, "--switch", switch, "--trace"]) as ask:
        assert "20/20 received" in ask("pingall")
        for replica in ("r1", "r2"):
            assert f"{replica}: serving process killed" in ask(f"{replica} kill")
        assert "r1 is not running" in ask("r1 kill")
        assert "hello from the rack" in ask(FETCH)
        assert "r1: serving process started" in ask("r1 return")
        assert "r1 is already running" in ask("r1 return")
        assert "c1 is no replica" in ask("c1 kill")
        assert len(ask("trace 5").splitlines()) >= 5


@pytest.mark.parametrize("switch", ["rivulet", "bmv2"])
def test_two_racks_of_mn_run_beside_each_other(switch: str) -> None:
    if switch == "bmv2" and "bmv2" not in switches.installed():
        pytest.skip("bmv2 is not installed")
    before = links()
    with prompt([*MN, f"{switch},pcap=1"]) as one, prompt([*MN, switch]) as two:
        assert links() == before
        for ask in (one, two):
            assert "30/30 received" in ask("pingall")
            assert "hello from the rack" in ask(FETCH)
        assert "does not trace" in one("trace")
        pcaps = REPOSITORY / "build" / "mininet" / str(one.process.pid) / "pcap"
        assert {re.sub(r"_(in|out)", "", path.stem) for path in pcaps.glob("*.pcap")} == {
            f"s1-eth{port}" for port in (1, 2, 101, 102, 103, 104)
        }


@pytest.mark.parametrize("command", [SCRIPT, [*MN, "rivulet"]], ids=["script", "mn"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_behind(command: list[str], how: signal.Signals) -> None:
    before = links()
    with prompt(command) as ask:
        started = descendants(ask.process.pid)
        assert len(started) > 5
        ask.process.send_signal(how)
        # The prompt of Mininet ignores Ctrl-C; the end of the input ends it.
        if how != signal.SIGINT:
            ask.process.wait(30)
        ask.process.communicate()
        end = time.monotonic() + 30
        while (left := running(started)) and time.monotonic() < end:
            time.sleep(0.05)
        assert not left and links() == before


def test_mn_without_controller_starts_switch_with_program() -> None:
    program = f"program={REPOSITORY}/p4src/build/rivulet.json,p4info={REPOSITORY}/p4src/build/rivulet.p4info.txtpb"
    with prompt([*MN, f"rivulet,{program}", "--controller", "none"]) as ask:
        assert "replicas serve only with Rivulet's controller" in ask("r1 kill")
        assert "100% packet loss" in ask("c1 ping -c1 -W1 10.0.1.254"), "its tables are empty"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--replicas", "0"], "replicas= and clients= take 1 to 99"),
        (["--switch", "/nope"], "/nope is not a program: binary= takes embedded, bmv2 or a path"),
        (["--program", "/nope.json"], "/nope.json does not exist: give the files that p4c wrote"),
    ],
)
def test_wrong_flags_are_explained(flags: list[str], message: str) -> None:
    done = subprocess.run([*SCRIPT, *flags], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr


def test_failed_mn_ends_no_process_by_name() -> None:
    # In namespaces with a /tmp of its own: Mininet's clean-up kills `mininet:*` and removes /tmp/*.log. The repository
    # and the binaries may be in /tmp, so they are mounted elsewhere first.
    binaries = Path(binary("rivulet-switch")).parent
    script = (
        f"mount --bind '{REPOSITORY}' /mnt && mount --bind '{binaries}' /media && export RIVULET_BIN=/media && "
        "mount -t tmpfs tmpfs /tmp && touch /tmp/other.log && "
        "{ bash -c 'exec -a mininet:other sleep 1000' & } && "
        "cd /mnt; sleep 0.5; mn --custom /mnt/mininet/topo.py --topo single,2 --switch rivulet; "
        'kill -0 "$!" && test -e /tmp/other.log && echo "the other rack is intact"'
    )
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--net", "bash", "-c", script]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert "Rivulet's controller configures --topo rack only" in done.stdout + done.stderr
    assert "the other rack is intact" in done.stdout, done.stderr
