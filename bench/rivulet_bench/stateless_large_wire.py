"""Large downloads by stateless TCP and by kernel TCP, on wires of the same rate, round trip and loss.

One replica without a ToR (`rivulet serve --large`) and unmodified nginx, on one host; curl fetches a file from each
alternately and compares every byte, or from both at once.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rivulet_lab import End, Lab, binary, nginx, prompt, standing, veth

from .bars import Bar
from .cm_rig import CLIENT, SERVER
from .rig import BUILD
from .stats import interval

Json = dict[str, Any]

SERVICE = "10.9.0.1"
KINDS = ("large", "reno", "cubic")
SECONDS = 2.0
LOSSY_S = 5.0
"""Seconds of a download on a wire with loss: the rate of a shorter one depends on the time of the first loss, before
which slow start is five times faster."""
MSS = 1448
PATIENCE_S = 300
BESIDE_S = 10.0
FLOWS = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Path:
    """A wire, with the same loss each way."""

    rate_mbit: float
    rtt_ms: float
    loss: float = 0.0
    seconds: float = SECONDS
    """Approximate duration of a download of Reno's."""

    @property
    def name(self) -> str:
        """Name of a folder and a row."""
        return f"{self.rate_mbit:g}-{self.rtt_ms:g}-{self.loss:g}"

    @property
    def queue(self) -> int:
        """Packets of one bandwidth-delay product."""
        return max(int(self.rate_mbit * 1e6 * self.rtt_ms / 1e3 / 8 / 1514), 32)

    def flags(self) -> list[str]:
        """Flags of rivulet-wire, with end `a` at the server."""
        way = f"delay={self.rtt_ms / 2:g}ms,loss={self.loss:g}"
        return ["--a-to-b", f"rate={self.rate_mbit:g}mbit,{way},queue={self.queue}", "--b-to-a", f"{way},queue=10000"]

    @property
    def size(self) -> int:
        """Bytes for which Reno needs about `seconds` (Mathis et al., 1997)."""
        rate = self.rate_mbit * 1e6 / 8
        if self.loss:
            rate = min(rate, 1.22 * MSS / (self.rtt_ms / 1e3 * self.loss**0.5))
        return max(int(rate * self.seconds), 200_000)


PATHS = (
    *(Path(100, rtt, loss, LOSSY_S if loss else SECONDS) for rtt in (10, 50) for loss in (0.0, 0.001, 0.01, 0.02)),
    Path(1000, 1),
)


class Rig(Lab):
    """The running namespaces: `s` servers, `c` client, `m` wire."""

    def __init__(self, path: Path) -> None:
        super().__init__(BUILD / "stateless-large" / path.name)
        self.path = path

    def build(self) -> None:
        """Makes namespaces, links, wire and both servers."""
        for name in ("s", "c", "m"):
            self.namespace(name)
        server, client, middle = (self.spaces[name] for name in ("s", "c", "m"))
        veth(End(server, "s0"), End(middle, "ms0"))
        veth(End(client, "c0"), End(middle, "mc0"))
        server.ip(f"addr add {SERVER}/24 dev s0", f"route add {CLIENT}/32 dev s0 src {SERVER}")
        client.ip(f"addr add {CLIENT}/24 dev c0", f"route add {SERVICE}/32 via {SERVER}")
        for space, device in ((server, "s0"), (client, "c0")):
            space.run("ethtool", "-K", device, "tso", "off", "gso", "off", "gro", "off", "tx", "off")
            space.set("net.ipv4.tcp_no_metrics_save=1", "net.ipv4.tcp_rmem=4096 8388608 16777216")
        server.set("net.ipv4.tcp_wmem=4096 4194304 16777216")
        self.start("wire", [*prompt(), binary("rivulet-wire"), "ms0", "mc0", *self.path.flags()], middle)
        www, keys = self.folder / "www", self.folder / "keys.toml"
        www.mkdir(exist_ok=True)
        content = bytes(n * n >> 3 & 0xFF for n in range(1 << 16))
        (www / "file").write_bytes((content * (self.path.size // len(content) + 1))[: self.path.size])
        keys.unlink(missing_ok=True)
        subprocess.run([binary("rivulet"), "keygen", str(keys)], check=True)
        words = [binary("rivulet"), "serve", str(www), "-i", "s0", "--plain", "stateless", "--large"]
        words += ["--listen", f"{SERVICE}:80", "--keys", str(keys), "--setup-address"]
        self.start("serve", words, server)
        self.until(lambda: "rivulet_guard" in server.run("nft", "list", "tables"), "the replica serves", 20.0)
        kernel = self.start("nginx", nginx.command(self.folder / "nginx", www, f"{SERVER}:81"), server)
        self.until(lambda: f"{SERVER}:81" in server.run("ss", "-Hltn"), "nginx listens", 10.0, kernel)
        # The first ping makes both ends resolve their neighbour.
        for kind in KINDS:
            self.get(kind)

    def url(self, kind: str) -> str:
        """URL of the file; for kernel TCP it also sets the congestion control."""
        if kind == "large":
            return f"http://{SERVICE}/file"
        self.spaces["s"].ip(f"route change {CLIENT}/32 dev s0 src {SERVER} congctl {kind}")
        return f"http://{SERVER}:81/file"

    def together(self, flows: dict[str, int], seconds: float) -> dict[str, int]:
        """Bytes of the parallel downloads of each kind in `seconds`."""
        running = []
        for kind, count in flows.items():
            words = ["curl", "-s", "--max-time", f"{seconds:g}", "-o", "/dev/null", "-w", "%{size_download}"]
            command = [*self.spaces["c"].enter, *words, self.url(kind)]
            for _ in range(count):
                running.append((kind, subprocess.Popen(command, stdout=subprocess.PIPE, text=True)))
        got = dict.fromkeys(flows, 0)
        for kind, process in running:
            got[kind] += int(process.communicate(timeout=PATIENCE_S)[0])
        return got

    def get(self, kind: str) -> float:
        """Mb/s of one download, with every byte compared."""
        out = self.folder / "out"
        words = ("curl", "-sS", "--fail", "--max-time", str(PATIENCE_S), "-o", str(out), "-w", "%{time_total}")
        seconds = float(self.spaces["c"].run(*words, self.url(kind)))
        if out.read_bytes() != (self.folder / "www" / "file").read_bytes():
            raise SystemExit(f"{kind}, {self.path}: received other bytes")
        return self.path.size * 8 / seconds / 1e6


@contextmanager
def rig(path: Path) -> Iterator[Rig]:
    """A rig, torn down at the end."""
    found = Rig(path)
    with standing(found):
        found.build()
        yield found


def measure(path: Path, repetitions: int) -> Json:
    """All kinds alternate, so that other work of the machine affects all alike."""
    got: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with rig(path) as standing_rig:
        for _ in range(repetitions):
            for kind in KINDS:
                got[kind].append(standing_rig.get(kind))
                time.sleep(0.1)
    row: Json = {"rate_mbit": path.rate_mbit, "rtt_ms": path.rtt_ms, "loss": path.loss, "bytes": path.size}
    row |= {kind: interval(rates) for kind, rates in got.items()}
    # A download with a late first loss is several times faster; the mean shows how often that happened.
    row["medians"] = {kind: statistics.median(rates) for kind, rates in got.items()}
    said = ", ".join(f"{kind} {row['medians'][kind]:.1f} ({row[kind][0]:.1f} ± {row[kind][1]:.1f})" for kind in KINDS)
    print(f"{path.rate_mbit:g} Mb/s, {path.rtt_ms:g} ms, {path.loss * 100:g} % lost: {said} Mb/s", flush=True)
    return row


def beside(flows: int, repetitions: int) -> Json:
    """Parallel downloads of each kind over one wire: stateless TCP's bytes relative to Reno's."""
    path = Path(100, 10, seconds=BESIDE_S + 1)
    shares = []
    with rig(path) as standing_rig:
        for _ in range(repetitions):
            got = standing_rig.together({"large": flows, "reno": flows}, BESIDE_S)
            shares.append(got["large"] / got["reno"])
    print(f"{flows} beside {flows} of Reno's: {', '.join(f'{share:.2f}' for share in shares)}", flush=True)
    return {"flows": flows, "shares": shares, "median": statistics.median(shares)}


def bars(result: Json) -> list[Bar]:
    """Bounds relative to Reno's rate on the same wire, alone and in parallel."""
    found = []
    for row in result.get("fairness", []):
        what = f"{row['flows']} downloads beside as many Reno downloads: relative to their throughput"
        found += [Bar(what, row["median"], 0.9), Bar(what, row["median"], 1.1, at_most=True)]
    for row in result.get("paths", []):
        wanted = 0.8 if row["loss"] else 0.9 if row["rate_mbit"] >= 1000 else 0.95
        what = f"{row['rate_mbit']:g} Mb/s, {row['rtt_ms']:g} ms, {row['loss'] * 100:g} % lost each way: of Reno's rate"
        found.append(Bar(what, row["medians"]["large"] / row["medians"]["reno"], wanted))
    return found
