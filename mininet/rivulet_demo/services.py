"""Controller and replicas of a rack, and the queries of a demo to them."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import finsy as fy
import grpc
from finsy.proto import p4r, p4r_grpc

from rivulet_lab import REPOSITORY, Process, RackError, binary, prompt

from .rack import Rack
from .spec import SERVICE_PORT, SERVICE_V4

ARTIFACTS = REPOSITORY / "p4src" / "build"


@dataclass(slots=True)
class Replicas:
    """The replicas of a rack, started and killed by name."""

    rack: Rack
    www: Path
    agents: Path
    running: dict[str, Process] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    doors: dict[str, Path] = field(default_factory=dict)
    """Sockets of agents that reach the controller through a relay, which a scenario can cut."""
    relays: dict[str, int] = field(default_factory=dict)
    flags: Sequence[str] = ()
    """Flags of every serving process, such as the folder for uploads."""

    def start(self, name: str) -> None:
        """Starts the serving process of a replica."""
        count = self.starts[name] = self.starts.get(name, 0) + 1
        agents = f"unix:{self.doors.get(name, self.agents)}"
        command = [*prompt(), binary("rivulet"), "serve", str(self.www), "--interface", f"{name}-eth0"]
        command += ["--controller", agents, "--name", name, *self.flags]
        self.running[name] = self.rack.start(f"{name}-{count}", command, self.rack.spaces[name])

    def kill(self, name: str) -> float:
        """Kills the serving process with SIGKILL; returns the time."""
        process = self.running.pop(name)
        process.popen.send_signal(signal.SIGKILL)
        when = time.monotonic()
        process.popen.wait()
        return when

    def relay(self, name: str) -> Callable[[], None]:
        """Starts a relay between agent and controller; the returned function puts it in place at once."""
        socket = self.doors[name] = self.rack.folder / f"agents-{name}.sock"
        count = self.relays[name] = self.relays.get(name, 0) + 1
        fresh = self.rack.folder / f"agents-{name}-{count}.sock"
        command = [sys.executable, "-m", "rivulet_demo.relay", str(fresh), str(self.agents)]
        process = self.rack.start(f"relay-{name}-{count}", command)
        self.rack.until(fresh.exists, "the relay listens", 20.0, process)
        return lambda: os.replace(fresh, socket)

    def cut(self, name: str) -> None:
        """Ends a replica's first relay, which cuts its agent off from the controller."""
        self.rack.processes[f"relay-{name}-1"].end()

    def alive(self) -> list[str]:
        """Names of the replicas with a running process."""
        return [name for name, process in self.running.items() if process.running()]


def start_controller(rack: Rack, switch_socket: Path, agents: Path, api: str) -> Process:
    """Starts the controller with the rack's configuration (JSON is valid YAML)."""
    config = rack.spec.controller_config(
        f"unix:{switch_socket}", f"unix:{agents}", api, str(rack.folder / "controller.db")
    )
    if not api.startswith("unix:"):
        # Also a socket for `rivuletctl`, and a token for the page's buttons: without it the page is read-only.
        (rack.folder / "tokens").touch(mode=0o600)
        (rack.folder / "tokens").write_text(f"page:operate:{secrets.token_urlsafe(12)}\n")
        config["listen"] |= {
            "control": f"unix:{rack.folder / 'api.sock'}",
            "api_token_file": str(rack.folder / "tokens"),
        }
    path = rack.folder / "rack.yaml"
    path.write_text(json.dumps(config, indent=1))
    process = rack.start("controller", [str(Path(sys.executable).parent / "rivulet-controller"), str(path)])
    rack.until(agents.exists, "the controller accepts agents", 60.0, process)
    return process


@dataclass(frozen=True, slots=True)
class SwitchView:
    """Counters of the switch: by replica name, and by drop reason."""

    at: float
    packets: dict[str, int]
    exclusions: dict[str, int]
    returns: dict[str, int]
    heartbeats: dict[str, int]
    drops: dict[str, int]

    def excluded(self, name: str) -> bool:
        """Whether the switch excludes this replica."""
        return self.exclusions.get(name, 0) > self.returns.get(name, 0)

    def busiest(self, before: SwitchView, names: list[str]) -> str:
        """The replica of these to which the switch has sent the most packets since `before`."""
        return max(names, key=lambda name: self.packets[name] - before.packets[name])


PRIORITY = 5
"""Real-time priority of the thread that reads the switch."""
KEPT_VIEWS = 20_000
"""Views that a watch keeps: 100 s at one every 5 ms."""


class Watch:
    """Reads the switch's counters, without arbitration and so without disturbing the controller.

    A thread keeps the newest view; `history` has every change of an exclusion with its time.
    """

    COUNTERS = ("replica_packets", "replica_exclusions", "replica_returns", "heartbeats", "drops")

    def __init__(self, address: str, replicas: list[str], interval_s: float = 0.005) -> None:
        self.view: SwitchView | None = None
        self.history: list[tuple[float, str, bool]] = []
        self.views: deque[SwitchView] = deque(maxlen=KEPT_VIEWS)
        self.problem = ""
        self._address = address
        self._replicas = replicas
        self.interval_s = interval_s
        """Interval between two readings, each of which costs CPU time."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._main, name="watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(5.0)

    def _main(self) -> None:
        # As prompt as the switch, so that its changes are seen when they happen; gRPC's threads inherit it.
        if prompt():
            os.sched_setscheduler(threading.get_native_id(), os.SCHED_RR, os.sched_param(PRIORITY))
        schema = fy.P4Schema(ARTIFACTS / "rivulet.p4info.txtpb")
        reasons = _enum(ARTIFACTS / "rivulet.p4info.txtpb", "drop_reason_t")
        request = p4r.ReadRequest(device_id=1, entities=list(self._wanted(schema)))
        options = [("grpc.default_authority", "localhost"), ("grpc.max_reconnect_backoff_ms", 200)]
        with grpc.insecure_channel(self._address, options=options) as session:
            stub = p4r_grpc.P4RuntimeStub(session)
            while not self._stop.wait(self.interval_s):
                counts: dict[str, dict[int, int]] = {name: {} for name in self.COUNTERS}
                try:
                    for reply in stub.Read(request, timeout=2.0):
                        for entity in reply.entities:
                            cell = fy.P4CounterEntry.decode(entity, schema)
                            counts[cell.counter_id][int(cell.index or 0)] = cell.packet_count
                except grpc.RpcError as error:
                    # The switch may restart meanwhile; the demo continues.
                    self.problem = str(error.details() if isinstance(error, grpc.Call) else error)
                    self._stop.wait(0.05)
                    continue
                self._take(counts, reasons)

    def _wanted(self, schema: fy.P4Schema) -> Iterator[p4r.Entity]:
        for name in self.COUNTERS:
            # Only these cells: a replica counter has 65,536.
            indices = range(len(self._replicas)) if name != "drops" else [None]
            for index in indices:
                yield fy.P4CounterEntry(name, index=index).encode(schema)

    def _take(self, counts: dict[str, dict[int, int]], reasons: dict[int, str]) -> None:
        def named(name: str) -> dict[str, int]:
            return {replica: counts[name].get(i, 0) for i, replica in enumerate(self._replicas)}

        view = SwitchView(
            time.monotonic(),
            named("replica_packets"),
            named("replica_exclusions"),
            named("replica_returns"),
            named("heartbeats"),
            {reasons.get(i, str(i)): n for i, n in counts["drops"].items() if n},
        )
        before = self.view
        for name in self._replicas:
            was = before.excluded(name) if before else False
            if view.excluded(name) != was:
                self.history.append((view.at, name, view.excluded(name)))
        self.view = view
        self.views.append(view)


def _enum(p4info: Path, name: str) -> dict[int, str]:
    """Members of a serializable enum of the P4Info, value to name."""
    from google.protobuf import text_format

    info = fy.proto.p4i.P4Info()
    text_format.Parse(p4info.read_text(), info)
    enum = info.type_info.serializable_enums[name]
    return {int.from_bytes(member.value, "big"): member.name for member in enum.members}


def wait_ready(rack: Rack, watch: Watch, names: list[str], patience_s: float = 60.0) -> None:
    """Waits until the switch receives heartbeats of every replica and the service answers."""

    def all_live() -> bool:
        view = watch.view
        return view is not None and all(view.heartbeats.get(name, 0) > 5 for name in names)

    try:
        rack.until(all_live, f"the switch receives heartbeats of {', '.join(names)}", patience_s)
    except RackError as error:
        raise RackError(f"{error} ({watch.problem})") from None


def url(path: str, port: int = SERVICE_PORT) -> str:
    """URL of a file of the service."""
    return f"http://{SERVICE_V4}:{port}/{path}"


def make_file(www: Path, name: str, size: int) -> str:
    """Makes a file of pseudo-random bytes of that size, once; returns its SHA-256."""
    import hashlib
    import random

    www.mkdir(parents=True, exist_ok=True)
    path = www / name
    rng = random.Random(size)
    digest = hashlib.sha256()
    if path.exists() and path.stat().st_size == size:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        return digest.hexdigest()
    partial = path.with_suffix(".part")
    with partial.open("wb") as file:
        left = size
        while left:
            block = rng.randbytes(min(left, 1 << 20))
            file.write(block)
            digest.update(block)
            left -= len(block)
    os.replace(partial, path)
    return digest.hexdigest()


def ping_ms(rack: Rack, source: str, target: str, count: int = 5) -> float:
    """Median round-trip time from a host to an address, milliseconds. RackError if no answer arrives."""
    out = rack.spaces[source].run(*f"ping -n -i 0.05 -c {count} -W 10 {target}".split())
    times = sorted(float(part.split("=")[1]) for part in out.split() if part.startswith("time="))
    return times[len(times) // 2]


__all__ = ["Replicas", "SwitchView", "Watch", "make_file", "ping_ms", "start_controller", "subprocess", "url"]
