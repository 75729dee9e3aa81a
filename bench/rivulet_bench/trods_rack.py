"""The rack of `make bench-trods`: replicas with nginx and an agent, and a store on a separate host.

Only the clients' link has a rate and a delay. Replicas fail as in a rack: nginx or the agent dies, the link is cut,
or all processes freeze.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from rivulet_controller.client import ApiError, Client
from rivulet_demo.rack import Rack
from rivulet_demo.services import Watch, make_file, start_controller
from rivulet_demo.spec import SERVICE_PORT, SERVICE_V4, Host, Link, RackSpec, rack
from rivulet_lab import Process, RackError, binary, nginx, prompt, standing

from .host_rig import descriptors, descriptors_most
from .rig import BUILD

FOLDER = BUILD / "trods"
WWW = FOLDER / "www"
HEALTH = "health"
LIST = "objects.txt"
STORE_PORT = 11211
STORE_MB = 2048
PATIENCE_S = 60.0

Plain = Literal["trods", "kernel"]
Harm = Literal["nginx", "agent", "link", "freeze"]
HARMS: tuple[Harm, ...] = ("nginx", "agent", "link", "freeze")

NGINX = """\
# One process, no log; idle connections stay open as long as a bench lasts.
user root; daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
worker_rlimit_nofile {connections};
events {{ worker_connections {connections}; multi_accept on; }}
http {{
  access_log off; sendfile on; tcp_nopush on; default_type application/octet-stream;
  keepalive_requests 1000000; keepalive_timeout 3600; client_header_timeout 3600; send_timeout 60;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{ listen {listen} backlog=4096; root {www}; }}
}}
"""


CUT = """\
table netdev cut {{
  chain out {{
    type filter hook egress device {device} priority 0; policy drop;
  }}
}}
"""
"""nftables rules that drop every frame that the replica sends."""


def nginx_command(folder: Path, www: Path, listen: str = f"{SERVICE_V4}:{SERVICE_PORT}") -> list[str]:
    """nginx in one process, which serves `www`; all files that it writes are in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "nginx.conf"
    config.write_text(
        NGINX.format(folder=folder, www=www, listen=listen, connections=min(32_768, descriptors_most() - 64))
    )
    return [*descriptors(), nginx.program(), "-p", str(folder), "-c", str(config), "-e", str(folder / "error.log")]


def store_command(address: str) -> list[str]:
    """memcached at this address, with the flags of the documentation."""
    return ["memcached", "-u", "root", "-l", address, "-p", str(STORE_PORT), "-U", "0", "-M", "-m", str(STORE_MB)]


def agent_command(name: str, device: str, controller: str, socket: Path, *more: str) -> list[str]:
    """`rivulet agent` beside nginx."""
    command = [binary("rivulet"), "agent", "--plain-tcp", "--health-path", f"/{HEALTH}", "--interface", device]
    return [*command, "--controller", controller, "--name", name, "--socket", str(socket), *more]


def protection(store: str, listed: Sequence[str]) -> dict[str, Any]:
    """The controller's setting of the protection: by timestamps that name the listed files, or by records."""
    return {"objects": f"/{LIST}"} if listed else {"store": [f"{store}:{STORE_PORT}"]}


def listing(files: Sequence[str]) -> str:
    """The list of files that timestamps name."""
    return "".join(f"/{name}\n" for name in files)


@dataclass(frozen=True, slots=True)
class Trods(RackSpec):
    """The rack's configuration for the controller: servers of plain TCP, and the store of records."""

    plain: Plain = "trods"
    listed: tuple[str, ...] = ()
    """Files that timestamps name, in place of records in the store."""

    def controller_config(self, switch_address: str, agents: str, api: str, state: str) -> dict[str, Any]:
        """Also adds the store."""
        # `super` with two arguments, since dataclasses with slots are new classes.
        config = super(Trods, self).controller_config(switch_address, agents, api, state)
        service = config["services"][0]
        service |= {"addresses": [SERVICE_V4], "plain": self.plain}
        if self.plain == "trods":
            service["trods"] = protection(self.host("kv").ip, self.listed)
        return config


def spec(
    replicas: int,
    bound_ms: float,
    rate_mbit: float | None,
    rtt_ms: float,
    plain: Plain = "trods",
    heartbeat_ms: float | None = None,
    listed: tuple[str, ...] = (),
) -> Trods:
    """One client behind a link, the store, and replicas directly at the ToR's ports."""
    heartbeat_ms = heartbeat_ms or bound_ms / 10
    found = rack(clients=2, replicas=replicas, direct=True, liveness_ms=bound_ms, heartbeat_ms=heartbeat_ms)
    hosts: list[Host] = []
    for host in found.hosts:
        if host.name == "c1":
            queue = max(100, int((rate_mbit or 1000.0) * 1e6 / 8 / 1500 * 0.05))
            link = Link(rate_mbit, rtt_ms / 2, 0.0, queue) if rtt_ms or rate_mbit else None
            host = dataclasses.replace(host, link=link)
        elif host.name == "c2":
            host = dataclasses.replace(host, name="kv")
        hosts.append(host)
    settings = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
    return Trods(**(settings | {"hosts": tuple(hosts), "plain": plain, "listed": listed}))


class TrodsRack(Rack):
    """The running rack."""

    network_priority = 8
    """Priority of the wires, above the replicas' work."""
    service_port = SERVICE_PORT
    parts: tuple[str, ...] = ("agent", "nginx")
    """Processes of a replica."""

    def __init__(self, spec: Trods, folder: Path, agent_flags: tuple[str, ...] = ()) -> None:
        super().__init__(spec, folder, "embedded")
        self.agent_flags = agent_flags
        self.listed = spec.listed
        self.replicas = [host.name for host in spec.of("replica")]
        self.client = Client(f"unix:{folder}/api.sock", timeout_s=5.0)
        self.watch = Watch(f"unix:{folder}/switch.sock", self.replicas, interval_s=0.02)
        self._watching = False

    # Processes

    def begin(self) -> None:
        """Starts everything; returns when every replica takes plain TCP."""
        (WWW / LIST).write_text(listing(self.listed))
        self.build()
        self.start("store", [*descriptors(), *prompt(7), *store_command(self.spec.host("kv").ip)], self.spaces["kv"])
        self.start_switch(self.folder / "switch.sock")
        start_controller(self, self.folder / "switch.sock", self.folder / "agents.sock", f"unix:{self.folder}/api.sock")
        for name in self.replicas:
            self.start_replica(name)
        self.watch.__enter__()
        self._watching = True
        self.until(self.whole, "every replica takes plain TCP", PATIENCE_S)

    def start_replica(self, name: str) -> None:
        """Starts all processes of a replica."""
        self.start_nginx(name)
        self.start_agent(name)

    def start_nginx(self, name: str) -> None:
        """Starts nginx on a replica."""
        command = [*prompt(), *nginx_command(self.folder / f"nginx-{name}.d", WWW)]
        self.start(f"nginx-{name}", command, self.spaces[name])

    def start_agent(self, name: str) -> None:
        """Starts its agent."""
        where = f"unix:{self.folder}/agents.sock"
        command = agent_command(name, f"{name}-eth0", where, self.folder / f"{name}.agent", *self.agent_flags)
        self.start(f"agent-{name}", [*prompt(), *command], self.spaces[name])

    def own(self, name: str) -> list[Process]:
        """A replica's processes."""
        return [self.processes[f"{part}-{name}"] for part in self.parts]

    # Harms

    def harm(self, name: str, how: Harm) -> None:
        """Makes a replica fail."""
        if how == "link":
            # Drops at once: an interface that goes down still receives frames for ten milliseconds.
            self.spaces[name].run("nft", "-f", "-", stdin=CUT.format(device=f"{name}-eth0"))
            self.spaces["tor"].ip(f"link set p-{name} down")
        elif how == "freeze":
            for process in self.own(name):
                process.popen.send_signal(signal.SIGSTOP)
        else:
            self.end(f"{how}-{name}")

    def heal(self, name: str, how: Harm) -> None:
        """Repairs the failure."""
        if how == "link":
            self.spaces["tor"].ip(f"link set p-{name} up")
            self.spaces[name].run("nft", "delete table netdev cut")
        elif how == "freeze":
            for process in self.own(name):
                process.popen.send_signal(signal.SIGCONT)
        elif how == "nginx":
            self.start_nginx(name)
        else:
            self.start_agent(name)

    # Queries

    def status(self) -> dict[str, dict[str, Any]]:
        """The controller's view of each replica; empty while it does not answer."""
        try:
            return {replica["name"]: replica for replica in self.client.get("/api/status")["replicas"]}
        except ApiError:
            return {}

    def taking(self) -> set[str]:
        """Replicas that take plain TCP and whose later exclusion will be visible."""
        found, told = self.status(), self.exclusions()
        # The controller polls once a second: its view may be older than the replica's last exclusion.
        return {
            name
            for name, r in found.items()
            if r["state"] == "live"
            and r["agent"]
            and r["ready"]
            and r["readmitted"]
            and r["exclusions"] == told.get(name)
            and not self.excluded(name)
        }

    def whole(self) -> bool:
        """Whether all replicas take plain TCP."""
        return len(self.taking()) == len(self.replicas)

    def exclusions(self) -> dict[str, int]:
        """Number of exclusions of each replica, by the ToR's counters."""
        return dict(self.watch.view.exclusions) if self.watch.view is not None else {}

    def look(self, before: dict[str, int], names: Sequence[str]) -> None:
        """Waits until the ToR has excluded these replicas once more than before."""
        self.until(
            lambda: all(self.exclusions().get(n, 0) > before.get(n, 0) for n in names), f"{names} are excluded", 10.0
        )

    def excluded(self, name: str) -> bool:
        """Whether the ToR excludes the replica."""
        return self.watch.view is not None and self.watch.view.excluded(name)

    def ports(self, host: str) -> set[int]:
        """Client ports of the service's connections in a host's kernel."""
        table = Path(f"/proc/{self.nodes[host].pid}/net/tcp").read_text().splitlines()[1:]
        found = set()
        for line in table:
            local, remote, state = line.split()[1:4]
            # Established, or closed by one side only.
            if state in ("01", "08"):
                (here, port), (there, of_client) = local.split(":"), remote.split(":")
                if host in self.replicas:
                    if int(port, 16) == self.service_port and here == SERVICE_HEX and there != SERVICE_HEX:
                        found.add(int(of_client, 16))
                elif there == SERVICE_HEX and int(of_client, 16) == self.service_port:
                    found.add(int(port, 16))
        return found

    def unprotected(self) -> dict[str, int]:
        """Unprotected connections by reason, from the running agents."""
        total: dict[str, int] = {}
        for replica in self.status().values():
            for reason, count in ((replica["trods"] or {}).get("unprotected") or {}).items():
                total[reason] = total.get(reason, 0) + count
        return total

    def store_stats(self) -> dict[str, int]:
        """Counters of memcached."""
        # From the store's host: a socket opened here would be in another namespace.
        command = (
            f"exec 3<>/dev/tcp/{self.spec.host('kv').ip}/{STORE_PORT}; printf 'stats\\r\\nquit\\r\\n' >&3; cat <&3"
        )
        said = self.spaces["kv"].run("bash", "-c", command)
        words = (line.split() for line in said.splitlines())
        return {w[1]: int(w[2]) for w in words if len(w) == 3 and w[0] == "STAT" and w[2].isdigit()}

    def down(self) -> None:
        """Also continues frozen processes."""
        for name in self.replicas:
            for part in (f"{part}-{name}" for part in self.parts):
                if part in self.processes and self.processes[part].running():
                    self.processes[part].popen.send_signal(signal.SIGCONT)
        if self._watching:
            self.watch.__exit__()
        super().down()


SERVICE_HEX = "".join(f"{int(part):02X}" for part in reversed(SERVICE_V4.split(".")))
"""The service's address in the format of /proc/net/tcp (on a little-endian machine)."""


def put(size: int) -> str:
    """Makes a file of this size; returns its path below the root."""
    make_file(WWW, f"{size}.bin", size)
    return f"{size}.bin"


@contextmanager
def trods_rack(name: str, spec: Trods, agent_flags: tuple[str, ...] = ()) -> Iterator[TrodsRack]:
    """A rack in which every replica takes plain TCP, torn down at the end."""
    with running(TrodsRack(spec, prepared(name), agent_flags)) as rack:
        yield rack


def prepared(name: str) -> Path:
    """An empty folder for a rack."""
    if os.geteuid() != 0:
        raise RackError("network namespaces need root: run it with sudo")
    if shutil.which("memcached") is None:
        raise RackError("memcached is not installed: `scripts/setup.sh --test` installs it")
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    make_file(WWW, HEALTH, 5)
    return folder


R = TypeVar("R", bound=TrodsRack)


@contextmanager
def running(rack: R) -> Iterator[R]:
    """Starts a rack, and tears it down at the end."""
    with standing(rack):
        rack.begin()
        yield rack
