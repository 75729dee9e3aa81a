"""A client and servers on one wire, for the cost of protection: nginx alone, and nginx with `rivulet agent`.

The agent gets its lease from a real ToR, whose switch is connected to the same bridge; only heartbeats and their
answers pass through it. Clients' traffic bypasses it, as it would pass a hardware switch without load. nginx has a
core; agent, store, ToR, controller and load share the other.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rivulet_controller.client import ApiError, Client
from rivulet_demo.spec import TOR_MAC
from rivulet_lab import End, Process, RackError, binary, standing, switches, veth

from .host_rig import CLIENT_CORE, FOLDER, SERVER_CORE, SERVICE, HostRig, Server, Transport, descriptors
from .rig import finish
from .trods_rack import HEALTH, LIST, STORE_PORT, agent_command, listing, nginx_command, protection, store_command

Json = dict[str, Any]

ALONE = "10.9.0.2"
"""Address of nginx alone; SERVICE is that of nginx with an agent."""
ADDRESSES = {"kv": SERVICE, "nginx": ALONE}
SPACES = {"kv": "s", "nginx": "n"}
HOSTS = {"s": "10.77.0.1", "n": "10.77.0.2", "k": "10.77.3.1"}
TOR = "10.77.0.254"
BOUND_MS = 1000.0
"""Exclusion bound: long, because no replica dies here and a full core must not get one excluded."""
PATIENCE_S = 60.0


class TrodsHostRig(HostRig):
    """Namespaces `s` (nginx and agent), `n` (nginx alone), `k` (store), `tor`, `c` and `a`, joined by a bridge."""

    listed: tuple[str, ...] = ()
    """Files that timestamps name, in place of records in the store."""

    def build(self, rtt_ms: float, attackers: bool) -> None:
        """Also adds the second server, the store and the ToR."""
        super().build(rtt_ms, attackers)
        hub = self.spaces["m"]
        for name, core in (("n", SERVER_CORE), ("k", CLIENT_CORE), ("tor", CLIENT_CORE)):
            space = self.namespace(name)
            veth(End(space, f"{name}0"), End(hub, f"m{name}0"))
            hub.ip(f"link set m{name}0 master hub")
            if name in HOSTS:
                self.end_of(name, f"{name}0", [HOSTS[name]], core)
        self.spaces["n"].ip(f"addr add {ALONE}/32 dev lo")
        for name in ("n", "s"):
            self.spaces[name].set("net.core.somaxconn=8192", "net.ipv4.tcp_max_syn_backlog=8192")
            # A run uses the ports of the one before: timestamps cannot name responses on ports that the kernel keeps
            # in TIME_WAIT.
            self.spaces[name].set("net.ipv4.tcp_max_tw_buckets=0")
            # Otherwise the kernel would also answer ARP for the other server's address.
            self.spaces[name].set("net.ipv4.conf.all.arp_ignore=1", "net.ipv4.conf.all.arp_announce=2")
        for client in ("c", "a"):
            self.spaces[client].ip(f"route add {ALONE} via {HOSTS['n']}")
        self.spaces["n"].run("ip", "route", "change", *self._reno("n"))

    def _reno(self, name: str) -> list[str]:
        return ["10.77.0.0/16", "dev", f"{name}0", "src", HOSTS[name], "congctl", "reno"]

    def offloads(self, on: bool) -> None:
        """Turns offloads on or off at every end and the bridge: by the device, as network cards do, or by the
        kernel."""
        hub = [("m", f"m{device}") for device in ("s0", "n0", "c0")]
        for name, device in (("s", "s0"), ("n", "n0"), ("c", "c0"), *hub):
            what = [word for offload in ("tx", "rx", "tso", "gso", "gro") for word in (offload, "on" if on else "off")]
            self.spaces[name].run("ethtool", "-K", device, *what)

    # Servers

    def begin_all(self) -> None:
        """Starts both nginx, store, ToR, controller and agent; returns when connections are protected."""
        self.put_health()
        for kind, name in SPACES.items():
            command = nginx_command(self.folder / f"nginx-{kind}.d", self.www, f"{ADDRESSES[kind]}:80")
            self.servers[f"nginx-{kind}"] = Server(self.begin(f"nginx-{kind}", command, name, SERVER_CORE))
        store = [*store_command(HOSTS["k"]), "-t", "1"]
        self.servers["store"] = Server(self.begin("store", store, "k", CLIENT_CORE))
        grpc = f"unix:{self.folder}/switch.sock"
        self.begin("switch", switches.command("embedded", {1: "tor0"}, grpc), "tor", CLIENT_CORE)
        self.until((self.folder / "switch.sock").exists, "the switch opens its socket", 20.0, self.processes["switch"])
        (self.folder / "rack.yaml").write_text(json.dumps(self.description(), indent=1))
        daemon = [sys.executable, "-m", "rivulet_controller.daemon", str(self.folder / "rack.yaml")]
        self.begin("controller", daemon, "tor", CLIENT_CORE)
        agents = self.folder / "agents.sock"
        self.until(agents.exists, "the controller accepts agents", 30.0, self.processes["controller"])
        agent = agent_command("r1", "s0", f"unix:{agents}", self.folder / "r1.agent")
        self.servers["agent"] = Server(self.begin("agent", agent, "s", CLIENT_CORE))
        watched = (self.processes["agent"], self.processes["controller"], self.processes["switch"])
        self.until(self.protects, "connections are protected", PATIENCE_S, *watched)

    def put_health(self) -> None:
        """Makes the file that the agent requests as its health check."""
        (self.www / HEALTH).write_bytes(b"well\n")
        (self.www / LIST).write_text(listing((HEALTH, *self.listed)))

    def mac(self, name: str) -> str:
        """Ethernet address of a host's end."""
        return self.spaces[name].run("cat", f"/sys/class/net/{name}0/address").strip()

    def description(self) -> Json:
        """Configuration of the rack for the controller."""
        hosts = [{"ip": ip, "mac": self.mac(name), "port": 1} for name, ip in HOSTS.items()]
        return {
            "switches": [
                {
                    "name": "tor1", "address": f"unix:{self.folder}/switch.sock", "number": 1, "mac": TOR_MAC,
                    "addresses": [TOR], "ports": [1], "hosts": hosts,
                }
            ],
            "replicas": [{"name": "r1", "switch": "tor1", "port": 1, "mac": self.mac("s"), "ip": HOSTS["s"]}],
            "services": [
                {
                    "name": "files", "addresses": [SERVICE], "port": 80, "replicas": ["r1"], "plain": "trods",
                    "trods": protection(HOSTS["k"], self.listed),
                    "heartbeat": f"{BOUND_MS / 10:g}ms", "liveness": f"{BOUND_MS:g}ms",
                }
            ],
            "listen": {"agents": f"unix:{self.folder}/agents.sock", "api": f"unix:{self.folder}/api.sock"},
            "state": f"{self.folder}/controller.db",
        }  # fmt: skip

    def trods(self) -> Json:
        """The agent's report; empty if there is none."""
        try:
            (replica,) = Client(f"unix:{self.folder}/api.sock", timeout_s=5.0).get("/api/status")["replicas"]
        except ApiError:
            return {}
        return dict(replica["trods"] or {})

    def protects(self) -> bool:
        """Whether a client's new connection is protected."""
        before = self.trods().get("protected", -1)
        self.spaces["c"].succeeds("curl", "-sf", "-m", "2", "-o", "/dev/null", f"http://{SERVICE}/{HEALTH}")
        time.sleep(0.4)
        return bool(self.trods().get("protected", -1) > before >= 0)

    def store_stats(self) -> dict[str, int]:
        """Counters of memcached."""
        talk = f"exec 3<>/dev/tcp/{HOSTS['k']}/{STORE_PORT}; printf 'stats\\r\\nquit\\r\\n' >&3; cat <&3"
        words = (line.split() for line in self.run("k", ["bash", "-c", talk]).splitlines())
        return {w[1]: int(w[2]) for w in words if len(w) == 3 and w[0] == "STAT" and w[2].isdigit()}

    def load_from(self, address: str, transport: Transport, path: str, *words: str, **flags: Any) -> Json:
        """Runs a load on the server at this address until it ends. RackError if a request fails."""
        command = [*descriptors(), binary("rivulet-load"), f"http://{address}:80/{path}", "--transport", transport]
        command += [*words, *(word for flag, value in flags.items() for word in (f"--{flag}", str(value)))]
        result = finish(self.client_process(command))
        if result["errors"]:
            raise RackError(f"{address}: {result['errors']} requests failed: {result['first_error']}")
        return result

    def client_process(self, command: list[str], space: str = "c") -> Process:
        """A client on the other core."""
        return self.client(command, space)


@contextmanager
def trods_host_rig(name: str, sizes: Sequence[int] = ()) -> Iterator[TrodsHostRig]:
    """The running rig. Connections to SERVICE are protected by records, or by timestamps that name files of these
    sizes.
    """
    if shutil.which("memcached") is None:
        raise RackError("memcached is not installed: `scripts/setup.sh --test` installs it")
    folder: Path = FOLDER / f"trods-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with standing(TrodsHostRig(folder)) as rig:
        rig.build(0.0, True)
        rig.listed = tuple(rig.put(size) for size in sizes)
        rig.begin_all()
        yield rig
