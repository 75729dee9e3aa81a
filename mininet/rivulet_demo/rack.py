"""A rack built in Mininet: hosts in namespaces, a wire on every link, the ToR in a namespace of its own.

Every process is started by us and ended by its id; interfaces are made inside the namespaces, so two racks
can stand side by side and nothing is left behind in the machine's own namespace.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mininet.link import Intf
from mininet.net import Mininet
from mininet.node import Node

from .spec import SERVICE_V4, SERVICE_V6, TOR_MAC, Host, RackSpec

REPOSITORY = Path(__file__).resolve().parents[2]


class RackError(Exception):
    """The rack could not be built or does not do what it should; the text says what and where to look."""


@dataclass(slots=True)
class Process:
    """A process of the rack, with its log."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    def running(self) -> bool:
        """Whether it still runs."""
        return self.popen.poll() is None

    def end(self, how: int = signal.SIGTERM, patience_s: float = 5.0) -> None:
        """Ends it by its id: `how` first, SIGKILL if that is not heeded in time."""
        if not self.running():
            return
        self.popen.send_signal(how)
        try:
            self.popen.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait(patience_s)

    def last_lines(self, count: int = 15) -> str:
        """The end of its log, for error messages."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])
        except OSError:
            return "(no log)"


@functools.cache
def prompt() -> tuple[str, ...]:
    """What runs a command so that it is scheduled at once, as links, switches and the kernel's TCP are.

    The packet path of a rack is hardware and kernels; here it is processes, which wait for their turn on a busy
    machine, so that heartbeats come late and replicas that are well are excluded. Empty where it is not allowed.
    """
    command = ("chrt", "--rr", "5")
    try:
        allowed = subprocess.run([*command, "true"], capture_output=True, timeout=5, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        allowed = False
    return command if allowed else ()


def binary(name: str) -> str:
    """Path of one of our binaries; RIVULET_BIN overrides the folder."""
    folder = Path(os.environ.get("RIVULET_BIN", REPOSITORY / "target" / "release"))
    path = folder / name
    if not path.exists():
        raise RackError(f"{path} is not there: run `make build` first")
    return str(path)


class Rack:
    """A running rack. Use `running_rack`, which also tears it down."""

    def __init__(self, spec: RackSpec, folder: Path, switch: str) -> None:
        self.spec = spec
        self.folder = folder
        self.switch = switch
        self.processes: dict[str, Process] = {}
        self.net = Mininet(topo=None, build=False, controller=None, autoSetMacs=False)
        self.tor: Node = self.net.addHost("tor", cls=Node)
        self.nodes: dict[str, Node] = {}

    # Building

    def build(self) -> None:
        """Namespaces, links, addresses and the wires on the links."""
        _run(self.tor, "ip link set lo up")
        for host in self.spec.hosts:
            node = self.net.addHost(host.name, cls=Node)
            self.nodes[host.name] = node
            self._link(host, node)
            self._addresses(host, node)
        for host in self.spec.hosts:
            self.start(
                f"wire-{host.name}",
                self.tor,
                [
                    *prompt(),
                    binary("rivulet-wire"),
                    *(f"w-{host.name}", f"x-{host.name}", "--control", str(self.folder / f"wire-{host.name}.sock")),
                    *host.link.arguments(),
                ],
            )

    def set_link(self, host: str, **settings: str) -> None:
        """Changes a link while it runs: `set_link("r1", rate="50mbit")`."""
        words = [f"{name}={value}" for name, value in settings.items()]
        command = [binary("rivulet-wire"), "set", str(self.folder / f"wire-{host}.sock"), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        if done.returncode != 0:
            raise RackError(f"link of {host}: {done.stderr.strip() or done.stdout.strip()}")

    def _link(self, host: Host, node: Node) -> None:
        """Host interface to wire, wire to switch port; checksums are complete on both host ends."""
        pid = node.pid
        _run(self.tor, f"ip link add w-{host.name} type veth peer name {host.name}-eth0 netns {pid}")
        _run(self.tor, f"ip link add x-{host.name} type veth peer name p-{host.name}")
        for device in (f"w-{host.name}", f"x-{host.name}", f"p-{host.name}"):
            _run(self.tor, f"sysctl -qw net.ipv6.conf.{device}.disable_ipv6=1")
            _offloads_off(self.tor, device)
            _run(self.tor, f"ip link set {device} up promisc on")
        # It is made where it belongs, so Mininet must not move it.
        Intf(f"{host.name}-eth0", node=node, moveIntfFn=lambda *_: True)
        _offloads_off(node, f"{host.name}-eth0")

    def _addresses(self, host: Host, node: Node) -> None:
        device = f"{host.name}-eth0"
        _run(node, "ip link set lo up")
        # The paper compares with Reno; BBR, a common default, would push every Reno flow aside.
        _run(node, "sysctl -qw net.ipv4.tcp_congestion_control=reno")
        _run(node, f"sysctl -qw net.ipv6.conf.{device}.accept_ra=0 net.ipv6.conf.{device}.accept_dad=0")
        _run(node, f"ip link set {device} address {host.mac}")
        _run(node, f"ip link set {device} up")
        _run(node, f"ip addr add {host.ip}/24 dev {device}")
        _run(node, f"ip addr add {host.ip6}/64 dev {device} nodad")
        _run(node, f"ip route add default via {host.gateway}")
        _run(node, f"ip -6 route add default via {host.gateway6}")
        if host.role == "replica":
            # Not every kernel has dummy devices; the loopback device serves as well, since nobody announces it.
            _, _, no_dummy = node.pexec("ip link add service type dummy")
            place = "lo" if no_dummy else "service"
            _run(node, f"ip link set {place} up")
            _run(node, f"ip addr add {SERVICE_V4}/32 dev {place}")
            _run(node, f"ip addr add {SERVICE_V6}/128 dev {place} nodad")
            _run(node, "sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2")

    # Processes

    def start(self, name: str, node: Node | None, command: Sequence[str], **options: Any) -> Process:
        """Starts a process in a node's namespace (None: ours) with a log of its own.

        It ends with us, however we end: nobody could take the rack down after a kill -9.
        """
        log = self.folder / f"{name}.log"
        command = ["setpriv", "--pdeathsig", "KILL", "--", *command]
        with log.open("ab") as out:
            arguments: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out, **options}
            popen = subprocess.Popen(command, **arguments) if node is None else node.popen(command, **arguments)
        process = Process(name, popen, log)
        self.processes[name] = process
        return process

    def start_switch(self, grpc_socket: Path) -> Process:
        """Starts the ToR: the embedded switch, or simple_switch_grpc with SWITCH=bmv2."""
        command = [*prompt(), binary("rivulet-switch") if self.switch == "embedded" else "simple_switch_grpc"]
        command += ["--no-p4", "--device-id", "1"]
        for host in self.spec.hosts:
            command += ["-i", f"{host.port}@p-{host.name}"]
        command += [
            "--",
            "--cpu-port",
            "510",
            "--drop-port",
            "511",
            "--grpc-server-addr",
            f"unix:{grpc_socket}",
        ]
        process = self.start("switch", self.tor, command)
        self.wait_for(grpc_socket.exists, 60.0, process, "the switch did not open its P4Runtime socket")
        return process

    def wait_for(self, condition: Callable[[], bool], patience_s: float, process: Process | None, what: str) -> None:
        """Waits for a condition; RackError with the end of the process's log if it does not come."""
        end = time.monotonic() + patience_s
        while not condition():
            dead = process is not None and not process.running()
            if dead or time.monotonic() > end:
                tail = f"; its log ends:\n{process.last_lines()}" if process else ""
                raise RackError(f"{what}{' (it ended)' if dead else f' in {patience_s:g} s'}{tail}")
            time.sleep(0.02)

    def down(self) -> None:
        """Ends every process, newest first, and removes every namespace."""
        for process in reversed(list(self.processes.values())):
            process.end()
        for node in [*self.nodes.values(), self.tor]:
            node.terminate()


def _run(node: Node, command: str) -> str:
    """A command in a node's namespace that must succeed."""
    out, err, code = node.pexec(command)
    if code != 0:
        raise RackError(f"`{command}` failed on {node.name}: {(err or out).strip()}")
    return str(out)


def _offloads_off(node: Node, device: str) -> None:
    """veth leaves checksums and segmentation to nobody: the frames here must be whole (docs/dataplane.md)."""
    _run(node, f"ethtool -K {device} tx off rx off tso off gso off gro off txvlan off rxvlan off")


@contextmanager
def running_rack(spec: RackSpec, folder: Path, switch: str = "embedded") -> Iterator[Rack]:
    """Builds a rack and tears it down however the block ends, Ctrl-C and termination included."""
    if os.geteuid() != 0:
        raise RackError("network namespaces need root: run it with sudo")
    folder.mkdir(parents=True, exist_ok=True)

    def interrupted(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    # SIGINT too: Python leaves it ignored where it was started so, as in the background of a script.
    before = {number: signal.signal(number, interrupted) for number in (signal.SIGTERM, signal.SIGINT)}
    rack = Rack(spec, folder, switch)
    try:
        rack.build()
        yield rack
    finally:
        # A second Ctrl-C must not leave half a rack behind.
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        rack.down()
        for number, handler in before.items():
            signal.signal(number, handler)


__all__ = ["TOR_MAC", "Process", "Rack", "RackError", "binary", "prompt", "running_rack"]
