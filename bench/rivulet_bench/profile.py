"""Profiles a core with perf and sorts the samples into kinds of work."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from rivulet_lab import RackError

IDLE = "idle"
KINDS = (
    ("cryptography", re.compile(r"aes|cmac|siphash|MacKey|NonceKey|nonces|blake", re.I)),
    ("copies and checksums", re.compile(r"memmove|memcpy|memset|_copy_|copy_to|copy_from|csum|checksum|Sum::|crc32")),
    (
        "transport",
        re.compile(r"rivulet_(transport|packet)::|\btcp_|\b__tcp|inet_csk|\bip_|\b__ip_|\binet_|tcp4_|sk_stream"),
    ),
    (
        "server and application",
        re.compile(r"rivulet_(server|cli|pktio)::|ngx_|httpdate|hashbrown|malloc|cfree|_int_free"),
    ),
)
"""Kinds of work by patterns of symbol names; the first match counts. Other symbols are the kernel's or unknown."""
KERNEL = "kernel: sockets, devices, scheduling"
OTHER = "other"
ORDER = ("cryptography", "transport", "server and application", "copies and checksums", KERNEL, OTHER)

_IDLE = re.compile(r"halt|mwait|acpi_idle|intel_idle|cpuidle|do_idle|default_idle|poll_idle|cpu_startup")
FREQUENCY = 1999
LINE = re.compile(r"^\s*(?P<comm>.*?)\s+(?P<pid>\d+)\s+[0-9a-f]+\s+(?P<symbol>.*) \((?P<object>[^()]*)\)$")


def kind(symbol: str, image: str) -> str:
    """Kind of work of a symbol."""
    for name, pattern in KINDS:
        if pattern.search(symbol):
            return name
    if image.startswith("[") and image != "[unknown]":
        return KERNEL
    return OTHER


def perf() -> str:
    """Path of perf; RackError if it is not installed."""
    path = shutil.which("perf")
    if path is None:
        raise RackError("perf is not installed: apt-get install linux-perf")
    return path


def start(core: int, seconds: float, data: Path) -> subprocess.Popen[bytes]:
    """Samples a core for some seconds."""
    command = [perf(), "record", "-q", "-o", str(data), "-e", "cpu-clock", "-F", str(FREQUENCY), "-C", str(core)]
    return subprocess.Popen(
        [*command, "--", "sleep", f"{seconds:g}"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )


def shares(popen: subprocess.Popen[bytes], data: Path, processes: Collection[int]) -> dict[str, float]:
    """Percent of the core's time by kind of work.

    Samples of other processes than these and the kernel's threads are not counted, since they are other work of the
    machine.
    """
    if popen.wait(60) != 0:
        raise RackError("perf failed: are performance events allowed here (kernel.perf_event_paranoid)?")
    out = subprocess.run(
        [perf(), "script", "-i", str(data), "-F", "comm,pid,ip,sym,dso", "--demangle"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    ).stdout
    counts: Counter[str] = Counter()
    for line in out.splitlines():
        match = LINE.match(line)
        if match is None:
            continue
        comm, symbol, image = match["comm"], match["symbol"], match["object"]
        if comm.startswith("swapper") and _IDLE.search(symbol):
            counts[IDLE] += 1
        elif int(match["pid"]) in processes or comm.startswith(("swapper", "ksoftirqd", "kworker")):
            counts[kind(symbol, image)] += 1
    total = sum(counts.values())
    if total < 50:
        raise RackError("perf took too few samples")
    return {name: 100 * count / total for name, count in sorted(counts.items())}
