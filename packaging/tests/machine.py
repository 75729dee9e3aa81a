"""A copy of this machine's `/`: an overlay in memory, in its own namespaces, so that installations leave no trace."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "COLUMNS": "200",
    "SYSTEMD_OFFLINE": "1",
}
# Network and processes are separate. The repository is hidden, so that the tests run only the installed files.
MAKE = """
set -e
mount -t tmpfs layer "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount --rbind /dev "$1/root/dev"
mount -t proc proc "$1/root/proc"
mount -t sysfs -o ro sysfs "$1/root/sys"
mount -t tmpfs run "$1/root/run"
mkdir -p "$1/root/srv/packages"
mount --bind "$2" "$1/root/srv/packages"
mount -t tmpfs nothing "$1/root$3"
ip link set lo up
echo made
exec cat
"""


class Machine:
    """The copy, with its processes. `close` removes it; `why_not` is the reason if it cannot be made."""

    def __init__(self, folder: Path, packages: Path) -> None:
        self.root = folder / "root"
        self.packages = packages
        self.started: list[subprocess.Popen[str]] = []
        command = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--propagation", "private"]
        self.keeper = subprocess.Popen(
            [*command, "sh", "-c", MAKE, "sh", str(folder), str(packages), str(REPOSITORY)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.keeper.stdout is not None and self.keeper.stderr is not None
        self.why_not = None if self.keeper.stdout.readline() == "made\n" else self.keeper.stderr.read().strip()
        if self.why_not is None:
            children = Path(f"/proc/{self.keeper.pid}/task/{self.keeper.pid}/children").read_text().split()
            target = ["--target", children[0], "--mount", "--net", "--pid"]
            self.enter = ["nsenter", *target, "chroot", str(self.root)]

    def run(self, *command: str, space: str = "") -> subprocess.CompletedProcess[str]:
        """Runs a command in it, or in one of its network namespaces, until it ends."""
        return subprocess.run(
            self._line(command, space), env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False
        )

    def do(self, *command: str, space: str = "") -> str:
        """Runs a command that must succeed; returns its standard output."""
        done = self.run(*command, space=space)
        assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def start(self, *command: str, space: str = "") -> None:
        """Starts a process that runs until the machine is closed."""
        log = self.log.open("a")
        line = self._line(command, space)
        popen = subprocess.Popen(
            line, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, text=True
        )
        self.started.append(popen)

    def end_started(self) -> None:
        """Ends the started processes, the newest first, so that another test's controller finds none of them."""
        for popen in reversed(self.started):
            # nsenter stays outside and waits for its child inside.
            for child in Path(f"/proc/{popen.pid}/task/{popen.pid}/children").read_text().split():
                os.kill(int(child), signal.SIGTERM)
            popen.wait(30)
        self.started.clear()

    def host(self, name: str, port: str, address: str, mac: str) -> None:
        """Makes a namespace with an interface eth0 at a port of the ToR, through which it routes."""
        offloads = ("tx", "off", "rx", "off", "tso", "off", "gso", "off", "gro", "off")
        self.do("ip", "netns", "add", name)
        self.do("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        self.do("ethtool", "-K", port, *offloads)
        self.do("ethtool", "-K", "eth0", *offloads, space=name)
        self.do("ip", "link", "set", port, "up")
        for line in (
            f"link set eth0 address {mac} up",
            "link set lo up",
            f"addr add {address}/24 dev eth0",
            f"route add default via {address.rpartition('.')[0]}.254",
        ):
            self.do("ip", *line.split(), space=name)

    @property
    def log(self) -> Path:
        """Output of the started processes."""
        return self.root.with_name("log")

    def until(self, condition: Callable[[], bool], what: str, patience_s: float = 60.0) -> None:
        """Waits until a condition holds, while all started processes run."""
        end = time.monotonic() + patience_s
        while not condition():
            ended = [popen.args for popen in self.started if popen.poll() is not None]
            assert not ended and time.monotonic() < end, f"{what}: {ended}\n{self.read_log()}"
            time.sleep(0.1)

    def read_log(self) -> str:
        """The log, which is in the machine's own file system."""
        return self.log.read_text()[-4000:]

    def close(self) -> None:
        """Removes the machine."""
        assert self.keeper.stdin is not None
        self.keeper.stdin.close()
        self.keeper.wait(30)
        for popen in self.started:
            popen.wait(30)

    def _line(self, command: tuple[str, ...], space: str) -> list[str]:
        return [*self.enter, *(["ip", "netns", "exec", space] if space else []), *command]
