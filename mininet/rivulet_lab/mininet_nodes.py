"""Nodes of Mininet for a rack: P4 switch, controller, hosts, and a prompt that kills replicas.

Debian's `mn` runs this with the system's Python, so that only the standard library and Mininet are imported. The
controller needs more packages and runs as a process of its own, from `.venv`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

from mininet.cli import CLI
from mininet.log import error, output
from mininet.node import Controller, Host, Switch

from mininet.topo import Topo
from rivulet_demo.spec import SERVICE_PORT, SERVICE_V4, SERVICE_V6, RackSpec
from rivulet_demo.spec import rack as rack_spec

from . import switches
from .binaries import REPOSITORY, RackError, binary
from .lab import Lab, Process
from .namespaces import Namespace

LAB = Lab(REPOSITORY / "build" / "mininet" / str(os.getpid()))
"""Processes of this run, with their logs. Each ends with this process, even after kill -9."""


class RackHost(Host):  # type: ignore[misc]
    """A host of the rack; a replica serves `www` and can be killed and returned."""

    def config(self, role: str = "client", ip6: str = "", gateway6: str = "", **params: Any) -> Any:
        """Sets addresses and routes, and the service's addresses of a replica."""
        result = super().config(**params)
        device, space = self.defaultIntf().name, Namespace.of(self.pid)
        space.turn_offloads_off(device)
        space.ip(f"addr add {ip6}/64 dev {device} nodad", f"route add default via {gateway6}")
        if role == "replica":
            space.serve_at(SERVICE_V4, SERVICE_V6)
        return result

    def serve(self, agents: Path) -> None:
        """Starts the serving process of a replica."""
        www = LAB.folder / "www"
        www.mkdir(parents=True, exist_ok=True)
        (www / "hello.txt").write_text("hello from the rack\n")
        command = [binary("rivulet"), "serve", str(www), "--interface", self.defaultIntf().name]
        LAB.start(self.name, [*command, "--controller", f"unix:{agents}", "--name", self.name], Namespace.of(self.pid))


class P4Switch(Switch):  # type: ignore[misc]
    """A P4 switch in its own namespace, with P4Runtime on a Unix socket.

    `binary`: embedded, bmv2, or a path that takes their flags. `program` and `p4info`: compiled program that it starts
    with; without one a controller sends the program. `pcap`: write a file for each interface, into `pcap_dir`. `trace`:
    log each packet. `device_id`, `cpu_port` and `priority_queues` are the switch's own flags.
    """

    def __init__(
        self,
        name: str,
        binary: str = "embedded",
        program: str = "",
        p4info: str = "",
        pcap: bool = False,
        trace: bool = False,
        pcap_dir: str = "",
        device_id: int = 1,
        cpu_port: int | None = switches.CPU_PORT,
        priority_queues: int | None = None,
        **params: Any,
    ) -> None:
        for path in filter(None, (program, p4info)):
            if not Path(path).is_file():
                raise RackError(f"{path} does not exist: give the files that p4c wrote (program=X.json,p4info=X.txtpb)")
        self.kind, self.program, self.p4info = binary, program, p4info
        self.path = binary if binary not in switches.SWITCHES else switches.program(binary)
        if not os.access(self.path, os.X_OK):
            raise RackError(f"{self.path} is not a program: binary= takes embedded, bmv2 or a path")
        self.pcap, self.trace = Path(pcap_dir or LAB.folder / "pcap") if pcap else None, trace
        self.device_id, self.cpu_port, self.priority_queues = device_id, cpu_port, priority_queues
        self.process: Process | None = None
        super().__init__(name, **{**params, "inNamespace": True})

    @property
    def socket(self) -> Path:
        """Socket of its P4Runtime server."""
        return LAB.folder / f"{self.name}.sock"

    def start(self, controllers: list[Any]) -> None:
        """Starts the switch, then the controllers that need its socket."""
        space = Namespace.of(self.pid)
        ports = {port: intf.name for port, intf in self.intfs.items() if intf.name != "lo"}
        for device in ports.values():
            space.attach(device)
        flags = ["--log-console", "-L", "trace" if self.trace else "info"]
        if self.pcap is not None:
            self.pcap.mkdir(parents=True, exist_ok=True)
            flags.append(f"--pcap={self.pcap}")
        if self.p4info and self.kind == "embedded":
            flags += ["--p4info", self.p4info]
        command = switches.command(
            self.kind,
            ports,
            f"unix:{self.socket}",
            device_id=self.device_id,
            flags=flags,
            path=self.path,
            json_file=self.program,
            cpu_port=self.cpu_port,
            priority_queues=self.priority_queues,
        )
        self.process = LAB.start(self.name, command, space)
        LAB.until(self.socket.exists, f"{self.name} opens its P4Runtime socket", 60.0, self.process)
        for controller in controllers:
            if isinstance(controller, RivuletController):
                controller.control(self)

    def stop(self, deleteIntfs: bool = True) -> None:
        """Ends the switch by its id."""
        if self.process is not None:
            self.process.end()
        super().stop(deleteIntfs)


class Bmv2Switch(P4Switch):
    """The same with simple_switch_grpc."""

    def __init__(self, name: str, **params: Any) -> None:
        super().__init__(name, **{"binary": "bmv2", **params})


class RivuletController(Controller):  # type: ignore[misc]
    """Rivulet's controller, and the replicas that report to it."""

    def __init__(self, name: str, **params: Any) -> None:
        self.agents = LAB.folder / "agents.sock"
        super().__init__(name, **params)

    def checkListening(self) -> None:
        """There is no OpenFlow port."""

    def start(self) -> None:
        """The switch calls `control` when it listens."""

    def stop(self, *_: Any, **__: Any) -> None:
        """Ends all processes of this run by their ids, and the node."""
        LAB.down()
        super(Controller, self).stop()

    def control(self, switch: P4Switch) -> None:
        """Starts the controller for this switch and waits until its entries are there."""
        program = REPOSITORY / ".venv" / "bin" / "rivulet-controller"
        if not program.exists():
            raise RackError(f"{program} does not exist: run `make setup` first, or use --controller none")
        spec = RackTopo.spec
        if spec is None:
            raise RackError("Rivulet's controller configures --topo rack only: use --controller none")
        path = LAB.folder / "rack.yaml"
        listen = (f"unix:{switch.socket}", f"unix:{self.agents}", f"unix:{LAB.folder / 'api.sock'}")
        path.write_text(json.dumps(spec.controller_config(*listen, str(LAB.folder / "controller.db"))))
        process = LAB.start("controller", [str(program), str(path)])
        LAB.until(self.agents.exists, "the controller accepts agents", 60.0, process)
        hosts = [end.node for intf in switch.intfList() for end in peers(intf)]
        for host in hosts:
            if host.params.get("role") == "replica":
                host.serve(self.agents)
        for host in hosts:
            space, gateway = Namespace.of(host.pid), spec.host(host.name).gateway
            LAB.until(
                lambda space=space, gateway=gateway: space.succeeds("ping", "-c1", "-W1", gateway),  # type: ignore[misc]
                f"the switch answers {host.name}",
                60.0,
                process,
            )


def peers(intf: Any) -> list[Any]:
    """The interface at the other end of a link, if there is a link."""
    return [end for end in (intf.link.intf1, intf.link.intf2) if end is not intf] if intf.link else []


class RackTopo(Topo):  # type: ignore[misc]
    """One ToR switch `s1`, clients `c1`, ... and replicas `r1`, ... of the demos' rack."""

    spec: RackSpec | None = None
    """The rack that was built last."""

    def build(self, replicas: int = 3, clients: int = 2) -> None:
        """Adds the nodes and links."""
        if not 1 <= replicas <= 99 or not 1 <= clients <= 99:
            raise RackError("replicas= and clients= take 1 to 99")
        spec = RackTopo.spec = rack_spec(clients=clients, replicas=replicas, direct=True)
        self.addSwitch("s1")
        for host in spec.hosts:
            gateways = {"defaultRoute": f"via {host.gateway}", "gateway6": host.gateway6}
            self.addHost(
                host.name, cls=RackHost, role=host.role, ip=f"{host.ip}/24", mac=host.mac, ip6=host.ip6, **gateways
            )
            self.addLink(host.name, "s1", port1=0, port2=host.port)


class LabCLI(CLI):  # type: ignore[misc]
    """Mininet's prompt, which a missing terminal program does not end."""

    def do_xterm(self, line: str, term: str = "xterm") -> None:
        """xterm HOST ...: opens a terminal on each host; needs a display, xterm and xhost."""
        missing = [name for name in (term, "xhost") if shutil.which(name) is None]
        if not os.environ.get("DISPLAY"):
            error("there is no display: DISPLAY is not set\n")
        elif missing:
            error(f"{' and '.join(missing)} is not installed: apt install xterm x11-xserver-utils\n")
        else:
            super().do_xterm(line, term)


class RackCLI(LabCLI):
    """Mininet's prompt with `r1 kill`, `r1 return` and `trace`."""

    def default(self, line: str) -> Any:
        """Kills or returns a replica; everything else is Mininet's."""
        words = line.split()
        if len(words) != 2 or words[1] not in ("kill", "return"):
            return super().default(line)
        name, node = words[0], self.mn.nameToNode.get(words[0])
        controller = next((c for c in self.mn.controllers if isinstance(c, RivuletController)), None)
        if not isinstance(node, RackHost) or node.params.get("role") != "replica":
            error(f"{name} is no replica: replicas are r1, r2, ...\n")
        elif controller is None:
            error("replicas serve only with Rivulet's controller: start without --controller none\n")
        elif words[1] == "kill":
            if name in LAB.processes and LAB.processes[name].running():
                LAB.end(name, signal.SIGKILL)
                output(f"{name}: serving process killed\n")
            else:
                error(f"{name} is not running: `{name} return` starts it\n")
        elif name in LAB.processes and LAB.processes[name].running():
            error(f"{name} is already running\n")
        else:
            node.serve(controller.agents)
            output(f"{name}: serving process started\n")
        return None

    def do_trace(self, line: str) -> None:
        """trace [LINES]: prints the newest lines of each switch's log; needs the switch's option trace=1."""
        count = int(line) if line.strip().isdigit() else 40
        for switch in self.mn.switches:
            if not getattr(switch, "trace", False):
                error(f"{switch.name} does not trace: start with --switch rivulet,trace=1 (or topo.py --trace)\n")
            else:
                output(switch.process.last_lines(count) + "\n")


SERVICE_URL = f"http://{SERVICE_V4}:{SERVICE_PORT}/hello.txt"
