"""Checks a student's program on a running switch: packets in, packets out.

A `check.py` of an exercise has functions, each of which gets a `Rig` with the program freshly loaded and raises
`AssertionError` with a hint; `main` runs them all and prints a line for each.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import select
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rivulet_demo.attacker import checksum

from . import switches
from .binaries import RackError
from .console import Console
from .lab import Lab, standing
from .namespaces import End, Namespace, veth
from .p4info import P4Info
from .p4runtime import Connection

PATIENCE_S = 3.0
"""Time to wait for packets that must come."""
QUIET_S = 0.03
"""Time to wait for packets beyond them."""
CLONE_NEWNET = 0x40000000


@contextmanager
def _inside(space: Namespace) -> Iterator[None]:
    """Runs the block's system calls in a namespace; a socket that is opened there stays there."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(path: str) -> None:
        with open(path) as file:
            if libc.setns(file.fileno(), CLONE_NEWNET):
                raise RackError(f"{path}: {os.strerror(ctypes.get_errno())}")

    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        enter(f"/run/netns/{space.where}")
        yield
    finally:
        enter(f"/proc/self/fd/{before}")
        os.close(before)


class Rig:
    """A switch with ports 1 to `ports`, whose other ends are sockets of this process."""

    def __init__(self, lab: Lab, switch: str, ports: int) -> None:
        space = lab.namespace("rig")
        numbers = range(1, ports + 1)
        for port in numbers:
            veth(End(space, f"s{port}"), End(space, f"t{port}"))
        # A short path: that of a Unix socket has at most 107 characters.
        address = f"unix:{lab.folder}/s.sock"
        command = switches.command(switch, {port: f"s{port}" for port in numbers}, address, device_id=0)
        process = lab.start("switch", command, space)
        lab.until((lab.folder / "s.sock").exists, "the switch listens", 60.0, process)
        self.connection = Connection(address)
        self._sockets: dict[int, socket.socket] = {}
        with _inside(space):
            for port in numbers:
                sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
                sock.bind((f"t{port}", 0))
                self._sockets[port] = sock

    def close(self) -> None:
        """Closes sockets and session."""
        for sock in self._sockets.values():
            sock.close()
        self.connection.close()

    def load(self, info: P4Info, program: bytes, commands: str) -> None:
        """Loads a program, and writes its tables by commands of the console."""
        self.connection.push(info, program)
        self.run(commands)
        self.receive(0)

    def run(self, commands: str) -> None:
        """Runs commands of the console, one a line."""
        with open(os.devnull, "w") as out:
            console = Console(self.connection, out=out)
            for line in commands.splitlines():
                console.run_line(line)

    def send(self, port: int, *frames: bytes) -> None:
        """Sends frames into a port, one after the other."""
        for frame in frames:
            self._sockets[port].send(frame.ljust(60, b"\0"))

    def receive(self, wanted: int, matching: Callable[[bytes], bool] = lambda frame: True) -> list[tuple[int, bytes]]:
        """The frames that leave the switch, with their ports: at least `wanted` if they come within the patience."""
        found: list[tuple[int, bytes]] = []
        ports = {sock: port for port, sock in self._sockets.items()}
        end = time.monotonic() + PATIENCE_S
        while True:
            left = QUIET_S if len(found) >= wanted else end - time.monotonic()
            ready = select.select(list(ports), [], [], max(0.0, left))[0]
            if not ready:
                return found
            for sock in ready:
                frame, address = sock.recvfrom(65536)
                if address[2] != socket.PACKET_OUTGOING and matching(frame):
                    found.append((ports[sock], frame))


def ethernet(kind: int, payload: bytes, source: str = "020000000001", to: str = "0200000000ff") -> bytes:
    """An Ethernet frame."""
    return bytes.fromhex(to) + bytes.fromhex(source) + kind.to_bytes(2, "big") + payload


def tcp_frame(source_port: int, to: str = "10.0.2.2", source: str = "10.0.1.1", payload: bytes = b"") -> bytes:
    """A TCP segment over IPv4 with the destination port 80; its flow depends on the source port."""
    tcp = struct.pack("!HHIIBBHHH", source_port, 80, 1, 0, 5 << 4, 0x10, 8192, 0, 0) + payload
    ends = socket.inet_aton(source) + socket.inet_aton(to)
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0) + ends
    head = head[:10] + checksum(head).to_bytes(2, "big") + head[12:]
    return ethernet(0x0800, head + tcp)


Check = Callable[[Rig], None]


def run_checks(
    switch: str, program: Path, p4info: Path, ports: int, commands: str, checks: Sequence[Check]
) -> list[tuple[str, str]]:
    """Runs checks on a switch; returns the name of each with the hint of a failure ("": it passed)."""
    info, data = P4Info.of(p4info), program.read_bytes()
    found = []
    with tempfile.TemporaryDirectory(prefix="rivulet-") as folder, standing(Lab(Path(folder))) as lab:
        rig = Rig(lab, switch, ports)
        try:
            for check in checks:
                hint = ""
                try:
                    rig.load(info, data, commands)
                    check(rig)
                except AssertionError as problem:
                    hint = str(problem) or "failed"
                found.append((check.__name__.replace("_", " "), hint))
        finally:
            rig.close()
    return found


def main(folder: Path, ports: int, commands: str, checks: Sequence[Check]) -> int:
    """The command line of an exercise's `check.py`; returns the exit code."""
    parser = argparse.ArgumentParser(description="Checks the exercise's program on a switch. Needs root.")
    parser.add_argument("program", nargs="?", default="starter", help="starter (default), solution, or a BMv2 JSON")
    parser.add_argument("--switch", choices=switches.SWITCHES, default="embedded")
    options = parser.parse_args()
    program = Path(options.program)
    if options.program in ("starter", "solution"):
        program = folder / "build" / f"{options.program}.json"
    p4info = program.with_suffix(".p4info.txtpb")
    try:
        for path in (program, p4info):
            if not path.is_file():
                raise RackError(f"{path} does not exist: compile the program first (see README.md)")
        results = run_checks(options.switch, program, p4info, ports, commands, checks)
    except RackError as problem:
        print(f"error: {problem}")
        return 2
    for name, hint in results:
        print(f"FAIL {name}: {hint}" if hint else f"ok   {name}")
    failed = sum(bool(hint) for _, hint in results)
    print(f"{len(results) - failed} of {len(results)} checks passed on {options.switch}")
    return 1 if failed else 0
