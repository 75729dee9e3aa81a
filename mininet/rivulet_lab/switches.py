"""Command lines of the two switches, which take the same flags."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress

from .binaries import RackError, binary

SWITCHES = ("embedded", "bmv2")

CPU_PORT, DROP_PORT = 510, 511
"""Ports of the P4 program without an interface."""


def program(switch: str) -> str:
    """Path of a switch; RackError if it does not exist."""
    if switch == "embedded":
        return binary("rivulet-switch")
    found = shutil.which("simple_switch_grpc")
    if found is None:
        raise RackError("simple_switch_grpc is not installed")
    return found


def installed() -> list[str]:
    """The switches that are installed."""
    found = []
    for switch in SWITCHES:
        with suppress(RackError):
            program(switch)
            found.append(switch)
    return found


def command(
    switch: str,
    ports: Mapping[int, str],
    grpc: str,
    *,
    device_id: int = 1,
    flags: Sequence[str] = (),
    path: str = "",
    json_file: str = "",
    cpu_port: int | None = CPU_PORT,
    priority_queues: int | None = None,
) -> list[str]:
    """Runs a switch with an interface for each port, and P4Runtime at `grpc` (HOST:PORT or unix:PATH).

    `json_file`: compiled program that it starts with; without one it waits for a controller to send one. `cpu_port`:
    port of packets to and from controllers (None: there is none).
    """
    interfaces = [word for port, device in ports.items() for word in ("-i", f"{port}@{device}")]
    target = ["--drop-port", str(DROP_PORT), "--grpc-server-addr", grpc]
    target += ["--cpu-port", str(cpu_port)] if cpu_port is not None else []
    target += ["--priority-queues", str(priority_queues)] if priority_queues is not None else []
    start = ["--device-id", str(device_id), *flags, *interfaces, json_file or "--no-p4"]
    return [path or program(switch), *start, "--", *target]
