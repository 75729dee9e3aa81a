"""Replicas with nginx and an agent, with their records in memcached, and the harms."""

from __future__ import annotations

import shutil
import signal
from dataclasses import dataclass, field
from typing import ClassVar

from rivulet_lab import Process, RackError, binary, nginx, prompt

from ...harms import Harm
from ...services import Replicas
from ...spec import SERVICE_V4, SERVICE_V6

HEALTH_PATH = "/t0000.svg"
"""A tile of the page, which an agent requests from its nginx before it reports the replica as ready."""

PRIORITY = 6
"""Priority above links, switch and clients: below it a store that must answer within 50 ms could wait too long for a
processor, and a killed server would end late."""


@dataclass(slots=True)
class NginxReplicas(Replicas):
    """`running` holds the agents; the first start also starts the store."""

    health: ClassVar[tuple[str, ...]] = ("--health-path", HEALTH_PATH)
    """Flags of the agent's checks."""
    servers: dict[str, Process] = field(default_factory=dict)

    def start(self, name: str) -> None:
        """Starts the missing processes of a replica: nginx, its agent."""
        if "store" not in self.rack.processes:
            self._start_store()
        space = self.rack.spaces[name]
        if name not in self.servers:
            self.servers[name] = self.rack.start(f"nginx-{name}", [*prompt(PRIORITY), *self._nginx(name)], space)
        if name not in self.running:
            self.running[name] = self.rack.start(f"agent-{name}", [*prompt(PRIORITY), *self._agent(name)], space)

    def alive(self) -> list[str]:
        """Names of the replicas with both processes running."""
        return [name for name, process in self.servers.items() if name in self.running and process.running()]

    def kill_nginx(self, name: str) -> None:
        """Kills only the server, with SIGKILL: its kernel and the agent stay."""
        process = self.servers.pop(name)
        process.popen.send_signal(signal.SIGKILL)
        process.popen.wait()

    def cut(self, name: str) -> None:
        """Cuts the link to the ToR: the interface loses its carrier."""
        self.rack.spaces["tor"].ip(f"link set w-{name} down")

    def mend(self, name: str) -> None:
        """Restores the link."""
        self.rack.spaces["tor"].ip(f"link set w-{name} up")

    def _nginx(self, name: str) -> list[str]:
        places = [f"{host}:{port}" for host in (SERVICE_V4, f"[{SERVICE_V6}]") for port in self._ports()]
        return nginx.command(self.rack.folder / f"nginx-{name}", self.www, *places)

    def _agent(self, name: str) -> list[str]:
        command = [binary("rivulet"), "agent", "--plain-tcp", *self.health]
        command += ["--interface", f"{name}-eth0", "--socket", str(self.rack.folder / f"agent-{name}.sock")]
        return [*command, "--controller", f"unix:{self.agents}", "--name", name]

    def _ports(self) -> list[int]:
        return [port for _, port, _ in self.rack.spec.services]

    def _start_store(self) -> None:
        """memcached without eviction: an evicted record would be a broken connection."""
        program = shutil.which("memcached")
        if program is None:
            raise RackError("memcached is not installed: `scripts/setup.sh --trods` installs it")
        for host, place in zip(self.rack.spec.of("store"), self.rack.spec.stores(), strict=True):
            address, _, port = place.rpartition(":")
            command = [*prompt(PRIORITY), program, "-u", "root", "-l", address, "-p", port, "-U", "0", "-M"]
            self.rack.start("store", command, self.rack.spaces[host.name])


HARMS = (
    Harm("nginx", "kill -9 of nginx", NginxReplicas.kill_nginx, NginxReplicas.start),
    Harm("agent", "kill -9 of the agent", NginxReplicas.kill, NginxReplicas.start, forgets=True),
    Harm("link", "the link is cut", NginxReplicas.cut, NginxReplicas.mend),
)
