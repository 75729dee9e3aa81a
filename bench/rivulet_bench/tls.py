"""`rivulet tls` compared with nginx that ends TLS itself, in one run on loopback.

Both have the same certificate and cipher. Behind `rivulet tls` runs the same nginx without TLS.
Each server has one worker on one core; the clients use the other core.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from rivulet_lab import Lab, Process, standing

from .bars import Bar, judge

Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
CIPHER = "TLS_AES_128_GCM_SHA256"
BULK = 200_000_000
SMALL = 1_000
SERVER_CORE, CLIENT_CORE = "0", "1"
PATIENCE_S = 30.0

NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ worker_connections 1024; }}
http {{
  access_log off; sendfile on; keepalive_requests 1000000;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  ssl_certificate {folder}/site.pem; ssl_certificate_key {folder}/site.key;
  ssl_protocols TLSv1.2 TLSv1.3; ssl_session_tickets on; ssl_session_cache shared:S:10m;
  server {{ listen 127.0.0.1:{nginx} ssl; root {folder}/www; }}
  server {{ listen 127.0.0.1:{plain}; root {folder}/www; }}
}}
"""


def free_ports(count: int) -> list[int]:
    """Unused ports on loopback."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def listens(port: int) -> bool:
    """Whether a server of loopback accepts connections at this port."""
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def cpu_s(pid: int) -> float:
    """Processor time of a process and its running children, seconds."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    # Read from their CPU clocks (clock_getcpuclockid(3)).
    return sum(time.clock_gettime_ns((~each << 3) | 2) for each in (pid, *map(int, children))) / 1e9


class Rig:
    """The servers of both kinds, and their certificate and files."""

    def __init__(self, lab: Lab, binary: Path) -> None:
        self.lab, folder = lab, lab.folder
        self.folder = folder
        ports = free_ports(4)
        self.ports = dict(zip(("nginx", "plain", "rivulet", "other"), ports, strict=True))
        (folder / "www").mkdir()
        (folder / "www" / "bulk").write_bytes(os.urandom(1 << 20) * (BULK >> 20) + bytes(BULK % (1 << 20)))
        (folder / "www" / "small").write_bytes(bytes(SMALL))
        self._make_certificate()
        (folder / "nginx.conf").write_text(NGINX.format(folder=folder, **self.ports))
        self.processes = {"nginx": self._start("nginx", ["nginx", "-c", str(folder / "nginx.conf"), "-p", str(folder)])}
        for name in ("rivulet", "other"):
            listen, server = f"127.0.0.1:{self.ports[name]}", f"127.0.0.1:{self.ports['plain']}"
            words = ["--listen", listen, "--server", server, "--certificate", str(folder / "site.pem")]
            words += ["--key", str(folder / "site.key"), "--ticket-keys", str(folder / "tickets"), "--workers", "1"]
            self.processes[name] = self._start(name, [str(binary), "tls", *words])
        for port in ports:
            self._wait(port)

    def _make_certificate(self) -> None:
        site = ["-keyout", str(self.folder / "site.key"), "-out", str(self.folder / "site.pem")]
        words = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
        words += ["-subj", "/CN=bench", "-addext", "subjectAltName=IP:127.0.0.1", *site]
        subprocess.run(["openssl", "req", *words], check=True, capture_output=True)
        (self.folder / "site.key").chmod(0o600)
        (self.folder / "tickets").write_text(os.urandom(32).hex())
        (self.folder / "tickets").chmod(0o600)

    def _start(self, name: str, command: list[str]) -> Process:
        return self.lab.start(name, ["taskset", "-c", SERVER_CORE, *command])

    def _wait(self, port: int) -> None:
        self.lab.until(lambda: listens(port), f"port {port} listens", PATIENCE_S, *self.processes.values())

    def cpu_s(self, kind: str) -> float:
        """Processor time of all processes of one kind of server, seconds."""
        names = ("nginx",) if kind == "nginx" else ("nginx", "rivulet")
        return sum(cpu_s(self.processes[name].pid) for name in names)

    def context(self) -> ssl.SSLContext:
        """The TLS context of a client that trusts the certificate."""
        return ssl.create_default_context(cafile=str(self.folder / "site.pem"))


@contextlib.contextmanager
def rig(binary: Path) -> Iterator[Rig]:
    """Runs the servers until the end of the block."""
    with tempfile.TemporaryDirectory() as name, standing(Lab(Path(name))) as lab:
        lab.folder.chmod(0o755)
        yield Rig(lab, binary)


KINDS = ("nginx", "rivulet")


def turns(rounds: int) -> list[tuple[int, str]]:
    """Yields every kind in every round; each kind is first as often as last."""
    return [(n, kind) for n in range(rounds) for kind in (KINDS if n % 2 == 0 else reversed(KINDS))]


def client(*command: str) -> str:
    """Runs a client on its core; returns its output."""
    return subprocess.run(["taskset", "-c", CLIENT_CORE, *command], check=True, capture_output=True, text=True).stdout


def bulk(servers: Rig, rounds: int) -> list[Json]:
    """Measures one download by curl in each round."""
    rows: list[Json] = []
    for n, kind in turns(rounds):
        before = servers.cpu_s(kind)
        words = ["-q", "-sS", "--noproxy", "*", "--tls13-ciphers", CIPHER, "--cacert", str(servers.folder / "site.pem")]
        words += ["-o", "/dev/null", "-w", "%{speed_download}", f"https://127.0.0.1:{servers.ports[kind]}/bulk"]
        speed = float(client("curl", *words))
        rows.append({"round": n, "kind": kind, "value": speed / 1e6, "cpu_s": servers.cpu_s(kind) - before})
        print(f"bulk      {kind:8}{speed / 1e6:9,.0f} MB/s, servers {rows[-1]['cpu_s']:.2f} s", flush=True)
    return rows


def connections(servers: Rig, rounds: int, seconds: int, how: str) -> list[Json]:
    """New connections a second with one request each, by `openssl s_time`; `how` is `-new` or `-reuse`."""
    rows: list[Json] = []
    for n, kind in turns(rounds):
        before = servers.cpu_s(kind)
        words = ["s_time", "-connect", f"127.0.0.1:{servers.ports[kind]}", how, "-time", str(seconds)]
        words += ["-www", "/small", "-tls1_3", "-ciphersuites", CIPHER]
        text = client("openssl", *words)
        found = re.search(r"(\d+) connections in (\d+) real seconds", text)
        if found is None:
            raise RuntimeError(f"openssl s_time: {text}")
        count = int(found[1])
        cpu = servers.cpu_s(kind) - before
        row = {"round": n, "kind": kind, "value": count / seconds, "cpu_us": cpu / count * 1e6}
        rows.append(row)
        print(f"{how[1:]:10}{kind:8}{row['value']:9,.0f} connections/s, servers {row['cpu_us']:.0f} us", flush=True)
    return rows


def first_byte(servers: Rig, requests: int) -> dict[str, float]:
    """Median time from a request on a kept connection to its first byte, microseconds. The servers
    alternate.
    """
    streams, times = {}, {kind: [] for kind in KINDS}  # type: dict[str, ssl.SSLSocket], dict[str, list[float]]
    for kind in KINDS:
        plain = socket.create_connection(("127.0.0.1", servers.ports[kind]))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        streams[kind] = servers.context().wrap_socket(plain, server_hostname="127.0.0.1")
    request = b"GET /small HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    for n in range(requests):
        for kind in KINDS if n % 2 == 0 else reversed(KINDS):
            stream = streams[kind]
            began = time.perf_counter()
            stream.sendall(request)
            data = stream.recv(65536)
            times[kind].append((time.perf_counter() - began) * 1e6)
            while not data.endswith(bytes(100)):
                data += stream.recv(65536)
    for stream in streams.values():
        stream.close()
    found = {kind: median(values) for kind, values in times.items()}
    print(f"first byte {', '.join(f'{kind} {value:.0f} us' for kind, value in found.items())}", flush=True)
    return found


def resumed_elsewhere(servers: Rig, count: int) -> float:
    """Share of sessions of one replica that resume at the other one."""
    context, resumed = servers.context(), 0
    for _ in range(count):
        session = None
        for name in ("rivulet", "other"):
            plain = socket.create_connection(("127.0.0.1", servers.ports[name]))
            with context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as stream:
                stream.sendall(b"GET /small HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
                while stream.recv(65536):
                    pass
                resumed += name == "other" and bool(stream.session_reused)
                session = stream.session
    print(f"resumed at the other replica: {resumed} of {count}", flush=True)
    return resumed / count


def ratio(rows: list[Json], figure: str = "value") -> float:
    """Median over the rounds of our figure divided by nginx's."""
    by_round: dict[int, dict[str, float]] = {}
    for row in rows:
        by_round.setdefault(row["round"], {})[row["kind"]] = row[figure]
    return median(found["rivulet"] / found["nginx"] for found in by_round.values())


def main() -> int:
    """Measures, and prints the figures and the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3, help="seconds of each round of new connections")
    parser.add_argument("--requests", type=int, default=3000, help="requests that measure the time to the first byte")
    parser.add_argument("--binary", type=Path, default=ROOT / "target" / "release" / "rivulet")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "tls.json")
    options = parser.parse_args()
    with rig(options.binary) as servers:
        found: Json = {
            "bulk": bulk(servers, options.rounds),
            "new": connections(servers, options.rounds, options.seconds, "-new"),
            "resumed": connections(servers, options.rounds, options.seconds, "-reuse"),
            "first_byte_us": first_byte(servers, options.requests),
            "resumed_elsewhere": resumed_elsewhere(servers, 100),
        }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    times = found["first_byte_us"]
    return judge(
        [
            Bar("bulk, one connection, part of nginx's", ratio(found["bulk"]), 0.9),
            Bar("new connections a second, full handshakes, part of nginx's", ratio(found["new"]), 0.8),
            Bar("new connections a second, resumed, part of nginx's", ratio(found["resumed"]), 0.8),
            # Other work on the machine changes rates more than processor time.
            Bar(
                "processor time of a full handshake, part of nginx's", ratio(found["new"], "cpu_us"), 1.25, at_most=True
            ),
            Bar("processor time, resumed, part of nginx's", ratio(found["resumed"], "cpu_us"), 1.25, at_most=True),
            Bar("first byte beyond nginx's, us", times["rivulet"] - times["nginx"], 150.0, at_most=True),
            Bar("sessions resumed at another replica", found["resumed_elsewhere"], 1.0),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
