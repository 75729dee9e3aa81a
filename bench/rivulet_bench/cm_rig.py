"""A server, a client, a slow and long wire between them, and the Congestion Manager's TCP under a unique name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rivulet_lab import End, Lab, binary, cm_command, prompt, standing, veth

from .rig import BUILD, finish

SERVER = "10.78.0.1"
CLIENT = "10.78.0.2"
PORT = 7000


@dataclass(frozen=True, slots=True)
class Wire:
    """The wire from the server to the client; the way back only has the delay."""

    rate_mbit: float
    rtt_ms: float
    loss: float = 0.0
    """Loss probability."""
    jitter_ms: float = 0.0
    """Jitter of acknowledgements: uniform, plus and minus, in order."""

    @property
    def queue(self) -> int:
        """Packets of one bandwidth-delay product."""
        return max(int(self.rate_mbit * 1e6 * self.rtt_ms / 1e3 / 8 / 1514), 8)

    def flags(self) -> list[str]:
        """Flags of rivulet-wire, with end `a` at the server."""
        down = f"rate={self.rate_mbit:g}mbit,delay={self.rtt_ms / 2:g}ms,loss={self.loss:g},queue={self.queue}"
        return ["--a-to-b", down, "--b-to-a", f"delay={self.rtt_ms / 2:g}ms,jitter={self.jitter_ms:g}ms,queue=10000"]


class CmRig(Lab):
    """The running namespaces: `s` server, `c` client, `m` wire."""

    def __init__(self, folder: Path, wire: Wire) -> None:
        super().__init__(folder)
        self.wire = wire
        self.name = f"rvcm_b{os.getpid()}"
        """Name of the congestion control."""

    def build(self) -> None:
        """Makes namespaces, links, wire and congestion control."""
        for name in ("s", "c", "m"):
            self.namespace(name)
        middle = self.spaces["m"]
        veth(End(self.spaces["s"], "s0"), End(middle, "ms0"))
        veth(End(self.spaces["c"], "c0"), End(middle, "mc0"))
        self.spaces["s"].ip(f"addr add {SERVER}/24 dev s0", f"route add {CLIENT}/32 dev s0 src {SERVER}")
        self.spaces["c"].ip(f"addr add {CLIENT}/24 dev c0")
        # Segments as on a real wire; no metrics of earlier runs; buffers for seconds, so that on a busy machine the
        # ends of connections do not limit them.
        for name, device in (("s", "s0"), ("c", "c0")):
            self.spaces[name].run("ethtool", "-K", device, "tso", "off", "gso", "off", "gro", "off", "tx", "off")
            self.spaces[name].set("net.ipv4.tcp_no_metrics_save=1", "net.ipv4.tcp_rmem=4096 8388608 16777216")
        self.spaces["s"].set("net.ipv4.tcp_wmem=4096 4194304 16777216")
        command = [*prompt(), binary("rivulet-wire"), "ms0", "mc0", *self.wire.flags()]
        self.start("wire", [*command, "--control", str(self.folder / "wire.sock")], middle)
        self.bpf_fs()
        self.cm("load")

    def cm(self, *words: str) -> str:
        """Runs `rivulet cm`."""
        command = cm_command(self.name, self.folder / "bpf", *words)
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def choose(self, name: str) -> None:
        """Sets the congestion control of the server's new connections; `cm`: ours, without history."""
        if name == "cm":
            self.cm("forget")
            name = self.name
        route = f"route change {CLIENT}/32 dev s0 src {SERVER} congctl {name}"
        self.spaces["s"].ip(route)

    def idle(self) -> bool:
        """Whether no destination has a macroflow and no connection uses ours."""
        self.cm("forget")
        return not json.loads(self.cm("status", "--json"))["macroflows"]

    def send(self) -> None:
        """Starts the server of `shares`."""
        traffic = [sys.executable, "-m", "rivulet_bench.cm_traffic"]
        process = self.start("send", [*traffic, "send", SERVER, str(PORT)], self.spaces["s"])
        self.until(lambda: "listening" in process.text(), "the server listens", 20.0, process)

    def shares(self, names: Sequence[str], warm_up_s: float, seconds: float) -> list[int]:
        """Bytes of parallel connections with these congestion controls; `cm`: ours."""
        # Wait until the macroflow is forgotten, so that it starts like the others' state.
        self.until(self.idle, "connections of before are gone", 60.0)
        counts = self._client("receive", [f"{warm_up_s:g}", f"{seconds:g}"], names, warm_up_s + seconds + 60)
        return [int(count) for count in counts]

    def setups(self, names: Sequence[str], count: int) -> list[list[float]]:
        """Seconds until the first byte of `count` connections with each of these congestion controls."""
        return [[float(s) for s in times] for times in self._client("connect", [str(count)], names, 60.0 + count)]

    def _client(self, what: str, words: Sequence[str], names: Sequence[str], patience_s: float) -> Any:
        chosen = [self.name if name == "cm" else name for name in names]
        command = [sys.executable, "-m", "rivulet_bench.cm_traffic", what, SERVER, str(PORT)]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        load = self.start(what, [*command, *words, *chosen], self.spaces["c"], **pipes)
        return finish(load, patience_s)


@contextmanager
def cm_rig(wire: Wire, name: str = "rig") -> Iterator[CmRig]:
    """A rig, torn down at the end; `name` is its folder."""
    rig = CmRig(BUILD / "cm" / name, wire)
    with standing(rig):
        rig.build()
        yield rig
