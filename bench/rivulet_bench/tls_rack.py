"""The rack of `make bench-tls-kills`: that of `make bench-trods`, with `rivulet tls` before nginx on each replica."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rivulet_demo.spec import SERVICE_V4
from rivulet_lab import binary, prompt

from .trods_rack import FOLDER, WWW, Trods, TrodsRack, nginx_command

PORT = 443
SERVER = "127.0.0.1:8080"
"""nginx of each replica, without TLS."""
KEYS = FOLDER / "tls"
CERTIFICATE, KEY = KEYS / "site.pem", KEYS / "site.key"


@dataclass(frozen=True, slots=True)
class Tls(Trods):
    """The configuration with `tls` for the service."""

    def controller_config(self, switch_address: str, agents: str, api: str, state: str) -> dict[str, Any]:
        """Also adds certificate and server."""
        config = super(Tls, self).controller_config(switch_address, agents, api, state)
        files = [{"certificate": str(CERTIFICATE), "key": str(KEY)}]
        config["services"][0] |= {"port": PORT, "tls": {"certificates": files, "server": SERVER}}
        return config


def make_certificate(folder: Path = KEYS) -> None:
    """Makes key and certificate (ECDSA P-256) for the service's address, if they do not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    certificate, key = folder / CERTIFICATE.name, folder / KEY.name
    if certificate.exists():
        return
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    command += ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=rack"]
    subprocess.run([*command, "-addext", f"subjectAltName=IP:{SERVICE_V4}"], check=True, capture_output=True)
    key.chmod(0o600)


class TlsRack(TrodsRack):
    """The running rack. A replica's processes are its agent, its terminator and nginx on loopback."""

    service_port = PORT
    parts = ("agent", "terminator", "nginx")

    def begin(self) -> None:
        """Makes the certificate first."""
        make_certificate()
        super().begin()

    def start_replica(self, name: str) -> None:
        """Starts all processes of a replica."""
        super().start_replica(name)
        self.start_terminator(name)

    def start_nginx(self, name: str) -> None:
        """Starts nginx on a replica."""
        command = [*prompt(), *nginx_command(self.folder / f"nginx-{name}.d", WWW, SERVER)]
        self.start(f"nginx-{name}", command, self.spaces[name])

    def start_terminator(self, name: str) -> None:
        """Starts the terminator of a replica."""
        command = [binary("rivulet"), "tls", "--agent", str(self.folder / f"{name}.agent"), "--workers", "1"]
        self.start(f"terminator-{name}", [*prompt(), *command], self.spaces[name])

    def heal(self, name: str, how: str) -> None:
        """Repairs the failure."""
        if how == "terminator":
            self.start_terminator(name)
        else:
            super().heal(name, how)  # type: ignore[arg-type]
