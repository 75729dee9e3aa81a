"""Runs a `topology.json` of p4lang/tutorials in Mininet, on either switch."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

try:
    from mininet.log import error, output
    from mininet.net import Mininet
    from mininet.node import Host, Switch
except ImportError:
    sys.exit("error: Mininet is not installed for this Python: run `make setup`, then .venv/bin/rivulet-lab")

from mininet.topo import Topo

from .binaries import RackError, binary
from .console import Console
from .lab import Process, standing
from .mininet_nodes import LAB, LabCLI, P4Switch
from .namespaces import Namespace, shape
from .p4runtime import Connection
from .runtime_json import Runtime
from .topology import Topology, TopologyLink

SLOW_MBIT, SLOW_BURST = 100.0, 15_000
"""Below this rate a token bucket has this burst in bytes, as Mininet's has: a larger one would last seconds."""


class ExerciseHost(Host):  # type: ignore[misc]
    """A host whose interface is `eth0`, as the tutorials' commands and programs expect."""

    def config(self, **params: Any) -> Any:
        """Sets its addresses; without IPv6 the kernel sends nothing by itself."""
        result = super().config(**params)
        self.defaultIntf().rename("eth0")
        space = Namespace.of(self.pid)
        space.set(*(f"net.ipv6.conf.{device}.disable_ipv6=1" for device in ("all", "default", "lo")))
        space.turn_offloads_off("eth0")
        return result


class Wire(Switch):  # type: ignore[misc]
    """Delays what passes between its two interfaces."""

    def __init__(self, name: str, delay_ms: float, **params: Any) -> None:
        self.delay_ms = delay_ms
        self.process: Process | None = None
        super().__init__(name, **{**params, "inNamespace": True})

    def start(self, controllers: list[Any]) -> None:
        """Starts the process that delays."""
        space = Namespace.of(self.pid)
        devices = [intf.name for intf in self.intfList() if intf.name != "lo"]
        for device in devices:
            space.attach(device)
        command = [binary("rivulet-wire"), *devices, "--delay", f"{self.delay_ms:g}ms", "--queue", "10000"]
        self.process = LAB.start(self.name, command, space)

    def stop(self, deleteIntfs: bool = True) -> None:
        """Ends the process by its id."""
        if self.process is not None:
            self.process.end()
        super().stop(deleteIntfs)


class ExerciseTopo(Topo):  # type: ignore[misc]
    """The nodes and links of a topology."""

    def build(self, topology: Topology, program: str, **options: Any) -> None:
        """Adds them. `program`: of switches that have none in the topology."""
        for switch in topology.switches:
            self.addSwitch(
                switch.name,
                cls=P4Switch,
                dpid=f"{switch.device_id + 1:x}",
                device_id=switch.device_id,
                program=str(topology.find(switch.program)) if switch.program else program,
                cpu_port=switch.cpu_port,
                priority_queues=switch.priority_queues,
                **options,
            )
        for host in topology.hosts:
            self.addHost(host.name, cls=ExerciseHost, ip=host.ip, mac=host.mac)
        for number, link in enumerate(topology.links, 1):
            one, two = (link.one.node, link.one.port), (link.two.node, link.two.port)
            if link.latency_ms:
                wire, dpid = f"wire{number}", f"{0x10000 + number:x}"
                self.addSwitch(wire, cls=Wire, delay_ms=link.latency_ms, dpid=dpid)
                self.addLink(one[0], wire, port1=one[1], port2=1)
                self.addLink(wire, two[0], port1=2, port2=two[1])
            else:
                self.addLink(one[0], two[0], port1=one[1], port2=two[1])


class ExerciseCLI(LabCLI):
    """Mininet's prompt with `console` and `trace`."""

    def do_console(self, line: str) -> None:
        """console SWITCH [COMMAND ...]: the words of simple_switch_CLI, or one of its commands; `exit` comes back."""
        name, _, command = line.strip().partition(" ")
        switch = self.mn.nameToNode.get(name)
        if not isinstance(switch, P4Switch):
            error(f"{name!r} is no switch: write console {self._switches()}\n")
            return
        try:
            with Connection(f"unix:{switch.socket}", switch.device_id) as connection:
                console = Console(connection, prompt=f"{name}> ", out=self.stdout)
                if command:
                    console.run_line(command)
                else:
                    console.run()
        except RackError as problem:
            error(f"error: {problem}\n")

    def _switches(self) -> str:
        return " or ".join(switch.name for switch in self.mn.switches if isinstance(switch, P4Switch))

    def do_trace(self, line: str) -> None:
        """trace SWITCH [LINES]: prints the newest lines of a switch's log; needs `--trace`."""
        words = line.split()
        switch = self.mn.nameToNode.get(words[0]) if words else None
        if not isinstance(switch, P4Switch):
            error(f"write trace {self._switches()}\n")
        elif not switch.trace:
            error("the switches do not trace: start with --trace\n")
        elif switch.process is not None:
            output(switch.process.last_lines(int(words[1]) if words[1:] and words[1].isdigit() else 40) + "\n")


def _check_ports(first: int, count: int) -> None:
    """RackError if one of the TCP ports is in use."""
    for port in range(first, first + count) if first else ():
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(("127.0.0.1", port))
            except OSError as problem:
                raise RackError(
                    f"the TCP port {port} of P4Runtime is not free ({problem.strerror}): another lab may run; choose"
                    " others with --grpc-port FIRST, or none with --grpc-port 0"
                ) from None


def _shape(net: Mininet, link: TopologyLink) -> None:
    """Limits the rate of both directions of a link."""
    if link.rate_mbit is None:
        return
    for end in (link.one, link.two):
        node = net.get(end.node)
        device = "eth0" if isinstance(node, ExerciseHost) else f"{end.node}-eth{end.port}"
        burst = {"burst": SLOW_BURST} if link.rate_mbit < SLOW_MBIT else {}
        shape(Namespace.of(node.pid), device, link.rate_mbit, **burst)


def _start(net: Mininet, topology: Topology, runtimes: dict[str, Runtime], grpc_port: int) -> None:
    """Starts the nodes, runs the hosts' commands and loads the switches."""
    net.build()
    for link in topology.links:
        _shape(net, link)
    net.start()
    for host in topology.hosts:
        for command in host.commands:
            text = net.get(host.name).cmd(command).strip()
            if net.get(host.name).cmd("echo $?").strip() != "0":
                error(f"warning: {host.name}: `{command}` failed: {text}\n")
    for switch in topology.switches:
        node = net.get(switch.name)
        address, where = f"unix:{node.socket}", ""
        if grpc_port:
            port = grpc_port + switch.device_id
            listen = f"TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr,fork"
            LAB.start(f"{switch.name}-grpc", ["socat", listen, f"UNIX-CONNECT:{node.socket}"])
            where = f"P4Runtime at 127.0.0.1:{port} and "
        loaded = "no runtime_json: a controller must write its tables"
        if switch.name in runtimes:
            runtime = runtimes[switch.name]
            with Connection(address, switch.device_id) as connection:
                runtime.load(connection)
            loaded = f"{len(runtime.entities)} entries of {runtime.path.name}"
        log = LAB.folder / f"{switch.name}.log"
        output(f"{switch.name}: {where}{address}, device {switch.device_id}; {loaded}; log {log}\n")


def run(
    path: Path, *, program: str, switch: str, log_dir: str, pcap_dir: str, trace: bool, grpc_port: int, test: str
) -> int:
    """Runs a topology with its prompt, or a test; returns the exit code. RackError if something is wrong."""
    topology = Topology.of(path)
    program = str(topology.find(program)) if program else ""
    runtimes = {s.name: Runtime(topology.find(s.runtime), topology.find) for s in topology.switches if s.runtime}
    _check_ports(grpc_port, len(topology.switches))
    if os.geteuid() != 0:
        raise RackError("network namespaces need root: run it with sudo")
    # Relative: the path of a Unix socket has at most 107 characters.
    LAB.folder = Path(os.path.relpath(log_dir))
    LAB.folder.mkdir(parents=True, exist_ok=True)
    for old in (*LAB.folder.glob("*.log"), *LAB.folder.glob("*.sock")):
        old.unlink()
    with standing(LAB):
        # Not KeyboardInterrupt, which the prompt of Mininet ignores.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        options = {"binary": switch, "pcap": bool(pcap_dir), "pcap_dir": pcap_dir, "trace": trace}
        net = Mininet(topo=ExerciseTopo(topology, program, **options), controller=None, build=False)
        try:
            _start(net, topology, runtimes, grpc_port)
            if test:
                return 1 if net.pingAll() else 0
            output("at the prompt: pingall; h1 ping h2; xterm h1; console s1 table_dump TABLE; exit\n")
            ExerciseCLI(net)
        finally:
            net.stop()
            for sock in LAB.folder.glob("*.sock"):
                sock.unlink()
    return 0
