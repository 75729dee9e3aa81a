"""Replicas with long sessions: sshd and a websocket echo beside nginx, and an agent that can be restarted."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from rivulet_lab import prompt, talk

from ...spec import SERVICE_PORT, SERVICE_V4
from ..trods.replicas import PRIORITY, NginxReplicas

SSH, CHAT = 22, 8080
"""Ports: sshd with the kernel's TCP, the websocket under TRODS, which cannot protect it."""


@dataclass(slots=True)
class SessionReplicas(NginxReplicas):
    """The servers of the sessions keep running while the agent is restarted."""

    health = ()
    """Not all of the services would answer a GET."""

    def start(self, name: str) -> None:
        """Starts the missing processes of a replica."""
        if f"sshd-{name}" not in self.rack.processes:
            space = self.rack.spaces[name]
            sshd = talk.sshd(self.rack.folder / "ssh", f"0.0.0.0:{SSH}", f"[::]:{SSH}")
            self.rack.start(f"sshd-{name}", [*prompt(PRIORITY), *sshd], space)
            self.rack.start(f"chat-{name}", talking("serve-websocket", CHAT, address="::"), space)
        # Named explicitly: `super()` does not work in dataclasses with slots, which are new classes.
        NginxReplicas.start(self, name)

    def stop(self, name: str) -> None:
        """Stops the agent, as the first step of an upgrade."""
        self.running.pop(name).end(signal.SIGTERM)

    def key(self) -> Path:
        """Key with which the client logs in."""
        return self.rack.folder / "ssh" / "client"

    def _ports(self) -> list[int]:
        return [SERVICE_PORT]


def talking(what: str, port: int, *more: str, address: str = SERVICE_V4) -> list[str]:
    """Command of one end of a session."""
    return [*prompt(), sys.executable, "-m", "rivulet_lab.talk", what, address, str(port), *more]
