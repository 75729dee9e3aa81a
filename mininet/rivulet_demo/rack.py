"""A rack in Mininet: hosts in namespaces, a wire on every link, the ToR in its own namespace.

Interfaces are made inside the namespaces, so that two racks can run at once and the machine's own namespace stays
unchanged.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mininet.link import Intf
from mininet.net import Mininet
from mininet.node import Node

from rivulet_lab import End, Lab, Namespace, Process, RackError, binary, prompt, standing, switches, veth

from .spec import SERVICE_V4, SERVICE_V6, Host, RackSpec


class Rack(Lab):
    """A running rack. `running_rack` builds it and tears it down."""

    network_priority = 5
    """Scheduling priority of wires and switch, for `prompt`."""

    def __init__(self, spec: RackSpec, folder: Path, switch: str) -> None:
        super().__init__(folder)
        self.spec = spec
        self.switch = switch
        self.net = Mininet(topo=None, build=False, controller=None, autoSetMacs=False)
        self.nodes: dict[str, Node] = {}

    # Building

    def build(self) -> None:
        """Makes namespaces, links, addresses and the wires on the links."""
        for name in ("tor", *(host.name for host in self.spec.hosts)):
            node = self.nodes[name] = self.net.addHost(name, cls=Node)
            self.spaces[name] = Namespace.of(node.pid)
            self.spaces[name].ip("link set lo up")
        for host in self.spec.hosts:
            self._host(host, End(self.spaces[host.name], f"{host.name}-eth0", mac=host.mac, ipv6=True))
        for host in self.spec.hosts:
            if host.link is None:
                continue
            ends = (f"w-{host.name}", f"x-{host.name}", "--control", str(self.folder / f"wire-{host.name}.sock"))
            wire = [*prompt(self.network_priority), binary("rivulet-wire"), *ends, *host.link.arguments()]
            self.start(f"wire-{host.name}", wire, self.spaces["tor"])

    def set_link(self, host: str, **settings: str) -> None:
        """Changes a link while it runs: `set_link("r1", rate="50mbit")`."""
        words = [f"{name}={value}" for name, value in settings.items()]
        command = [binary("rivulet-wire"), "set", str(self.folder / f"wire-{host}.sock"), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        if done.returncode != 0:
            raise RackError(f"link of {host}: {done.stderr.strip() or done.stdout.strip()}")

    def _host(self, host: Host, end: End) -> None:
        """Connects a host's interface through a wire to a port of the switch; sets addresses and routes."""
        tor, names = self.spaces["tor"], [f"{letter}-{host.name}" for letter in ("wxp" if host.link else "p")]
        veth(End(tor, names[0]), end)
        if host.link is not None:
            veth(End(tor, names[1]), End(tor, names[2]))
        tor.ip(*(f"link set {name} promisc on" for name in names))
        # The interface is made in its namespace, so Mininet must not move it.
        Intf(end.device, node=self.nodes[host.name], moveIntfFn=lambda *_: True)
        # The paper compares with Reno; BBR, a common default, would suppress every Reno flow.
        end.space.set("net.ipv4.tcp_congestion_control=reno")
        end.space.ip(
            f"addr add {host.ip}/24 dev {end.device}",
            f"addr add {host.ip6}/64 dev {end.device} nodad",
            f"route add default via {host.gateway}",
            f"route add default via {host.gateway6}",
        )
        if host.role == "replica":
            end.space.serve_at(SERVICE_V4, SERVICE_V6)

    # Processes

    def start_switch(self, grpc_socket: Path) -> Process:
        """Starts the ToR: the embedded switch, or simple_switch_grpc with SWITCH=bmv2."""
        ports = {host.port: f"p-{host.name}" for host in self.spec.hosts}
        command = [*prompt(self.network_priority), *switches.command(self.switch, ports, f"unix:{grpc_socket}")]
        process = self.start("switch", command, self.spaces["tor"])
        self.until(grpc_socket.exists, "the switch opens its P4Runtime socket", 60.0, process)
        return process

    def down(self) -> None:
        """Stops the nodes of Mininet, too."""
        super().down()
        for node in self.nodes.values():
            node.terminate()


@contextmanager
def running_rack(spec: RackSpec, folder: Path, switch: str = "embedded") -> Iterator[Rack]:
    """Builds a rack and tears it down at the end of the block, also on Ctrl-C and SIGTERM."""
    if os.geteuid() != 0:
        raise RackError("network namespaces need root: run it with sudo")
    with standing(Rack(spec, folder, switch)) as rack:
        rack.build()
        yield rack
