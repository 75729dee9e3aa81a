"""Replicas that are nginx with an agent beside it, their records in a memcached, and what harms them."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

from rivulet_lab import Process, RackError, binary, nginx, prompt

from ...services import Replicas
from ...spec import SERVICE_V4, SERVICE_V6

HEALTH_PATH = "/t0000.svg"
"""A tile of the page: agents ask their nginx for it before they say that the replica is ready."""

PRIORITY = 6
"""Above links, switch and clients: with nothing of its own to run on, a store that has 50 ms for an answer misses that
behind a single turn of theirs, and a server that is killed is not seen to be dead until it had its turn to die."""


@dataclass(slots=True)
class NginxReplicas(Replicas):
    """`running` are the agents; the store begins with the first."""

    servers: dict[str, Process] = field(default_factory=dict)

    def start(self, name: str) -> None:
        """Starts what is not there of a replica: nginx, its agent."""
        if "store" not in self.rack.processes:
            self._start_store()
        space = self.rack.spaces[name]
        if name not in self.servers:
            places = [f"{host}:{port}" for host in (SERVICE_V4, f"[{SERVICE_V6}]") for port in self._ports()]
            command = nginx.command(self.rack.folder / f"nginx-{name}", self.www, *places)
            self.servers[name] = self.rack.start(f"nginx-{name}", [*prompt(PRIORITY), *command], space)
        if name not in self.running:
            self.running[name] = self.rack.start(f"agent-{name}", [*prompt(PRIORITY), *self._agent(name)], space)

    def alive(self) -> list[str]:
        """Names of the replicas of which both processes run."""
        return [name for name, process in self.servers.items() if name in self.running and process.running()]

    def kill_nginx(self, name: str) -> None:
        """kill -9 of the server alone: its kernel lives on, and so does the agent."""
        process = self.servers.pop(name)
        process.popen.send_signal(signal.SIGKILL)
        process.popen.wait()

    def cut(self, name: str) -> None:
        """The cable to the ToR is pulled: the interface has no carrier."""
        self.rack.spaces["tor"].ip(f"link set w-{name} down")

    def mend(self, name: str) -> None:
        """The cable is put back."""
        self.rack.spaces["tor"].ip(f"link set w-{name} up")

    def _agent(self, name: str) -> list[str]:
        command = [binary("rivulet"), "agent", "--plain-tcp", "--health-path", HEALTH_PATH]
        command += ["--interface", f"{name}-eth0", "--socket", str(self.rack.folder / f"agent-{name}.sock")]
        return [*command, "--controller", f"unix:{self.agents}", "--name", name]

    def _ports(self) -> list[int]:
        return [port for _, port, _ in self.rack.spec.services]

    def _start_store(self) -> None:
        """memcached, which evicts nothing: a record that is gone is a connection that breaks."""
        program = shutil.which("memcached")
        if program is None:
            raise RackError("memcached is not installed: `scripts/setup.sh --trods` installs it")
        for host, place in zip(self.rack.spec.of("store"), self.rack.spec.stores(), strict=True):
            address, _, port = place.rpartition(":")
            command = [*prompt(PRIORITY), program, "-u", "root", "-l", address, "-p", port, "-U", "0", "-M"]
            self.rack.start("store", command, self.rack.spaces[host.name])


@dataclass(frozen=True, slots=True)
class Harm:
    """What is done to the replica that holds the connection, and what heals it."""

    what: str
    """What is gone."""
    words: str
    do: Callable[[NginxReplicas, str], object]
    heal: Callable[[NginxReplicas, str], None]
    forgets: bool = False
    """Whether what its agent counted is gone with it."""


HARMS = (
    Harm("nginx", "kill -9 of nginx", NginxReplicas.kill_nginx, NginxReplicas.start),
    Harm("agent", "kill -9 of the agent", NginxReplicas.kill, NginxReplicas.start, forgets=True),
    Harm("link", "the link is cut", NginxReplicas.cut, NginxReplicas.mend),
)
