"""Two machines on one wire: server and client in network namespaces, with nothing between them but a shaper or a delay.

The rack of `rig.py` measures the whole; this one measures the hosts. Each end runs on a core of its own, and what an
end receives is handled on its core too (receive packet steering), so that the processor time of the server's core
is the server's. Segmentation offloads are off on both ends, for both transports.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rivulet_demo.rack import RackError, binary

from .stats import REPOSITORY

SERVICE = "10.9.0.1"
RIVULET_PORT = 80
TCP_PORT = 8080
METRICS_PORT = 9100
SERVER_CORE = 0
CLIENT_CORE = 1

Transport = Literal["rivulet", "tcp", "tcp-fastopen"]
Congestion = Literal["reno", "cubic"]

FOLDER = REPOSITORY / "build" / "bench" / "host"
WWW = Path("/dev/shm") if Path("/dev/shm").is_dir() else FOLDER

NGINX = """\
# One worker (more only where one may not have enough descriptors), no log, files from memory.
daemon off; {processes} pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ worker_connections {connections}; multi_accept on; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000; keepalive_timeout 3600;
  open_file_cache max=100 inactive=1h;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{ listen {address}:{port} backlog=4096 fastopen=4096{share}; root {www}; }}
}}
"""


@dataclass(slots=True)
class Server:
    """A serving process."""

    popen: subprocess.Popen[bytes]
    log: Path
    flags: tuple[str, ...] = ()

    def cpu_s(self) -> float:
        """Processor time of all its threads so far, seconds, by the scheduler's clock."""
        total = 0
        for task in Path(f"/proc/{self.popen.pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):
                total += int(task.read_text().split()[0])
        return total / 1e9

    def anonymous_bytes(self) -> int:
        """Memory of its own that is resident: files it maps do not count."""
        return sum(anonymous_bytes(pid) for pid in self.processes())

    def processes(self) -> list[int]:
        """It and its workers."""
        pid = self.popen.pid
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


@dataclass(slots=True)
class HostRig:
    """The namespaces while they stand."""

    prefix: str
    folder: Path
    servers: dict[str, Server] = field(default_factory=dict)
    helpers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def namespace(self, name: str) -> str:
        """Full name of a namespace."""
        return f"{self.prefix}{name}"

    def inside(self, name: str, command: Sequence[str], core: int | None = None) -> list[str]:
        """The command as run in a namespace, on a core, before ordinary work."""
        pinned = ["taskset", "-c", str(core), "nice", "-n", "-10"] if core is not None else []
        return ["ip", "netns", "exec", self.namespace(name), *pinned, *command]

    def run(self, name: str, command: Sequence[str]) -> str:
        """Runs a command to its end in a namespace; RackError if it fails."""
        return _run(self.inside(name, command))

    # Servers

    def www(self) -> Path:
        """The folder that is served, in memory."""
        return WWW / f"{self.prefix}www"

    def put(self, size: int) -> str:
        """A file of so many bytes; its path below the root."""
        path = self.www() / f"{size}.bin"
        if not path.exists():
            block = os.urandom(1 << 20)
            with path.open("wb") as out:
                left = size
                while left > 0:
                    left -= out.write(block[: min(left, len(block))])
        return path.name

    def start_rivulet(self, *more: str) -> Server:
        """`rivulet serve` on the server's core (the one that runs, if its flags are these); no kernel TCP beside it."""
        running = self.servers.get("rivulet")
        if running is not None and running.flags == more and running.popen.poll() is None:
            return running
        keys = self.folder / "keys.toml"
        if not keys.exists():
            keys.write_text(_run([binary("rivulet"), "keygen"]))
            keys.chmod(0o600)
        # The metrics are told in the namespace, to whoever asks from there.
        listen = ["--listen", f"{SERVICE}:{RIVULET_PORT}", "--keys", str(keys), "--no-plain-tcp"]
        command = [binary("rivulet"), "serve", str(self.www()), "-i", "s0", *listen]
        server = self._start("rivulet", [*command, "--metrics", f"127.0.0.1:{METRICS_PORT}", *more], "serving")
        server.flags = more
        return server

    def start_nginx(self, connections: int = 4000) -> Server:
        """nginx on the server's core, with one worker if that may have so many connections."""
        nginx = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin")
        if nginx is None:
            raise RackError("nginx is not installed: apt-get install nginx-light")
        config = self.folder / "nginx.conf"
        # The kernel spreads connections over listening sockets, not quite evenly: a quarter is to spare.
        workers = 1 + connections * 5 // 4 // descriptors_most()
        config.write_text(
            NGINX.format(
                folder=self.folder,
                processes="master_process off;" if workers == 1 else f"worker_processes {workers};",
                share="" if workers == 1 else " reuseport",
                # It closes idle connections when the last sixteenth is in use.
                connections=min(connections * 5 // 4 + 96, descriptors_most() - 64),
                address=SERVICE,
                port=TCP_PORT,
                www=self.www(),
            )
        )
        server = self._start("nginx", [*descriptors(), nginx, "-p", str(self.folder), "-c", str(config)], "")
        end = time.monotonic() + 10
        while f"{SERVICE}:{TCP_PORT}" not in self.run("s", ["ss", "-Hltn"]):
            if time.monotonic() > end or server.popen.poll() is not None:
                raise RackError(f"nginx does not listen: {server.log.read_text()[-400:]}")
            time.sleep(0.02)
        return server

    def _start(self, name: str, command: Sequence[str], sign: str) -> Server:
        self.stop(name)
        log = self.folder / f"{name}.log"
        with log.open("wb") as out:
            popen = subprocess.Popen(
                self.inside("s", command, SERVER_CORE), stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        server = Server(popen, log)
        self.servers[name] = server
        end = time.monotonic() + 15
        while sign not in log.read_text(errors="replace"):
            if popen.poll() is not None or time.monotonic() > end:
                raise RackError(f"{name} did not start: {log.read_text(errors='replace')[-400:]}")
            time.sleep(0.02)
        # What it does once (hashing the files) is not part of any figure.
        before = -1.0
        while server.cpu_s() - before > 0.001:
            before = server.cpu_s()
            time.sleep(0.1)
        return server

    def stop(self, name: str) -> None:
        """Ends a server."""
        server = self.servers.pop(name, None)
        if server is not None:
            end_process(server.popen)

    # Load

    def congestion(self, name: Congestion) -> None:
        """Sets the congestion control of the server's kernel TCP for connections from now on."""
        # By the route: a namespace of its own may not change the default to one that the machine does not allow to all.
        route = ["10.77.0.0/16", "dev", "s0", "src", "10.77.0.1", "congctl", name]
        self.run("s", ["ip", "route", "change", *route])

    def start_load(
        self, transport: Transport, path: str, *words: str, namespace: str = "c", **flags: Any
    ) -> subprocess.Popen[bytes]:
        """Starts rivulet-load on the client's core; `finish` waits for it."""
        port = RIVULET_PORT if transport == "rivulet" else TCP_PORT
        command = [*descriptors(), binary("rivulet-load"), f"http://{SERVICE}:{port}/{path}"]
        command += ["--transport", transport, *words]
        for flag, value in flags.items():
            command += [f"--{flag.replace('_', '-')}", str(value)]
        return subprocess.Popen(
            self.inside(namespace, command, CLIENT_CORE),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def load(self, transport: Transport, path: str, *words: str, **flags: Any) -> dict[str, Any]:
        """Load to its end. RackError for one that fails, or any request that does."""
        result = finish(self.start_load(transport, path, *words, **flags))
        if result["errors"]:
            raise RackError(f"{transport}: {result['errors']} requests failed: {result['first_error']}")
        return result

    def metrics(self) -> dict[str, float]:
        """What the Rivulet server tells Prometheus."""
        page = self.run("s", ["curl", "-s", "-m", "5", f"http://127.0.0.1:{METRICS_PORT}/metrics"])
        rows = (line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in rows}


def descriptors() -> list[str]:
    """What runs a command with as many descriptors as may be: one for each connection."""
    most = descriptors_most()
    return ["prlimit", f"--nofile={most}:{most}"]


def descriptors_most() -> int:
    """Descriptors that a process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def finish(popen: subprocess.Popen[bytes], patience_s: float = 120.0) -> dict[str, Any]:
    """The line of JSON that a load prints."""
    try:
        out, err = popen.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        popen.kill()
        popen.communicate()
        raise RackError(f"the load did not end in {patience_s:g} s") from None
    if popen.returncode != 0:
        raise RackError(f"the load failed: {err.decode(errors='replace').strip()[-400:]}")
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return result


def end_process(popen: subprocess.Popen[bytes]) -> None:
    """Ends a process, kindly first."""
    if popen.poll() is None:
        popen.terminate()
        try:
            popen.wait(5)
        except subprocess.TimeoutExpired:
            popen.kill()
            popen.wait(5)


def anonymous_bytes(pid: int) -> int:
    """Resident memory of a process that no file stands behind."""
    # Counted from the page tables: the counters in /proc/PID/status lag behind by some pages a thread.
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise RackError("no Anonymous in /proc/PID/smaps_rollup: is this Linux?")


def busy_s(core: int) -> float:
    """Seconds for which a core was not idle since boot. (The kernel keeps idle time exactly, in units of 10 ms.)"""
    for line in Path("/proc/stat").read_text().splitlines():
        words = line.split()
        if words[0] == f"cpu{core}":
            idle, waiting = int(words[4]), int(words[5])
            return time.monotonic() - (idle + waiting) / os.sysconf("SC_CLK_TCK")
    raise RackError(f"there is no core {core}: these benches need two")


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise RackError(f"`{' '.join(command)}` failed: {(done.stderr or done.stdout).strip()[-400:]}")
    return done.stdout


def _end(rig: HostRig, name: str, device: str, addresses: Sequence[str], core: int) -> None:
    """One end of the wire: offloads off, addresses on, receiving on its core."""
    off = ["tx", "rx", "tso", "gso", "gro", "txvlan", "rxvlan"]
    rig.run(name, ["sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1", "net.ipv4.ip_local_port_range=1024 65000"])
    rig.run(name, ["ethtool", "-K", device, *(word for offload in off for word in (offload, "off"))])
    rig.run(name, ["ip", "link", "set", "lo", "up"])
    for address in addresses:
        rig.run(name, ["ip", "addr", "add", f"{address}/16", "dev", device])
    steering = f"echo {1 << core:x} > /sys/class/net/{device}/queues/rx-0/rps_cpus"
    rig.run(name, ["sh", "-c", steering])
    rig.run(name, ["ip", "link", "set", device, "up"])


CLIENTS = tuple(f"10.77.1.{n}" for n in range(1, 9))
"""Addresses of the client; eight, for 28,000 kernel sockets and more each."""


@contextmanager
def host_rig(name: str, rtt_ms: float = 0.0, attackers: bool = False) -> Iterator[HostRig]:
    """Builds the namespaces; everything is gone at the end. With `attackers` a bridge joins a third host, `a`."""
    if os.geteuid() != 0:
        raise RackError("network namespaces need root: run it with sudo")
    if (os.cpu_count() or 1) < 2:
        raise RackError("server and client need a core each: this machine has one")
    prefix = f"rvb{os.getpid()}"
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rig = HostRig(prefix, folder)
    made: list[str] = []

    def interrupted(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signalled = signal.signal(signal.SIGTERM, interrupted)
    try:
        rig.www().mkdir(mode=0o755)
        for namespace in ("s", "c", "a", "m") if attackers else ("s", "c", "m"):
            _run(["ip", "netns", "add", rig.namespace(namespace)])
            made.append(rig.namespace(namespace))
        ends = {"s": "s0", "c": "c0"} | ({"a": "a0"} if attackers else {})
        if attackers or rtt_ms:
            for namespace, device in ends.items():
                _veth(rig, namespace, device, "m", f"m{device}")
                rig.run("m", ["ethtool", "-K", f"m{device}", "tx", "off", "tso", "off", "gso", "off", "gro", "off"])
                rig.run("m", ["ip", "link", "set", f"m{device}", "up"])
        else:
            _veth(rig, "s", "s0", "c", "c0")
        _end(rig, "s", "s0", ["10.77.0.1"], SERVER_CORE)
        _end(rig, "c", "c0", CLIENTS, CLIENT_CORE)
        rig.run("s", ["ip", "addr", "add", f"{SERVICE}/32", "dev", "lo"])
        if attackers:
            _end(rig, "a", "a0", ["10.77.2.1"], CLIENT_CORE)
            rig.run("m", ["ip", "link", "add", "hub", "type", "bridge"])
            for device in ends.values():
                rig.run("m", ["ip", "link", "set", f"m{device}", "master", "hub"])
            rig.run("m", ["ip", "link", "set", "hub", "up"])
        elif rtt_ms:
            wire = [binary("rivulet-wire"), "ms0", "mc0", "--delay", f"{rtt_ms / 2:g}ms", "--realtime"]
            wire = rig.inside("m", wire, CLIENT_CORE)
            rig.helpers.append(subprocess.Popen(wire, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL))
        for client in ends.keys() - {"s"}:
            rig.run(client, ["ip", "route", "add", SERVICE, "via", "10.77.0.1"])
        _run(rig.inside("s", ["sysctl", "-qw", "net.ipv4.tcp_fastopen=3", "net.core.somaxconn=8192"]))
        _run(rig.inside("s", ["sysctl", "-qw", "net.ipv4.tcp_max_syn_backlog=8192"]))
        _run(rig.inside("c", ["sysctl", "-qw", "net.ipv4.tcp_fastopen=1"]))
        rig.congestion("reno")
        _reachable(rig, rtt_ms)
        yield rig
    finally:
        for server in list(rig.servers):
            rig.stop(server)
        for popen in rig.helpers:
            end_process(popen)
        # A load that was under way when this was interrupted, and nothing else, is still there.
        for namespace in made:
            for pid in _run(["ip", "netns", "pids", namespace]).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        for namespace in made:
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
        shutil.rmtree(rig.www(), ignore_errors=True)
        signal.signal(signal.SIGTERM, signalled)


def _veth(rig: HostRig, first: str, device: str, second: str, peer: str) -> None:
    one, two = rig.namespace(first), rig.namespace(second)
    _run(["ip", "link", "add", device, "netns", one, "type", "veth", "peer", "name", peer, "netns", two])


def _reachable(rig: HostRig, rtt_ms: float) -> None:
    """Checks that the wanted delay is really there."""
    end = time.monotonic() + 10
    while True:
        command = rig.inside("c", ["ping", "-c", "5", "-i", "0.05", "-W", "1", "-q", SERVICE])
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        if done.returncode == 0:
            break
        if time.monotonic() > end:
            raise RackError("the client does not reach the server")
    least = float(done.stdout.rsplit("=", 1)[1].split("/")[0])
    if rtt_ms and not rtt_ms <= least <= rtt_ms * 1.2 + 1:
        raise RackError(f"the round-trip time is {least:.2f} ms, not {rtt_ms:g} ms")


def shape(rig: HostRig, namespace: str, device: str, rate_mbit: float | None) -> None:
    """A token bucket at a device's egress (none: taken away), with room for 256 full frames as a switch port has."""
    subprocess.run(
        rig.inside(namespace, ["tc", "qdisc", "del", "dev", device, "root"]), capture_output=True, check=False
    )
    if rate_mbit is not None:
        bucket = max(5_000, round(rate_mbit * 1e6 / 8 * 0.0004))
        words = ["tbf", "rate", f"{rate_mbit:g}mbit", "burst", str(bucket), "limit", str(256 * 1514)]
        rig.run(namespace, ["tc", "qdisc", "add", "dev", device, "root", *words])
