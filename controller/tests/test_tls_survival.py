"""HTTPS connections to `rivulet tls` survive the death of their replica behind a real ToR:
terminator, agent and nginx are killed together and one by one. curl succeeds and gets the right
bytes on one connection.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from certificates import self_signed
from netrack import SERVICE, NetRack, needs_rack
from test_trods_survival import PlainRack, standing

from rivulet_lab import Process, binary, nginx

pytestmark = [
    needs_rack,
    pytest.mark.skipif(shutil.which("memcached") is None, reason="memcached is not installed"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed"),
]

MEGABYTES = 24
"""Bytes for ten seconds at the rack's rate."""
PORT = 43001
METRICS = "127.0.0.1:9100"


class TlsRack(PlainRack):
    """A rack with a terminator on each replica, and nginx behind it on loopback."""

    def description(self) -> str:
        return super().description().replace("    port: 80\n", "    port: 443\n")

    @property
    def certificate(self) -> Path:
        return self.folder / "site.pem"

    def start_controller(self) -> None:
        """Makes the replicas' certificate first."""
        if not self.certificate.exists():
            self_signed(self.certificate, self.folder / "site.key", "rack", f"IP:{SERVICE}")
        super().start_controller()

    def start_replica(self, name: str) -> None:
        """Starts the agent, nginx and the terminator unless they run."""
        if name not in self.processes:
            self.start(name, self.agent(name, binary("rivulet")), self.spaces[name])
        if f"nginx {name}" not in self.processes:
            self.start_nginx(name)
        if f"tls {name}" not in self.processes:
            self.start_terminator(name)

    def agent(self, name: str, program: str) -> list[str]:
        """The agent's command."""
        command = [program, "agent", "--plain-tcp", "-i", f"{name}-eth0", "--controller", self.agents]
        return [*command, "--name", name, "--socket", str(self.folder / f"{name}.agent")]

    def start_nginx(self, name: str) -> None:
        """Starts nginx alone, without TLS and on loopback."""
        command = nginx.command(self.folder / f"nginx-{name}", self.file.parent, "127.0.0.1:8080")
        self.start(f"nginx {name}", command, self.spaces[name])

    def start_terminator(self, name: str) -> None:
        """Starts the terminator alone."""
        files = ["--certificate", str(self.certificate), "--key", str(self.folder / "site.key")]
        command = [binary("rivulet"), "tls", "--listen", f"{SERVICE}:443", *files, "--server", "127.0.0.1:8080"]
        command += ["--agent", str(self.folder / f"{name}.agent"), "--workers", "1", "--metrics", METRICS]
        self.start(f"tls {name}", command, self.spaces[name])

    def count(self, name: str, metric: str) -> int:
        """A counter of the terminator."""
        page = self.spaces[name].run("curl", "-sS", "--fail", f"http://{METRICS}/metrics")
        return int(page.split(f"\nrivulet_tls_{metric} ")[1].split()[0])

    def fetch(self, files: tuple[str, ...], port: int, *more: str) -> list[str]:
        """The command of a curl that fetches files one after the other, on one connection from this
        port.
        """
        command = ["curl", "-sS", "--fail", "--max-time", "120", "--cacert", str(self.certificate), *more]
        command += ["--local-port", str(port), "-w", "%{num_connects}\\n"]
        for file in files:
            command += ["-o", str(self.folder / f"got-{port}-{file}"), f"https://{SERVICE}/{file}"]
        return command

    def got(self, port: int, file: str) -> bytes:
        """The bytes of a file that curl has received."""
        path = self.folder / f"got-{port}-{file}"
        return path.read_bytes() if path.exists() else b""


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsRack]:
    """One rack for all tests of this file."""
    with standing(TlsRack(tmp_path_factory.mktemp("tls"), "embedded")) as rack:
        yield rack


def holders(rack: NetRack, *dead: str) -> dict[int, str]:
    """By client port: the replica whose kernel has the connection."""
    found = {}
    for name in rack.replicas:
        if name in dead:
            continue
        for line in rack.spaces[name].run("ss", "-Htn", "state", "established").splitlines():
            local, remote = line.split()[2:4]
            if local == f"{SERVICE}:443":
                found[int(remote.rsplit(":", 1)[1])] = name
    return found


@dataclass
class Download:
    """A download of the big file, then of the small one, by curl on one connection."""

    rack: TlsRack
    process: Process
    port: int

    @staticmethod
    def start(rack: TlsRack, port: int) -> Download:
        """Starts the download; returns when its first bytes have arrived."""
        command = rack.fetch(("big", "small"), port)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = rack.start(f"download {port}", command, rack.spaces["c1"], **pipes)
        rack.until(lambda: len(rack.got(port, "big")) > 1 << 20, "it brings something")
        return Download(rack, process, port)

    def holder(self, *dead: str) -> str:
        """The replica with the connection in its kernel; dead replicas may still have it too."""
        self.rack.until(lambda: self.port in holders(self.rack, *dead), f"a replica has port {self.port}")
        return holders(self.rack, *dead)[self.port]

    def ended_well(self) -> None:
        """Checks that curl succeeded with the right bytes, on one connection for both files."""
        out, errors = self.process.popen.communicate(timeout=120)
        text = (self.process.popen.returncode, errors, self.rack.status())
        assert self.process.popen.returncode == 0, text
        assert self.rack.got(self.port, "big") == self.rack.file.read_bytes(), "the file came damaged"
        assert self.rack.got(self.port, "small") == b"small"
        assert out.split() == [b"1", b"0"], "the second request took another connection"


def unfinished(rack: TlsRack, port: int) -> bool:
    """Whether the client's kernel waits for the end of the connection from this port."""
    waiting = ("state", "fin-wait-1", "state", "fin-wait-2")
    return bool(rack.spaces["c1"].run("ss", "-Htn", *waiting, f"sport = :{port}"))


Harm = Callable[[TlsRack, str], None]


def kill_all(rack: TlsRack, name: str) -> None:
    for part in (f"tls {name}", name, f"nginx {name}"):
        rack.processes[part].popen.kill()
    for part in (f"tls {name}", name, f"nginx {name}"):
        rack.end(part)


def kill_agent(rack: TlsRack, name: str) -> None:
    rack.end(name)


def kill_terminator(rack: TlsRack, name: str) -> None:
    rack.end(f"tls {name}")


HARMS: dict[str, Harm] = {"all": kill_all, "agent": kill_agent, "terminator": kill_terminator}


@pytest.mark.parametrize("harm", HARMS)
def test_https_download_survives_its_replica(rack: TlsRack, harm: str) -> None:
    flow = Download.start(rack, PORT + 10 * list(HARMS).index(harm))
    one = flow.holder()
    adopted = {name: rack.count(name, "adopted_total") for name in rack.replicas if name != one}
    HARMS[harm](rack, one)
    try:
        adopter = flow.holder(one)
        flow.ended_well()
        # The client's close is answered, and does not look like the death of a server.
        rack.until(lambda: not unfinished(rack, flow.port), "both directions of the connection have ended")
        assert rack.count(adopter, "adopted_total") == adopted[adopter] + 1
    finally:
        rack.start_replica(one)
    rack.until(rack.all_well, f"{one} is back")
    assert rack.trods("refused") == 0


def test_https_download_survives_its_web_server(rack: TlsRack) -> None:
    flow = Download.start(rack, PORT + 50)
    one = flow.holder()
    rack.end(f"nginx {one}")
    rack.start_nginx(one)
    flow.ended_well()
    rack.until(rack.all_well, "all are well")
    assert rack.trods("refused") == 0
