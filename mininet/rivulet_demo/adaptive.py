"""Streams under the Congestion Manager, from a server over a wire of changing rate to their receivers."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from rivulet_lab import End, Lab, Process, RackError, binary, cm_command, prompt, standing, veth

Json = dict[str, Any]

SERVER = "10.79.0.1"
CLIENT = "10.79.0.2"
LAYERS = (250_000, 500_000, 1_000_000, 2_000_000)
"""Rates of the paper's four layers, bits a second."""
NS = 1_000_000_000


def lacking() -> str:
    """What the manager's calls need and this kernel lacks; "" if nothing is known to be missing."""
    if not Path("/sys/kernel/btf/vmlinux").exists():
        return "the kernel has no BTF"
    if not any(line.split()[2] == "cgroup2" for line in Path("/proc/mounts").read_text().splitlines()):
        return "no cgroups of version 2 are mounted"
    return ""


class Journal:
    """Reads the JSON lines that a program writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[Json] = []
        self._at = 0

    def read(self) -> list[Json]:
        """All complete lines so far."""
        if not self.path.exists():
            return self.lines
        with self.path.open("rb") as file:
            file.seek(self._at)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._at += len(whole)
        self.lines += [json.loads(line) for line in whole.splitlines()]
        return self.lines

    def of(self, event: str) -> list[Json]:
        """The lines of one event."""
        return [line for line in self.read() if line["event"] == event]

    def last(self, event: str) -> Json:
        """The last line of an event; {} if there is none."""
        return next((line for line in reversed(self.read()) if line["event"] == event), {})


@dataclass(slots=True)
class Stream:
    """A server and its receiver."""

    name: str
    server: Process
    receiver: Process | None = None
    served: Journal = field(default_factory=lambda: Journal(Path()))
    received: Journal = field(default_factory=lambda: Journal(Path()))

    def end(self) -> tuple[Json, Json]:
        """The last lines of server and receiver; RackError if one has written none."""
        close, end = self.served.last("close"), self.received.last("end")
        if not close or not end:
            logs = "\n".join(p.last_lines() for p in (self.server, self.receiver) if p is not None)
            raise RackError(f"{self.name}: no last line of the {'receiver' if close else 'server'}\n{logs}")
        return close, end


class AdaptivePath(Lab):
    """The running namespaces: `s` server with the Congestion Manager, `c` client, `m` wire."""

    def __init__(self, folder: Path, rate_mbit: float, rtt_ms: float, queue: int, initial_window: int = 10) -> None:
        super().__init__(folder)
        self.rate_mbit, self.rtt_ms, self.queue, self.initial_window = rate_mbit, rtt_ms, queue, initial_window
        self.door, self.control = folder / "cm.sock", folder / "wire.sock"
        self.changes: list[tuple[int, float]] = []
        """Changes of the wire's rate: time in ns, rate in Mb/s."""
        self.streams: list[Stream] = []
        self._ports = iter(range(7400, 7500))

    def build(self) -> None:
        """Makes namespaces, links, wire and Congestion Manager."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for old in (*self.folder.glob("*.log"), *self.folder.glob("*.jsonl"), self.door, self.control):
            old.unlink(missing_ok=True)
        for name in ("s", "c", "m"):
            self.namespace(name)
        server, client, middle = (self.spaces[name] for name in ("s", "c", "m"))
        veth(End(server, "s0"), End(middle, "ms0"))
        veth(End(client, "c0"), End(middle, "mc0"))
        server.ip(f"addr add {SERVER}/24 dev s0")
        client.ip(f"addr add {CLIENT}/24 dev c0")
        there = f"rate={self.rate_mbit:g}mbit,delay={self.rtt_ms / 2:g}ms,queue={self.queue}"
        command = [*prompt(), binary("rivulet-wire"), "ms0", "mc0", "--a-to-b", there]
        command += ["--b-to-a", f"delay={self.rtt_ms / 2:g}ms,queue=10000", "--control", str(self.control)]
        wire = self.start("wire", command, middle)
        self.until(self.control.exists, "the wire is there", 20.0, wire)
        self.changes = [(time.monotonic_ns(), self.rate_mbit)]
        flags = ("--socket", str(self.door), "--initial-window", str(self.initial_window))
        command = [*prompt(), *cm_command(f"rvad{os.getpid()}", self.bpf_fs(), "serve", *flags)]
        # Not in a namespace: `ip netns exec` hides the cgroups. One manager serves all namespaces.
        self.until(self.door.exists, "the Congestion Manager accepts programs", 20.0, self.start("cm", command))
        # The first ping makes both ends resolve their neighbour.
        self.until(lambda: client.succeeds("ping", "-c1", "-W1", SERVER), "the link is up", 20.0)

    def set_rate(self, rate_mbit: float) -> None:
        """Sets the wire's rate towards the client."""
        words = (binary("rivulet-wire"), "set", str(self.control), "a-to-b", f"rate={rate_mbit:g}mbit")
        self.spaces["m"].run(*words)
        self.changes.append((time.monotonic_ns(), rate_mbit))

    def stream(self, name: str, server: Sequence[str], receiver: Sequence[str] = ()) -> Stream:
        """Starts a server of this kind (`layers --by rate`) and its receiver."""
        address = f"{SERVER}:{next(self._ports)}"
        paths = [self.folder / f"{name}-{end}.jsonl" for end in ("served", "received")]
        program = [*prompt(), binary("rivulet-cm-apps")]
        command = [*program, *server, "--listen", address, "--cm", str(self.door), "--journal", str(paths[0])]
        process = self.start(f"{name}-server", command, self.spaces["s"])
        self.until(lambda: "serving" in process.text(), f"{name} serves", 20.0, process)
        stream = Stream(name, process, None, Journal(paths[0]), Journal(paths[1]))
        self.streams.append(stream)
        command = [*program, "receive", address, *receiver, "--journal", str(paths[1])]
        stream.receiver = self.start(f"{name}-receiver", command, self.spaces["c"])
        return stream

    def finish(self) -> None:
        """Ends first the receivers, then the servers; both write their last lines."""
        for stream in self.streams:
            for what in ("receiver", "server"):
                self.end(f"{stream.name}-{what}", how=15)


@contextmanager
def adaptive_path(path: AdaptivePath) -> Iterator[AdaptivePath]:
    """Builds the path and tears it down at the end of the block."""
    with standing(path):
        path.build()
        yield path


def rate_at(changes: Sequence[tuple[int, float]], at: int) -> float:
    """The wire's rate at a time, Mb/s."""
    return next((rate for when, rate in reversed(changes) if when <= at), changes[0][1])


def layer_at(served: Sequence[Json], at: int) -> int | None:
    """The layer sent at a time."""
    return next((line["to"] for line in reversed(served) if line["at"] <= at), None)


@dataclass(frozen=True, slots=True)
class Reaction:
    """Reaction of a stream to a rate that its layer exceeds."""

    at: int
    """Time of the change of rate, ns."""
    before: int
    layer: int
    """First layer that fits the new rate."""
    seconds: float
    rtt: float
    """Round-trip time, as the sender measured it last, seconds."""


def reactions(changes: Sequence[tuple[int, float]], served: Sequence[Json], layers: Sequence[int]) -> list[Reaction]:
    """For each change of rate to below the current layer: the time until the first layer that fits.

    `served`: the server's lines of layers. Without such a layer before the next change the time is infinite.
    """
    found = []
    ends = [at for at, _ in changes[1:]] + [1 << 63]
    for (at, rate), end in zip(changes, ends, strict=True):
        before = layer_at(served, at)
        if before is None or layers[before] <= rate * 1e6:
            continue
        fits = [line for line in served if at < line["at"] < end and layers[line["to"]] <= rate * 1e6]
        if fits:
            line = fits[0]
            found.append(Reaction(at, before, line["to"], (line["at"] - at) / NS, line["sample_ms"] / 1e3))
        else:
            found.append(Reaction(at, before, before, float("inf"), 1.0))
    return found


def spent(served: Sequence[Json], start: int, end: int) -> dict[int, float]:
    """Share of the time from `start` to `end` in which each layer was sent."""
    edges = [start, *(line["at"] for line in served if start < line["at"] < end), end]
    parts: dict[int, float] = {}
    for one, two in pairwise(edges):
        layer = layer_at(served, one)
        if layer is not None and end > start:
            parts[layer] = parts.get(layer, 0.0) + (two - one) / (end - start)
    return parts
