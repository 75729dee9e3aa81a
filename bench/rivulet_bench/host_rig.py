"""Two machines on one wire: server and client in network namespaces, with only a shaper or a delay between them.

The rack of `rig.py` measures the whole system, this one the hosts. Each end runs on its own core, which also handles
its received packets (receive packet steering), so that the time of the server's core is the server's. Segmentation
offloads are off on both ends for both transports.
"""

from __future__ import annotations

import itertools
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rivulet_lab import End, Lab, Process, RackError, binary, nginx, shape, standing, veth

from .rig import BUILD, finish

SERVICE = "10.9.0.1"
RIVULET_PORT = 80
TCP_PORT = 8080
METRICS_PORT = 9100
SERVER_CORE = 0
CLIENT_CORE = 1

Transport = Literal["rivulet", "tcp", "tcp-fastopen", "plain"]
"""`plain`: ordinary TCP like `tcp`, by clients without kernel sockets, which need little CPU."""
Plain = Literal["none", "kernel", "stateless"]
Congestion = Literal["reno", "cubic"]

FOLDER = BUILD / "host"
WWW = Path("/dev/shm") if Path("/dev/shm").is_dir() else FOLDER

NGINX = """\
# One worker (more only if one may not have enough descriptors), no log, files from memory.
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

    process: Process
    flags: tuple[str, ...] = ()

    def cpu_s(self) -> float:
        """Processor time of all its threads, including ended ones, in seconds."""
        # Read from the process's CPU clock (clock_getcpuclockid(3)).
        return time.clock_gettime_ns((~self.process.pid << 3) | 2) / 1e9

    def anonymous_bytes(self) -> int:
        """Its resident anonymous memory; mapped files do not count."""
        return sum(anonymous_bytes(pid) for pid in self.processes())

    def processes(self) -> list[int]:
        """The ids of the process and its workers."""
        pid = self.process.pid
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


class HostRig(Lab):
    """The running namespaces: `s` server, `c` client, `a` attacker, `m` the wire between them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.servers: dict[str, Server] = {}
        self.www = WWW / f"rivulet-www-{os.getpid()}"
        """The served folder, in memory."""
        self._loads = itertools.count()

    def begin(self, name: str, command: Sequence[str], space: str, core: int | str, **options: Any) -> Process:
        """Starts a process in a namespace on a core (or several), with priority over ordinary work."""
        pinned = ["taskset", "-c", str(core), "nice", "-n", "-10", *command]
        return self.start(name, pinned, self.spaces[space], **options)

    def run(self, name: str, command: Sequence[str]) -> str:
        """Runs a command in a namespace until it ends; RackError if it fails."""
        return self.spaces[name].run(*command)

    # Building

    def end_of(self, name: str, device: str, addresses: Sequence[str], core: int) -> None:
        """Sets up one end of the wire: its addresses, and the core that receives."""
        space = self.spaces[name]
        space.set("net.ipv4.ip_local_port_range=1024 65000")
        space.ip(*(f"addr add {address}/16 dev {device}" for address in addresses))
        self.receive_on(name, device, core)

    def receive_on(self, name: str, device: str, core: int) -> None:
        """Makes this core handle the device's received packets."""
        self.spaces[name].run("sh", "-c", f"echo {1 << core:x} > /sys/class/net/{device}/queues/rx-0/rps_cpus")

    def build(self, rtt_ms: float, attackers: bool) -> None:
        """Makes namespaces, links and addresses. With `attackers` a bridge joins a third host, `a`."""
        self.www.mkdir(mode=0o755)
        for name in ("s", "c", "a", "m") if attackers else ("s", "c", "m"):
            self.namespace(name)
        ends = {"s": "s0", "c": "c0"} | ({"a": "a0"} if attackers else {})
        middle = self.spaces["m"]
        if attackers or rtt_ms:
            for name, device in ends.items():
                veth(End(self.spaces[name], device), End(middle, f"m{device}"))
        else:
            veth(End(self.spaces["s"], "s0"), End(self.spaces["c"], "c0"))
        self.end_of("s", "s0", ["10.77.0.1"], SERVER_CORE)
        self.end_of("c", "c0", CLIENTS, CLIENT_CORE)
        self.spaces["s"].ip(f"addr add {SERVICE}/32 dev lo")
        if attackers:
            self.end_of("a", "a0", ["10.77.2.1"], CLIENT_CORE)
            middle.ip("link add dev hub type bridge", *(f"link set dev m{d} master hub" for d in ends.values()))
            middle.ip("link set dev hub up")
            # The bridge stands for a switch, which passes no frame through a firewall.
            if Path("/proc/sys/net/bridge").exists():
                middle.set(
                    *(f"net.bridge.bridge-nf-call-{table}=0" for table in ("iptables", "ip6tables", "arptables"))
                )
        elif rtt_ms:
            wire = [binary("rivulet-wire"), "ms0", "mc0", "--delay", f"{rtt_ms / 2:g}ms", "--realtime"]
            self.begin("wire", [*wire, "--control", str(self.folder / "wire.sock")], "m", CLIENT_CORE)
        for client in ends.keys() - {"s"}:
            self.spaces[client].ip(f"route add {SERVICE} via 10.77.0.1")
        self.spaces["s"].set("net.ipv4.tcp_fastopen=3", "net.core.somaxconn=8192", "net.ipv4.tcp_max_syn_backlog=8192")
        self.spaces["c"].set("net.ipv4.tcp_fastopen=1")
        self.congestion("reno")

    def lose(self, percent: float) -> None:
        """Sets the percentage of frames that are lost each way (in a rig with a delay)."""
        self.run("m", [binary("rivulet-wire"), "set", str(self.folder / "wire.sock"), f"loss={percent:g}%"])

    # Servers

    def put(self, size: int) -> str:
        """Makes a file of `size` bytes; returns its path below the root."""
        path = self.www / f"{size}.bin"
        if not path.exists():
            block = os.urandom(1 << 20)
            with path.open("wb") as out:
                left = size
                while left > 0:
                    left -= out.write(block[: min(left, len(block))])
        return path.name

    def start_rivulet(
        self, *more: str, plain: Plain = "none", port: int = RIVULET_PORT, name: str = "rivulet"
    ) -> Server:
        """Starts `rivulet serve` on the server's core, or returns the running one with the same name and flags."""
        more = ("--plain", plain, *more)
        running = self.servers.get(name)
        if running is not None and running.flags == more and running.process.running():
            return running
        keys = self.folder / "keys.toml"
        if not keys.exists():
            self.run("s", [binary("rivulet"), "keygen", str(keys)])
        # The metrics are served in the namespace only.
        listen = ["--listen", f"{SERVICE}:{port}", "--keys", str(keys)]
        command = [binary("rivulet"), "serve", str(self.www), "-i", "s0", *listen]
        metrics = ["--metrics", f"127.0.0.1:{METRICS_PORT + port - RIVULET_PORT}"]
        server = self._start(name, [*command, *metrics, *more], "serving")
        server.flags = more
        return server

    def start_nginx(self, connections: int = 4000) -> Server:
        """Starts nginx on the server's core, with one worker if it may have enough connections."""
        config = self.folder / "nginx.conf"
        # The kernel spreads connections over listening sockets unevenly: a quarter is reserve.
        workers = 1 + connections * 5 // 4 // descriptors_most()
        config.write_text(
            NGINX.format(
                folder=self.folder,
                processes="master_process off;" if workers == 1 else f"worker_processes {workers};",
                share="" if workers == 1 else " reuseport",
                # nginx closes idle connections when the last sixteenth is in use.
                connections=min(connections * 5 // 4 + 96, descriptors_most() - 64),
                address=SERVICE,
                port=TCP_PORT,
                www=self.www,
            )
        )
        server = self._start("nginx", [*descriptors(), nginx.program(), "-p", str(self.folder), "-c", str(config)], "")

        def listens() -> bool:
            return f"{SERVICE}:{TCP_PORT}" in self.run("s", ["ss", "-Hltn"])

        self.until(listens, "nginx listens", 10.0, server.process)
        return server

    def _start(self, name: str, command: Sequence[str], sign: str) -> Server:
        self.stop(name)
        (self.folder / f"{name}.log").unlink(missing_ok=True)
        process = self.begin(name, command, "s", SERVER_CORE)
        server = self.servers[name] = Server(process)
        self.until(lambda: sign in process.text(), f"{name} starts", 15.0, process)
        # Work at the start (hashing the files) is not part of any figure.
        before = -1.0
        while server.cpu_s() - before > 0.001:
            before = server.cpu_s()
            time.sleep(0.1)
        return server

    def stop(self, name: str) -> None:
        """Ends a server."""
        server = self.servers.pop(name, None)
        if server is not None:
            server.process.end()

    # Load

    def congestion(self, name: Congestion) -> None:
        """Sets the congestion control of the server's later kernel TCP connections."""
        # By route: a namespace may not select a default that the machine does not permit to everyone.
        route = ["10.77.0.0/16", "dev", "s0", "src", "10.77.0.1", "congctl", name]
        self.run("s", ["ip", "route", "change", *route])

    def start_load(
        self, transport: Transport, path: str, *words: str, namespace: str = "c", port: int = 0, **flags: Any
    ) -> Process:
        """Starts rivulet-load on the client's core; `finish` waits for it. `port` replaces the usual port."""
        port = port or (RIVULET_PORT if transport == "rivulet" else TCP_PORT)
        command = [*descriptors(), binary("rivulet-load"), f"http://{SERVICE}:{port}/{path}"]
        command += ["--transport", transport, *words]
        for flag, value in flags.items():
            command += [f"--{flag.replace('_', '-')}", str(value)]
        return self.client(command, namespace)

    def client(self, command: Sequence[str], space: str = "c") -> Process:
        """Starts a program that prints its result as a line of JSON on the client's core; `finish` waits for it."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return self.begin(f"load {next(self._loads)}", command, space, CLIENT_CORE, **pipes)

    def load(self, transport: Transport, path: str, *words: str, **flags: Any) -> dict[str, Any]:
        """Runs a load until it ends; RackError if it or any request fails."""
        result = finish(self.start_load(transport, path, *words, **flags))
        if result["errors"]:
            raise RackError(f"{transport}: {result['errors']} requests failed: {result['first_error']}")
        return result

    def metrics(self) -> dict[str, float]:
        """The Rivulet server's metrics."""
        page = self.run("s", ["curl", "-s", "-m", "5", f"http://127.0.0.1:{METRICS_PORT}/metrics"])
        rows = (line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in rows}

    def down(self) -> None:
        """Also removes the served folder."""
        super().down()
        shutil.rmtree(self.www, ignore_errors=True)


def descriptors() -> list[str]:
    """Command prefix that raises the limit of descriptors, of which each connection needs one."""
    most = descriptors_most()
    return ["prlimit", f"--nofile={most}:{most}"]


def descriptors_most() -> int:
    """Most descriptors that a process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def anonymous_bytes(pid: int) -> int:
    """Resident anonymous memory of a process in bytes."""
    # From the page tables, because the counters in /proc/PID/status lag by some pages per thread.
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise RackError("no Anonymous in /proc/PID/smaps_rollup: is this Linux?")


def busy_s(core: int) -> float:
    """Seconds since boot in which a core was not idle."""
    # In microseconds, up to its last idle time; cores that never enter idle states have no such counter.
    states = list(Path(f"/sys/devices/system/cpu/cpu{core}/cpuidle").glob("state*/time"))
    if states:
        return time.monotonic() - sum(int(state.read_text()) for state in states) / 1e6
    # The kernel reports it in units of 10 ms.
    for line in Path("/proc/stat").read_text().splitlines():
        words = line.split()
        if words[0] == f"cpu{core}":
            idle, waiting = int(words[4]), int(words[5])
            return time.monotonic() - (idle + waiting) / os.sysconf("SC_CLK_TCK")
    raise RackError(f"there is no core {core}: these benches need two")


CLIENTS = tuple(f"10.77.1.{n}" for n in range(1, 9))
"""Eight addresses of the client, each good for 28,000 kernel sockets and more."""


@contextmanager
def host_rig(name: str, rtt_ms: float = 0.0, attackers: bool = False) -> Iterator[HostRig]:
    """Builds the namespaces, and removes them at the end. With `attackers` a bridge joins a third host, `a`."""
    if (os.cpu_count() or 1) < 2:
        raise RackError("server and client need a core each: this machine has one")
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with standing(HostRig(folder)) as rig:
        rig.build(rtt_ms, attackers)
        _reachable(rig, rtt_ms)
        yield rig


def _reachable(rig: HostRig, rtt_ms: float) -> None:
    """Checks the delay of the wire."""
    ping = ("ping", "-c", "5", "-i", "0.05", "-W", "1", "-q", SERVICE)
    rig.until(lambda: rig.spaces["c"].succeeds(*ping), "the client reaches the server", 10.0)
    least = float(rig.spaces["c"].run(*ping).rsplit("=", 1)[1].split("/")[0])
    if rtt_ms and not rtt_ms <= least <= rtt_ms * 1.2 + 1:
        raise RackError(f"the round-trip time is {least:.2f} ms, not {rtt_ms:g} ms")


def shaped(rig: HostRig, space: str, device: str, rate_mbit: float | None) -> None:
    """Sets a token bucket at a device's egress, as small as its rate permits (None: removes it)."""
    shape(rig.spaces[space], device, rate_mbit, max(5_000, round((rate_mbit or 0.0) * 1e6 / 8 * 0.0004)))
