"""Replicas with nginx behind `rivulet tls`, and the harms."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path

from rivulet_controller.client import Client
from rivulet_lab import Process, binary, nginx, prompt

from ...harms import Harm
from ...spec import SERVICE_V4, SERVICE_V6
from ..trods.replicas import PRIORITY, NginxReplicas

PLAIN = "127.0.0.1:8080"
"""Where nginx serves plain HTTP to `rivulet tls`."""
NGINX_PORT = 8443
"""Where the same nginx ends TLS itself, for comparison."""


@dataclass(slots=True)
class TlsReplicas(NginxReplicas):
    """A terminator beside each nginx. It gets certificates, server and ticket keys from the controller by the agent."""

    health = ()
    """nginx's own TLS would answer no plain GET."""
    terminators: dict[str, Process] = field(default_factory=dict)

    def start(self, name: str) -> None:
        """Starts the missing processes of a replica."""
        # Named explicitly: `super()` does not work in dataclasses with slots, which are new classes.
        NginxReplicas.start(self, name)
        if name not in self.terminators:
            command = [*prompt(PRIORITY), binary("rivulet"), "tls", "--workers", "1"]
            command += ["--agent", str(self.rack.folder / f"agent-{name}.sock")]
            self.terminators[name] = self.rack.start(f"tls-{name}", command, self.rack.spaces[name])

    def alive(self) -> list[str]:
        """Names of the replicas with all processes running."""
        return [name for name in NginxReplicas.alive(self) if name in self.terminators]

    def kill_terminator(self, name: str) -> None:
        """Kills only the terminator, with SIGKILL."""
        process = self.terminators.pop(name)
        process.popen.send_signal(signal.SIGKILL)
        process.popen.wait()

    def drain(self, name: str) -> None:
        """Has the controller move the connections away from a replica."""
        self._api().post(f"/api/replicas/{name}/drain")

    def undrain(self, name: str) -> None:
        """Takes a drained replica back."""
        self._api().post(f"/api/replicas/{name}/undrain")

    def _api(self) -> Client:
        return Client(f"unix:{self.rack.folder / 'api.sock'}", timeout_s=10.0)

    def _nginx(self, name: str) -> list[str]:
        """nginx with plain HTTP on loopback, and with TLS of its own at the addresses of the service."""
        own = [f"{host}:{NGINX_PORT} ssl" for host in (SERVICE_V4, f"[{SERVICE_V6}]")]
        folder: Path = self.rack.folder
        pair = (folder / "site.pem", folder / "site.key")
        return nginx.command(folder / f"nginx-{name}", self.www, PLAIN, *own, certificate=pair)


HARMS = (
    # First: it ends the connection of nginx's own TLS.
    Harm("nginx", "kill -9 of nginx", TlsReplicas.kill_nginx, TlsReplicas.start, moves=False),
    Harm("tls", "kill -9 of rivulet tls", TlsReplicas.kill_terminator, TlsReplicas.start),
    Harm("agent", "kill -9 of the agent", TlsReplicas.kill, TlsReplicas.start, forgets=True),
    Harm("link", "the link is cut", TlsReplicas.cut, TlsReplicas.mend),
    Harm("drain", "the replica is drained", TlsReplicas.drain, TlsReplicas.undrain),
)
